"""The example of server and client runs as it stands."""

from __future__ import annotations

import json
import runpy

from tests.source_tree import REPOSITORY


def test_the_application_warms_asks_and_streams(capsys):
    main = runpy.run_path(str(REPOSITORY / "examples" / "serve_and_query.py"))["main"]
    assert main() == 0
    warmed, answer, streamed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (warmed["status"], answer["segments"]) == ("succeeded", ["hit", "hit"])
    assert streamed["segments"] == ["hit", "hit"]
    assert "38" in answer["text"]
    assert streamed["text"] == answer["text"]
    assert answer["cached_tokens"] > answer["live_tokens"] > 0
