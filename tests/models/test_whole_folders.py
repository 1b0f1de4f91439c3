"""Every published layout as a person meets it: a folder, and the commands over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hypic_sdk.cli.app import app
from tests.models.checkpoints import LAYOUTS, folder_name, write_whole

DOCUMENT = "The town of Norwick lies on the river Ash. " * 6


@pytest.fixture(scope="module", params=LAYOUTS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("layouts") / folder_name(request.param)
    target.mkdir()
    write_whole(request.param, target)
    return target


def told(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output[result.output.index("{") :])
    assert isinstance(found, dict)
    return found


def test_the_doctor_says_that_it_can_be_served(folder: Path) -> None:
    report = told("doctor", "--model", str(folder))
    assert all(law["holds"] for law in report["laws"])
    assert report["template"]["segments_in"] == ["system", "user", "tool"]
    assert report["notes"] == []


def test_it_answers_over_a_document_whole_and_by_its_length(folder: Path) -> None:
    document = folder / "document.txt"
    document.write_text(DOCUMENT)
    words = ("-q", "Where is it?", "-d", str(document), "--max-tokens", "5", "--cache-mib", "64")
    reply = told("generate", "--model", str(folder), "--min-segment-tokens", "16", *words)
    usage, (choice,) = reply["usage"], reply["choices"]
    assert 1 <= usage["completion_tokens"] <= 5
    assert choice["finish_reason"] == ("length" if usage["completion_tokens"] == 5 else "stop")
    assert reply["hypic"]["segments"][0]["status"] == "hit"
