"""`hypic explain`, against a server and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hypic_sdk import Hypic, RequestError
from hypic_sdk.cli.app import app
from hypic_sdk.cli.explain import prompt_fields
from hypic_sdk.demo.library import DOCUMENTS
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve_fake

LONG = DOCUMENTS["ada"]


def run(*words: str) -> str:
    result = CliRunner().invoke(
        app, ["explain", *words], catch_exceptions=False, env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "ada.txt"
    path.write_text(LONG, encoding="utf-8")
    return path


def test_a_server_tells_what_is_warm(document):
    worker = PushingWorker(tiny.tokenizer().encode_text("x"))
    with serve_fake(worker) as url, Hypic(url) as client:
        words = ("-q", "Where?", "-d", str(document), "--url", url)
        assert "cold" in run(*words)
        client.segments.create(LONG, warm="wait")
        output = run(*words)
        assert "ada.txt" in output
        assert "hit" in output
        assert json.loads(run(*words, "--json"))["cached_tokens"] > 0
    worker.join()


def test_offline_everything_is_cold_and_warnings_are_told(tmp_path):
    file = tmp_path / "prompt.json"
    message = {"role": "user", "content": [{"type": "segment", "text": "[1] short"}, "Where?"]}
    file.write_text(json.dumps([message]), encoding="utf-8")
    output = run(str(file), "--offline")
    assert "running_number" in output
    assert "below_min_tokens" in output
    file.with_suffix(".txt").write_text("A plain prompt.", encoding="utf-8")
    assert "no_segments" in run(str(file.with_suffix(".txt")), "--offline")


class TestFields:
    def test_bodies_lists_and_plain_prompts(self, tmp_path):
        def fields(name: str, text: str):
            (tmp_path / name).write_text(text)
            return prompt_fields(tmp_path / name, None, [])

        body = {"messages": [], "documents": ["x"], "model": "m", "stream": True}
        assert fields("a.json", json.dumps(body)) == {"messages": [], "documents": ["x"]}
        assert fields("b.json", "[1]") == {"messages": [1]}
        assert fields("c.txt", "Once") == {"prompt": "Once"}

    @pytest.mark.parametrize("text", ["", "{", '{"a": 1}', '"x"'])
    def test_what_is_none_of_these(self, tmp_path, text):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(RequestError, match=r"x\.json"):
            prompt_fields(tmp_path / "x.json", None, [])

    def test_one_of_both(self, document):
        for file, question, documents in (
            (None, None, []),
            (document, "Where?", []),
            (document, None, [document]),
        ):
            with pytest.raises(RequestError, match="--"):
                prompt_fields(file, question, documents)
