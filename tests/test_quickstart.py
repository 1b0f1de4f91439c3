"""The example in the README runs as it stands."""

from __future__ import annotations

import json
import runpy

from tests.source_tree import REPOSITORY


def test_the_quickstart_answers_twice_and_tells_the_cost(capsys):
    main = runpy.run_path(str(REPOSITORY / "examples" / "quickstart.py"))["main"]
    assert main() == 0
    first_answer, first, second_answer, second = capsys.readouterr().out.splitlines()
    assert "38" in first_answer
    assert second_answer == first_answer
    cold, warm = json.loads(first), json.loads(second)
    assert cold.keys() == {"cached_tokens", "live_tokens", "prompt_tokens", "segments", "ttft_ms"}
    assert (cold["segments"], warm["segments"]) == (["cold", "cold"], ["hit", "hit"])
    assert cold["cached_tokens"] == 0
    # all but the edges of the documents, the glue and the question
    assert warm["cached_tokens"] > warm["prompt_tokens"] / 2
    assert warm["cached_tokens"] + warm["live_tokens"] == warm["prompt_tokens"]
