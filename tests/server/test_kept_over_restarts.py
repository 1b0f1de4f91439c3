"""What is wished of segments outlives the engine process and the server process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.config import EngineConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.server.app import create_app
from hypic_sdk.server.segment_file import SegmentFile
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.sqlite_catalog import SqliteCatalog
from hypic_sdk.server.supervisor import EngineSupervisor
from hypic_sdk.transport.process_settings import ProcessSettings
from tests.server.served import call, serve

START_TIMEOUT_S = 120.0
SMALL = EngineConfig(store=StoreConfig(budget_bytes=48 << 20))


def text(number: int, sentences: int = 12) -> str:
    return " ".join(f"The town {number} has {n} mills." for n in range(sentences))


def until(holds: Callable[[], bool], limit_s: float = START_TIMEOUT_S) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, "it does not come about"
        time.sleep(0.05)


@contextmanager
def served(file: SegmentFile) -> Iterator[tuple[EngineSupervisor, str]]:
    with EngineSupervisor(ProcessSettings(str(reader_path()), SMALL)) as supervisor:
        supervisor.wait_ready(START_TIMEOUT_S)
        factory = ServiceFactory.from_folder(
            reader_path(),
            supervisor.link,
            model_name="reader",
            open_catalog=lambda namespace, tokenizer, limits: SqliteCatalog(
                file, namespace, tokenizer, limits=limits
            ),
        )
        settings = ServerSettings(upkeep_s=0.05, sweep_s=0.1)
        with serve(create_app(factory, supervisor.link, settings=settings)) as url:
            yield supervisor, url


def register(url: str, *texts: str, **fields: Any) -> list[str]:
    body = {"segments": [{"text": one} for one in texts], **fields}
    return [one["id"] for one in call(url, "POST", "/v1/segments", body).json["data"]]


def states(url: str, *ids: str) -> list[str]:
    told = call(url, "POST", "/v1/segments/lookup", {"segment_ids": ids}).json
    return [told[id_]["state"] for id_ in ids]


def warm(url: str, *ids: str) -> Any:
    job = call(url, "POST", "/v1/segments/warm", {"segment_ids": ids}).json
    until(lambda: read(url, job["id"])["status"] != "running")
    return read(url, job["id"])


def read(url: str, job_id: str) -> Any:
    return call(url, "GET", f"/v1/segments/warm/{job_id}").json


def test_an_engine_that_dies_under_a_job_and_a_pin(tmp_path: Path) -> None:
    with SegmentFile(tmp_path / "segments") as file, served(file) as (supervisor, url):
        pinned, *others = register(url, text(0), *(text(n, 60) for n in range(1, 16)))
        assert call(url, "PATCH", f"/v1/segments/{pinned}", {"pin": {}}).json["pinned"]
        assert warm(url, pinned)["counts"]["done"] == 1
        job = call(url, "POST", "/v1/segments/warm", {"segment_ids": others}).json
        until(lambda: read(url, job["id"])["counts"]["done"] > 0)
        os.kill(supervisor.process_id, signal.SIGKILL)
        until(lambda: not supervisor.link.is_ready(), 10)
        refused = call(url, "POST", "/v1/segments/warm", {"segment_ids": others})
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        assert states(url, pinned) == ["registered"]  # nothing is held by nobody
        until(lambda: call(url, "GET", "/health/ready").status == 200)
        # the job goes on with the next engine, from the beginning
        until(lambda: read(url, job["id"])["status"] != "running")
        told = read(url, job["id"])
        assert (told["status"], told["errors"]) == ("succeeded", [])
        assert told["counts"]["done"] == told["counts"]["total"] == len(others)
        # and the new engine knows of the pin, although nobody has said it again
        assert warm(url, pinned)["counts"]["done"] == 1
        register(url, *(text(n) for n in range(100, 140)), warm="wait")
        assert states(url, pinned, others[0]) == ["warm", "evicted"]


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [
        sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", "--cache-mib", "48",
        "--segments-file", str(folder / "segments"),
    ]  # fmt: skip
    environment = {**os.environ, "HYPIC_CACHE_DIR": str(folder), "COLUMNS": "200"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        found = re.search(r"http://\S+", running.stdout.readline())
        assert found
        yield running, found.group()
    finally:
        running.kill()
        running.stdout.close()
        running.wait()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends(tmp_path: Path, ending: signal.Signals) -> None:
    with process(tmp_path) as (running, url):
        pinned, ending_soon, other = register(url, text(0), text(1), text(2))
        call(url, "PATCH", f"/v1/segments/{pinned}", {"pin": {}, "retention": {"priority": 9}})
        path = f"/v1/segments/{ending_soon}"
        assert call(url, "PATCH", path, {"ttl": 1, "external_id": "soon"}).json["expires_at"]
        running.send_signal(ending)
        running.wait(30)
    time.sleep(1)
    with process(tmp_path) as (_, url):
        told = call(url, "GET", f"/v1/segments/{pinned}").json
        assert (told["pinned"], told["retention"]) == (True, {"priority": 9})
        assert call(url, "GET", path).status == 404
        assert [one["id"] for one in call(url, "GET", "/v1/segments").json["data"]] == [
            pinned,
            other,
        ]
        assert warm(url, pinned, other)["status"] == "succeeded"
        register(url, *(text(n) for n in range(100, 130)), warm="wait")
        assert states(url, pinned, other) == ["warm", "evicted"]

        # the sweep has taken the text out of the file
        def content() -> bytes:
            return b"".join(one.read_bytes() for one in tmp_path.glob("segments*"))

        until(lambda: text(1).encode() not in content(), 30)
        assert text(2).encode() in content()
