"""The registry in a file behaves as the one in memory, and is there after a restart."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk import Hypic
from hypic_sdk.errors import ConfigError, HypicError, PoolExhausted
from hypic_sdk.prompt.catalog import CatalogLimits, MemoryCatalog, NewSegment
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.sqlite_catalog import SegmentFile, SqliteCatalog
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve
from tests.source_tree import REPOSITORY

LIMITS = CatalogLimits(num_segments=5, total_bytes=24, segment_bytes=12)
TEXTS = ("A town", "B town", "C", "🙂🙂", "a long text, too long", "", "\ud800", "DDDDDDDD", "E")

texts = st.sampled_from(TEXTS)
names = st.none() | st.sampled_from(["x", "y", "z"])
metadata = st.none() | st.dictionaries(st.sampled_from("ab"), st.none() | st.integers(0, 3))
calls = st.one_of(
    st.tuples(
        st.just("register"),
        st.builds(NewSegment, texts, external_id=names, title=names, metadata=metadata),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(["get", "delete"]), texts.filter(lambda text: text != "\ud800")),
    st.tuples(st.just("find_external"), st.sampled_from("xyz")),
    st.tuples(st.just("page"), st.none() | texts.filter(lambda text: text != "\ud800")),
)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except HypicError as error:
        return type(error), error.message, error.details


def do(catalog: Any, call: Any) -> Any:
    match call:
        case ("register", new, replace):
            return catalog.register(new, replace_external=replace)
        case ("page", after):
            return catalog.page(after=None if after is None else segment_id(after), limit=2)
        case ("find_external", name):
            return catalog.find_external(name)
        case (method, text):
            return getattr(catalog, method)(segment_id(text))
    raise AssertionError(call)


@settings(max_examples=80)
@given(st.lists(calls, max_size=14))
def test_it_does_what_the_one_in_memory_does(plan):
    tokenizer = tiny.tokenizer()
    memory = MemoryCatalog(
        tokenizer.encode_text, tokenizer.fingerprint, limits=LIMITS, now_s=lambda: 7.0
    )
    with TemporaryDirectory() as folder, SegmentFile(Path(folder) / "segments") as file:
        SqliteCatalog(file, "other", tokenizer).register(NewSegment("A town", "x"))
        catalog = SqliteCatalog(file, "ours", tokenizer, limits=LIMITS, now_s=lambda: 7.0)
        for call in plan:
            assert outcome(lambda: do(catalog, call)) == outcome(lambda: do(memory, call))  # noqa: B023
        assert catalog.page(limit=99) == memory.page(limit=99)


def test_it_is_there_after_the_process_was_killed(tmp_path):
    path = tmp_path / "segments"
    script = f"""
import os, signal
from pathlib import Path
from hypic_sdk.prompt.catalog import NewSegment
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.sqlite_catalog import SegmentFile, SqliteCatalog
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve
catalog = SqliteCatalog(SegmentFile(Path({str(path)!r})), "ours", tiny.tokenizer())
for number in range(50):
    catalog.register(NewSegment(f"town {{number}}", external_id=str(number)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False)
    assert run.returncode == -9
    with SegmentFile(path) as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer())
        page = catalog.page(limit=99)
        assert [one.text for one in page.segments] == [f"town {number}" for number in range(50)]
        assert catalog.find_external("7").text == "town 7"


def test_a_server_started_again_knows_its_segments(tmp_path):
    worker = PushingWorker(tiny.tokenizer().encode_text("a town"))

    def started(file: SegmentFile):
        factory = ServiceFactory(
            tokenizer=tiny.tokenizer(),
            template=tiny.chat_template(tiny.CHATML, tiny.tokenizer()),
            worker=worker,
            model_name="tiny",
            open_catalog=lambda namespace, tokenizer: SqliteCatalog(file, namespace, tokenizer),
        )
        return serve(create_app(factory, worker))

    with SegmentFile(tmp_path / "segments") as file, started(file) as url, Hypic(url) as client:
        made = client.segments.create("Norwick lies on the Ash.", external_id="doc")
    with SegmentFile(tmp_path / "segments") as file, started(file) as url, Hypic(url) as client:
        assert client.segments.find("doc").id == made.id
        reply = client.chat.completions.create(
            messages=[{"role": "user", "content": "Where?"}],
            documents=[{"segment_id": made.id}],
        )
        assert [one.segment_id for one in reply.cache.segments] == [made.id]
        assert client.segments.delete(made.id).deleted


def test_a_deleted_text_stands_nowhere_in_the_files(tmp_path):
    with SegmentFile(tmp_path / "segments") as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer())
        secret = "the secret of the town " * 50
        catalog.register(NewSegment(secret, title="secret title"))
        assert catalog.delete(segment_id(secret))
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in held


def test_only_the_owner_reads_it(tmp_path):
    path = tmp_path / "segments"
    with SegmentFile(path) as file:
        SqliteCatalog(file, "ours", tiny.tokenizer()).register(NewSegment("A town"))
        modes = {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {0o600}


def test_another_tokenizer_s_ids_are_made_anew(tmp_path):
    with SegmentFile(tmp_path / "segments") as file:
        SqliteCatalog(file, "ours", tiny.tokenizer()).register(NewSegment("A town", title="T"))
        other = tiny.tokenizer("sentence_piece")
        catalog = SqliteCatalog(file, "ours", other)
        segment, created = catalog.register(NewSegment("A town"))
        assert not created
        assert segment.token_ids == other.encode_text("A town")
        assert (segment.tokenizer_fingerprint, segment.title) == (other.fingerprint, "T")


def test_many_threads(tmp_path):
    with SegmentFile(tmp_path / "segments") as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer(), limits=CatalogLimits(30))
        created, refused = [], []

        def register(first: int) -> None:
            for number in range(first, first + 20):
                try:
                    created.append(catalog.register(NewSegment(f"town {number}"))[1])
                except PoolExhausted:
                    refused.append(number)

        threads = [threading.Thread(target=register, args=(10 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(created) == len(catalog.page(limit=99).segments) == 30
        assert refused


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be looked at"])
def test_a_file_of_something_else(tmp_path, content):
    path = tmp_path / "segments"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="segments file"):
        SegmentFile(path)
    with pytest.raises(ConfigError):
        SegmentFile(tmp_path / "no" / "folder")
