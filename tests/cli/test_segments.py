"""`hypic segments` against a server over a fake worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from hypic_sdk import Hypic, RequestError, SegmentNotFound, segment_id
from hypic_sdk.cli.app import app
from hypic_sdk.cli.documents import FileDocument
from hypic_sdk.cli.segments import plan_adding
from hypic_sdk.wire.segments import SegmentObject
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve_fake


@pytest.fixture(scope="module")
def worker() -> Iterator[PushingWorker]:
    worker = PushingWorker(tiny.tokenizer().encode_text("a town"))
    yield worker
    worker.join()


@pytest.fixture
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "towns").mkdir()
    (tmp_path / "towns" / "norwick.txt").write_text("Norwick lies on the Ash. " * 20)
    (tmp_path / "ada.md").write_text("Ada Lindqvist is a baker. " * 20)
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff")
    (tmp_path / ".hidden").write_text("not this")
    return tmp_path


def run(url: str, *words: str) -> str:
    result = CliRunner().invoke(
        app,
        ["segments", *words, "--url", url],
        catch_exceptions=False,
        env={"COLUMNS": "200", "HYPIC_API_KEY": ""},
    )
    assert result.exit_code == 0, result.output
    return result.output


def names(url: str) -> dict[str | None, str]:
    with Hypic(url) as client:
        return {one.external_id: one.id for one in client.segments.list().data}


def test_a_folder_is_added_once_and_again_for_nothing(url, folder, worker):
    output = run(url, "add", str(folder), "--warm")
    assert "2 registered, 0 known" in output
    assert "2 warmed" in output
    assert "empty.txt is empty" in output.replace("\n", "")
    assert "image.png" in output
    assert names(url).keys() == {"ada.md", "towns/norwick.txt"}
    num_asked = len(worker.messages)
    output = run(url, "add", str(folder), "--warm")
    assert "0 registered, 2 known, 0 replaced" in output
    assert "0 warmed (0 tokens computed), 2 warm before" in output
    assert len(worker.messages) == num_asked + 1  # the warm job, which finds all of it there


def test_an_edited_file_replaces_what_it_said(url, folder):
    run(url, "add", str(folder))
    old = names(url)["ada.md"]
    (folder / "ada.md").write_text("Ada Lindqvist is a smith.")
    assert "1 registered, 1 known, 1 replaced" in run(url, "add", str(folder))
    assert names(url)["ada.md"] == segment_id("Ada Lindqvist is a smith.") != old
    with Hypic(url) as client, pytest.raises(SegmentNotFound):
        client.segments.retrieve(old)


def test_list_show_warm_rm(url, folder):
    run(url, "add", str(folder), "--glob", "**/*.md")
    id_ = names(url)["ada.md"]
    assert id_ in run(url, "list")
    assert [one["id"] for one in json.loads(run(url, "list", "--json"))] == [id_]
    assert json.loads(run(url, "show", "ada.md"))["id"] == json.loads(run(url, "show", id_))["id"]
    assert "1 warm before" in run(url, "warm", id_) + run(url, "warm", "--all")
    assert "1 forgotten" in run(url, "rm", "ada.md")
    assert names(url) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "no/such/file"], "no/such/file"),
        (["add", "{folder}/empty.txt"], "is empty"),
        (["add", "{folder}", "--glob", "*.pdf"], "no documents"),
        (["warm"], "--all"),
        (["show", "nobody"], "nobody"),
    ],
)
def test_what_is_wrong_is_named(url, folder, words, said):
    with pytest.raises(RequestError, match=said):
        run(url, *(word.format(folder=folder) for word in words))


TEXTS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y", "z"])


def registered(texts: dict[str, str | None]) -> list[SegmentObject]:
    return [
        SegmentObject(
            id=segment_id(text), external_id=name, title=None, metadata={}, tokens=1, created_at=0
        )
        for text, name in texts.items()
    ]


@given(st.dictionaries(NAMES, TEXTS), st.dictionaries(TEXTS, NAMES))
def test_after_adding_each_text_is_there_once_and_nothing_stale(files, before):
    before = {text: name for name, text in {n: t for t, n in before.items()}.items()}
    documents = [FileDocument(name, text) for name, text in files.items()]
    plan = plan_adding(documents, registered(before))
    texts = {segment_id(text) for text in files.values()}
    taken = {segment_id(one.text) for one in plan.new} | {one.id for one in plan.kept}
    assert taken == texts
    assert len(plan.new) + len(plan.kept) + len(plan.alike) == len(files)
    assert not set(plan.replaced) & texts
    # what a file said before, and no file says now, goes; what no file ever said stays
    stale = {segment_id(text) for text, name in before.items() if name in files} - texts
    assert set(plan.replaced) <= stale
