"""The example runs as it stands."""

from __future__ import annotations

import json
import runpy

from tests.source_tree import REPOSITORY


def test_the_example_answers_twice_from_segments(capsys):
    main = runpy.run_path(str(REPOSITORY / "examples" / "langchain_rag.py"))["main"]
    assert main() == 0
    first, first_cost, second, second_cost = capsys.readouterr().out.splitlines()
    assert ("38" in first, "4182" in second) == (True, True)
    for cost in map(json.loads, (first_cost, second_cost)):
        assert cost["segments"] == ["hit"] * 3
        assert cost["cache_read"] > cost["input_tokens"] / 2
