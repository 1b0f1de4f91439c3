"""Servers for the standard suites: a scripted one, which can call tools, and the demo model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_START_S = 60.0


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """The base URL of `hypic serve` as a process of its own."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", *words]
        environment = {**os.environ, "HYPIC_CACHE_DIR": cache, "COLUMNS": "200"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        # a server that says nothing must not hold up the run: killed, its line is empty
        alarm = threading.Timer(_START_S, process.kill)
        alarm.start()
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            alarm.cancel()
            yield found.group()
        finally:
            alarm.cancel()
            process.terminate()
            process.stdout.close()
            process.wait(timeout=60)


# in JSON mode only the prompt says which names are wanted, and a script does not read it
JOKE = {"setup": "Why did the cat sit on the computer?", "punchline": "To watch the mouse."}
SCRIPT = {"rules": [{"user": "JSON with 'setup'", "reply": {"content": json.dumps(JOKE)}}]}


@pytest.fixture(scope="session")
def scripted_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(SCRIPT), encoding="utf-8")
    with serving("--model", "scripted", "--script", str(script)) as url:
        yield url


@pytest.fixture(scope="session")
def demo_url() -> Iterator[str]:
    with serving() as url:
        yield url
