"""The RAG examples as they stand, with a real embedding model; the notebook is one of them."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from hypic_sdk.demo.library import DOCUMENTS

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch):
    """As when they are run by their path."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_langchain(capsys):
    assert runpy.run_path(str(EXAMPLES / "langchain_rag.py"))["main"]() == 0
    said, progress = capsys.readouterr()
    first, first_cost, second, second_cost = said.splitlines()
    assert ("38" in first, "4182" in second) == (True, True)
    for cost in map(json.loads, (first_cost, second_cost)):
        assert cost["segments"] == ["hit"] * 3
        assert cost["cache_read"] > cost["input_tokens"] / 2
    assert progress.splitlines()[-1] == f"warming: {len(DOCUMENTS)} of {len(DOCUMENTS)}"


def test_llama_index(capsys):
    assert runpy.run_path(str(EXAMPLES / "llama_index_rag.py"))["main"]() == 0
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


def test_the_notebook_runs_cell_by_cell():
    """In one namespace and in order, as a reader does; its answers are those it shows."""
    notebook = json.loads((EXAMPLES / "rag.ipynb").read_text(encoding="utf-8"))
    namespace: dict[str, object] = {"__name__": "__main__", "display": lambda value: None}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in cells[1:-1])
    for cell in cells:
        exec(compile("".join(cell["source"]), "rag.ipynb", "exec"), namespace)
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert namespace["ANSWERS"]
    for message in namespace["ANSWERS"]:
        assert message.text in shown
    assert "torch" in sys.modules
