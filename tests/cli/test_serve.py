"""`hypic serve` as a process: says where it is, forgets nothing when killed, ends when told."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hypic_sdk import Hypic
from hypic_sdk.cli import serve
from hypic_sdk.cli.app import app
from hypic_sdk.cli.options import SERVER_CAPTURE_AHEAD_S
from hypic_sdk.config import EngineConfig, ShadowConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import HypicError


@contextmanager
def server(*words: str, cache: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its base URL."""
    command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", *words]
    environment = {**os.environ, "HYPIC_CACHE_DIR": str(cache), "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield process, found.group()
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_ids_and_texts_survive_a_killed_server(tmp_path: Path) -> None:
    question = QUESTIONS[0]
    texts = [DOCUMENTS[name] for name in question.documents]
    with server(cache=tmp_path) as (process, url), Hypic(url) as client:
        ids = [segment.id for segment in client.segments.create_many(texts, warm="wait")]
        process.send_signal(signal.SIGKILL)
        process.wait()
    with server(cache=tmp_path) as (process, url), Hypic(url) as client:
        assert [client.segments.retrieve(one).id for one in ids] == ids
        reply = client.chat.completions.create(
            messages=[{"role": "user", "content": question.text}],
            documents=[{"segment_id": one} for one in ids],
        )
        assert reply.choices[0].message.content == question.answer
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (("--model", "no/such/folder"), "no/such/folder", 1),
        (("--host", "0.0.0.0"), "keys", 2),
        (("--shadow-limit-kl", "0.1"), "--shadow", 2),
        (("--shadow", "2"), "--shadow", 2),
        (("--capture-ahead", "-1"), "--capture-ahead", 2),
    ],
)
def test_what_keeps_it_from_starting_is_a_sentence(
    words: tuple[str, ...], said: str, status: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", *words]
    environment = {**os.environ, "HYPIC_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == status
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_in_use_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", port]
        environment = {**os.environ, "HYPIC_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=environment
        )
    assert ended.returncode == 2
    assert port in ended.stderr
    assert "in use" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_what_is_in_flight(number: int, tmp_path: Path) -> None:
    with server(cache=tmp_path) as (process, url), Hypic(url) as client:
        with client.completions.stream(
            prompt="On the Ash", max_tokens=4000, min_tokens=4000, ignore_eos=True
        ) as stream:
            chunks = iter(stream)
            next(chunks)
            process.send_signal(number)
            time.sleep(0.5)
            assert process.poll() is None
            started_s = time.monotonic()
            process.send_signal(number)
            with pytest.raises(HypicError):
                list(chunks)
        assert process.wait(15) == 0
        assert time.monotonic() - started_s < 10


def test_a_tokenizer_of_another_model_is_refused_here_too(tmp_path: Path) -> None:
    folder = tmp_path / "reader"
    shutil.copytree(reader_path(), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = []
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0"]
    environment = {**os.environ, "HYPIC_CACHE_DIR": str(tmp_path), "COLUMNS": "200"}
    ended = subprocess.run(
        [*command, "--model", str(folder)],
        capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "do not belong together" in " ".join(ended.stderr.split())


def test_checks_switch_reuse_off_and_a_signal_switches_it_on(tmp_path: Path) -> None:
    flags = ("--shadow", "1.0", "--shadow-limit-kl", "1e-12")
    documents = [{"text": DOCUMENTS[name]} for name in ("lantern", "clock")]
    messages = [{"role": "user", "content": QUESTIONS[0].text}]

    def degraded(client: Hypic) -> str | None:
        reply = client.chat.completions.create(
            messages=messages, documents=documents, max_tokens=1, timeout_s=60
        )
        return reply.cache.degraded

    def switched_off(client: Hypic) -> int:
        return client.cache.stats().shadow.num_switched_off

    with server(*flags, cache=tmp_path) as (process, url), Hypic(url) as client:
        for number in range(ShadowConfig().window):
            assert degraded(client) is None
            wait_until(lambda at=number: client.cache.stats().shadow.num_replies > at)
        assert switched_off(client) == 1
        assert degraded(client) == "reuse_switched_off"
        process.send_signal(signal.SIGUSR1)
        wait_until(lambda: switched_off(client) == 0)
        assert degraded(client) is None


def test_steps_overlap_where_they_are_told_to(tmp_path: Path) -> None:
    def said(url: str) -> str:
        with Hypic(url) as client:
            reply = client.completions.create(
                prompt="On the Ash", max_tokens=12, ignore_eos=True, temperature=0.0
            )
        return reply.choices[0].text

    with server("--overlap", cache=tmp_path) as (_, url):
        overlapped = said(url)
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            metrics = answer.read().decode()
    assert "hypic_overlapped_steps_total 10.0" in metrics, "all but the prompt's, and the first"
    with server(cache=tmp_path) as (_, url):
        assert said(url) == overlapped


@pytest.mark.parametrize(
    ("words", "capture_ahead_s", "overlap"),
    [
        ((), SERVER_CAPTURE_AHEAD_S, EngineConfig().overlap),
        (("--capture-ahead", "5", "--overlap"), 5.0, True),
        (("--no-overlap",), SERVER_CAPTURE_AHEAD_S, False),
    ],
    ids=str,
)
def test_only_a_server_captures_ahead_unless_told_to(
    words: tuple[str, ...], capture_ahead_s: float, overlap: bool | str, monkeypatch
) -> None:
    begun = []
    monkeypatch.setattr(serve, "run_serve", lambda console, **named: begun.append(named["config"]))
    assert CliRunner().invoke(app, ["serve", *words]).exit_code == 0
    [config] = begun
    assert (config.capture_ahead_s, config.overlap) == (capture_ahead_s, overlap)
    assert EngineConfig().capture_ahead_s == 0.0, "whoever calls a library waits for it"


def wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < end_s, "it does not come about"
        time.sleep(0.02)
