"""The example in the README runs as it stands."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.source_tree import REPOSITORY

QUICKSTART = REPOSITORY / "examples" / "quickstart.py"
# none in place of a module is one that can not be imported, and is not found either
WITHOUT = """
import runpy, sys
sys.modules.update(dict.fromkeys({hidden}))
runpy.run_path({path!r}, run_name="__main__")
"""


@pytest.mark.parametrize("hidden", [(), ("triton", "fla")], ids=["as it is", "nothing to go fast"])
def test_the_quickstart_answers_twice_and_tells_the_cost(hidden):
    program = WITHOUT.format(hidden=hidden, path=str(QUICKSTART))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first_answer, first, second_answer, second = done.stdout.splitlines()
    assert "38" in first_answer
    assert second_answer == first_answer
    cold, warm = json.loads(first), json.loads(second)
    assert cold.keys() == {"cached_tokens", "live_tokens", "prompt_tokens", "segments", "ttft_ms"}
    assert (cold["segments"], warm["segments"]) == (["cold", "cold"], ["hit", "hit"])
    assert cold["cached_tokens"] == 0
    # all but the edges of the documents, the glue and the question
    assert warm["cached_tokens"] > warm["prompt_tokens"] / 2
    assert warm["cached_tokens"] + warm["live_tokens"] == warm["prompt_tokens"]
