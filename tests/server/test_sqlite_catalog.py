"""The registry in a file behaves as the one in memory, and is there after a restart."""

from __future__ import annotations

import itertools
import sqlite3
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
from hypic_sdk.errors import ConfigError, HypicError, QuotaExceeded
from hypic_sdk.prompt.catalog import CatalogLimits, NewSegment
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import segment_id
from hypic_sdk.server.app import create_app
from hypic_sdk.server.segment_file import VERSION, SegmentFile
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.sqlite_catalog import SqliteCatalog
from tests.prompt import tiny
from tests.prompt.test_catalog import check_paging
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve
from tests.source_tree import REPOSITORY

LIMITS = CatalogLimits(num_segments=5, total_bytes=24, segment_bytes=12)
TEXTS = ("A town", "B town", "C", "🙂🙂", "a long text, too long", "", "\ud800", "DDDDDDDD", "E")

# some more often than others, so that calls meet
texts = st.sampled_from(("A town", "A town", "A town", "B town", "B town", *TEXTS))
known = texts.filter(lambda text: text != "\ud800")
names = st.none() | st.sampled_from(["x", "y", "z"])
values = st.sampled_from([None, True, False, 0, 1, 1.0, 2**60, 2**60 + 1, "1", "true", "é\0", ""])
keys = st.sampled_from(["a", "a.b", '"', "é", ""])
metadata = st.none() | st.dictionaries(keys, values, max_size=2)
calls = st.one_of(
    st.tuples(
        st.just("register"),
        st.builds(
            NewSegment,
            texts,
            external_id=names,
            title=names,
            metadata=metadata,
            ttl_s=st.sampled_from([None, 0, 1, 2]),
            priority=st.none() | st.sampled_from([0, 50, 99]),
        ),
        st.booleans(),
    ),
    st.tuples(st.sampled_from(["get", "delete"]), known),
    st.tuples(st.just("find_external"), st.sampled_from("xyz")),
    st.tuples(st.just("page"), st.none() | known, metadata),
    st.tuples(st.just("delete_many"), st.lists(known, max_size=3)),
    st.tuples(st.just("set_pin"), known, st.booleans(), st.sampled_from([None, 8, 9])),
    st.tuples(st.just("forget_expired"), st.lists(known, max_size=3)),
    st.tuples(st.sampled_from(["expired", "lapsed_pins", "kept_specially", "usage"])),
    st.tuples(st.just("wait"), st.integers(1, 2)),
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 7.0

    def __call__(self) -> float:
        return self.now_s


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except HypicError as error:
        return type(error), error.message, error.details


def do(catalog: Any, call: Any) -> Any:
    match call:
        case ("register", new, replace):
            return catalog.register(new, replace_external=replace)
        case ("page", after, says):
            after = None if after is None else segment_id(after)
            return catalog.page(after=after, limit=2, says=says)
        case ("find_external", name):
            return catalog.find_external(name)
        case ("delete_many" | "forget_expired" as method, some):
            return getattr(catalog, method)([segment_id(text) for text in some])
        case ("set_pin", text, is_pinned, end):
            end = end if is_pinned else None
            return catalog.set_pin(segment_id(text), is_pinned=is_pinned, expires_at=end)
        case ("expired" | "lapsed_pins" as method,):
            return sorted(getattr(catalog, method)(), key=lambda one: one.id)
        case (method,):
            return getattr(catalog, method)()
        case (method, text):
            return getattr(catalog, method)(segment_id(text))
    raise AssertionError(call)


@settings(max_examples=200)
@given(st.lists(calls, min_size=4, max_size=25))
def test_it_does_what_the_one_in_memory_does(plan):
    tokenizer, clock = tiny.tokenizer(), Clock()
    memory = MemoryCatalog(tokenizer.encode_text, tokenizer.fingerprint, limits=LIMITS, now_s=clock)
    with TemporaryDirectory() as folder, SegmentFile(Path(folder) / "segments") as file:
        SqliteCatalog(file, "other", tokenizer).register(NewSegment("A town", "x", ttl_s=1))
        catalog = SqliteCatalog(file, "ours", tokenizer, limits=LIMITS, now_s=clock)
        for call in plan:
            if call[0] == "wait":
                clock.now_s += call[1]
                continue
            assert outcome(lambda: do(catalog, call)) == outcome(lambda: do(memory, call))  # noqa: B023
        assert catalog.page(limit=99) == memory.page(limit=99)


@settings(max_examples=20)
@given(plan=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=30))
def test_whatever_is_deleted_meanwhile_every_other_is_seen_once(plan):
    with TemporaryDirectory() as folder, SegmentFile(Path(folder) / "segments") as file:
        check_paging(SqliteCatalog(file, "ours", tiny.tokenizer()), plan)


def test_a_page_goes_on_behind_one_whose_time_is_over_and_that_is_forgotten(tmp_path):
    clock = Clock()
    with SegmentFile(tmp_path / "segments") as file:
        tokenizer = tiny.tokenizer()
        memory = MemoryCatalog(tokenizer.encode_text, tokenizer.fingerprint, now_s=clock)
        for catalog in (SqliteCatalog(file, "ours", tokenizer, now_s=clock), memory):
            ids = [catalog.register(NewSegment(text, ttl_s=9))[0].id for text in "ab"]
            ids += [catalog.register(NewSegment(text))[0].id for text in "cd"]
            clock.now_s += 10
            assert catalog.forget_expired(ids[:2]) == 2
            assert [one.id for one in catalog.page(after=ids[0]).segments] == ids[2:]


# what the first version of this program wrote, as `iterdump` tells it
FIRST_VERSION = """
BEGIN TRANSACTION;
CREATE TABLE segments (
    number INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of registration
    namespace TEXT NOT NULL,
    id TEXT NOT NULL,
    text TEXT NOT NULL,
    num_bytes INTEGER NOT NULL,
    packed_ids BLOB NOT NULL,
    tokenizer_fingerprint TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    external_id TEXT,
    title TEXT,
    metadata TEXT NOT NULL DEFAULT '{}',
    UNIQUE (namespace, id),
    UNIQUE (namespace, external_id)
);
INSERT INTO "segments" VALUES(1,'ours','seg_g7vlnzsrajymbp4zszigndpednxxwfh7','A town',6,
X'2200000091010000','6cac3b67bffe31e784f777801cb81ad63d7f97fc1258781724b3f564d49efce7',
1700000000,'doc','T','{"page": 1, "\\u00e9": null}');
INSERT INTO "segments" VALUES(2,'ours','seg_gaqhiktwyrvc4hplzgjip62c3ufkf4kg','B town',6,
X'2300000091010000','6cac3b67bffe31e784f777801cb81ad63d7f97fc1258781724b3f564d49efce7',
1700000000,NULL,NULL,'{}');
INSERT INTO "segments" VALUES(3,'theirs','seg_g7vlnzsrajymbp4zszigndpednxxwfh7','A town',6,
X'2200000091010000','6cac3b67bffe31e784f777801cb81ad63d7f97fc1258781724b3f564d49efce7',
1700000001,'doc',NULL,'{}');
CREATE INDEX sizes ON segments (namespace, num_bytes);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('segments',3);
COMMIT;
PRAGMA user_version = 1;
"""


class TestVersions:
    def old_file(self, tmp_path: Path) -> Path:
        path = tmp_path / "segments"
        connection = sqlite3.connect(path)
        connection.executescript(FIRST_VERSION)
        connection.close()
        return path

    def test_a_file_of_the_first_version_is_taken_over(self, tmp_path):
        path = self.old_file(tmp_path)
        for _ in range(2):  # the second time it is of this version
            with SegmentFile(path) as file:
                catalog = SqliteCatalog(file, "ours", tiny.tokenizer())
                first, second = catalog.page().segments
                assert (first.text, first.external_id, first.title) == ("A town", "doc", "T")
                assert dict(first.metadata) == {"page": 1, "é": None}
                assert (second.text, second.expires_at, second.priority) == ("B town", None, 50)
                assert not second.is_pinned
                assert catalog.register(NewSegment("B town"))[1] is False
                theirs = SqliteCatalog(file, "theirs", tiny.tokenizer())
                assert theirs.find_external("doc").created_at == 1_700_000_001
        with SegmentFile(path) as file:
            catalog = SqliteCatalog(file, "ours", tiny.tokenizer())
            catalog.register(NewSegment("C town", ttl_s=60, priority=9))
            assert catalog.page().segments[-1].priority == 9

    def test_an_upgrade_that_fails_changes_nothing(self, tmp_path):
        path = self.old_file(tmp_path)
        connection = sqlite3.connect(path)
        connection.execute("ALTER TABLE segments ADD COLUMN is_pinned INTEGER")  # in the way
        connection.close()
        before = [(one[0], one[-1]) for one in columns(path)]
        with pytest.raises(ConfigError, match="is_pinned"):
            SegmentFile(path)
        assert [(one[0], one[-1]) for one in columns(path)] == before

    def test_a_later_version_is_refused(self, tmp_path):
        path = self.old_file(tmp_path)
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
        connection.close()
        with pytest.raises(ConfigError, match=f"version {VERSION + 1}"):
            SegmentFile(path)


def columns(path: Path) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA table_info(segments)").fetchall()
    finally:
        connection.close()


def test_it_is_there_after_the_process_was_killed(tmp_path):
    path = tmp_path / "segments"
    script = f"""
import os, signal
from pathlib import Path
from hypic_sdk.prompt.catalog import NewSegment
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.segment_file import SegmentFile
from hypic_sdk.server.sqlite_catalog import SqliteCatalog
from tests.prompt import tiny
from tests.prompt.test_catalog import check_paging
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
            open_catalog=lambda namespace, tokenizer, limits: SqliteCatalog(
                file, namespace, tokenizer, limits=limits
            ),
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


def test_a_time_to_live_that_is_over_before_the_call_is(tmp_path):
    """The clock goes on in every call, and jumps over whole seconds."""
    times = itertools.count(7.9, 1.5)
    with SegmentFile(tmp_path / "segments") as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer(), now_s=lambda: next(times))
        for text in ("A town", "A town", "B town"):
            segment, _ = catalog.register(NewSegment(text, ttl_s=1))
            assert segment.text == text


def test_a_deleted_text_stands_nowhere_in_the_files(tmp_path):
    with SegmentFile(tmp_path / "segments") as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer())
        secret = "the secret of the town " * 50
        catalog.register(NewSegment(secret, title="secret title"))
        assert catalog.delete(segment_id(secret))
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in held


def test_nor_one_whose_time_is_over(tmp_path):
    clock = Clock()
    with SegmentFile(tmp_path / "segments") as file:
        catalog = SqliteCatalog(file, "ours", tiny.tokenizer(), now_s=clock)
        catalog.register(NewSegment("the secret of the town " * 50, ttl_s=5))
        clock.now_s += 6
        [over] = catalog.expired()
        assert catalog.get(over.id) is None
        assert catalog.forget_expired([over.id]) == 1
        held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret" not in held


def test_nor_in_the_log_of_a_process_that_died_before_it_was_emptied(tmp_path, monkeypatch):
    path = tmp_path / "segments"
    monkeypatch.setattr(SegmentFile, "forget_log", lambda self: None)
    killed = SegmentFile(path)
    catalog = SqliteCatalog(killed, "ours", tiny.tokenizer())
    catalog.register(NewSegment("the secret of the town " * 50))
    catalog.delete(segment_id("the secret of the town " * 50))
    left = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    killed.close()
    monkeypatch.undo()
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    assert b"secret" in b"".join(left.values())
    with SegmentFile(path):
        held = b"".join(one.read_bytes() for one in tmp_path.iterdir())
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
                except QuotaExceeded:
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
