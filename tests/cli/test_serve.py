"""`hypic serve` as a process: says where it is, forgets nothing when killed, ends when told."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hypic_sdk import Hypic
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS


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
    [(("--model", "no/such/folder"), "no/such/folder", 1), (("--host", "0.0.0.0"), "keys", 2)],
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
    assert "do not belong together" in ended.stderr
