"""The example runs as it stands."""

from __future__ import annotations

import json
import runpy

from hypic_sdk.demo.library import DOCUMENTS
from tests.source_tree import REPOSITORY


def test_the_example_warms_once_and_answers_twice_from_segments(capsys):
    main = runpy.run_path(str(REPOSITORY / "examples" / "llama_index_rag.py"))["main"]
    assert main() == 0
    said, progress = capsys.readouterr()
    warmed, again, first_cost, first, second_cost, second = said.splitlines()
    num = len(DOCUMENTS)
    assert warmed.startswith(f"{num} warm, ")
    assert not warmed.endswith(" 0 tokens computed")
    assert again == f"{num} warm, 0 tokens computed"
    assert f"{num}/{num} warm" in progress
    assert ("38" in first, "4182" in second) == (True, True)
    for cost in map(json.loads, (first_cost, second_cost)):
        assert cost["segments"] == ["hit"] * 3
        assert cost["cached_tokens"] > cost["prompt_tokens"] / 2
