"""Servers for the standard suites: a scripted one, which can call tools, and the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.integrations.served_process import serving

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
