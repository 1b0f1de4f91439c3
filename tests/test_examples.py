"""Examples run as they stand; those that search with a model of their own: `make test-standard`."""

from __future__ import annotations

import json
import runpy
from typing import TYPE_CHECKING, Any

from tests.source_tree import REPOSITORY

if TYPE_CHECKING:
    import pytest


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The JSON lines that an example prints."""
    assert runpy.run_path(str(REPOSITORY / "examples" / name))["main"]() == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_both_ways_side_by_side(capsys):
    *questions, medians = run("side_by_side.py", capsys)
    assert medians["median_first_token_ms"].keys() == {"pic", "off"}
    assert len(questions) == 3
    for one in questions:
        assert one["pic"]["answer"] == one["off"]["answer"]
        assert one["pic"]["tokens_computed"] < one["off"]["tokens_computed"] / 2


def test_a_conversation_over_pinned_documents(capsys):
    first, second = run("pinned_chat.py", capsys)
    assert ("38" in first["answer"], "4182" in second["answer"]) == (True, True)
    assert first["pinned"]
    # the second turn has the whole conversation before it and computes its own words only
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert second["live_tokens"] < first["live_tokens"]


def test_warming_at_ingestion(capsys):
    stopped, rest, again = run("warm_at_ingestion.py", capsys)
    assert 4 <= stopped["warm"] < stopped["of"] == rest["warm"] == again["warm"]
    # what was warm when it was stopped is not computed again
    assert rest["reused_tokens"] >= stopped["computed_tokens"] > 0
    assert rest["computed_tokens"] > 0
    assert (again["computed_tokens"], again["reused_tokens"]) == (
        0,
        rest["computed_tokens"] + rest["reused_tokens"],
    )
