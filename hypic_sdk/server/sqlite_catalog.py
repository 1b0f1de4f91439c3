"""Registered segments in a file: there after a restart, gone for good when deleted."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, final

from hypic_sdk.errors import ConfigError, PoolExhausted, RequestError
from hypic_sdk.prompt.catalog import CatalogLimits, CatalogPage, NewSegment, RegisteredSegment
from hypic_sdk.prompt.segment import SegmentId, segment_id, token_bytes
from hypic_sdk.prompt.tokenizer import PromptTokenizer, check_text

_VERSION = 1
_TABLES = f"""
CREATE TABLE IF NOT EXISTS segments (
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
    metadata TEXT NOT NULL DEFAULT '{{}}',
    UNIQUE (namespace, id),
    UNIQUE (namespace, external_id)
);
-- counts and sizes are read from here, without touching a text
CREATE INDEX IF NOT EXISTS sizes ON segments (namespace, num_bytes);
PRAGMA user_version = {_VERSION};
"""
_COLUMNS = "id, text, packed_ids, tokenizer_fingerprint, created_at, external_id, title, metadata"


@final
class SegmentFile:
    """One SQLite file with the segments of every tenant; a context manager.

    One connection, one writer at a time.  A commit survives the death of this process.
    """

    def __init__(self, path: Path) -> None:
        """Open or make the file, readable by its owner only.

        Raises:
            ConfigError: a place that can not be written, or a file of something else.
        """
        self._lock = threading.RLock()
        try:
            path.touch(mode=0o600)
            path.chmod(0o600)
            self._connection = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=30.0
            )
            self._set_up(path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"the segments file {path} can not be used: {error}") from error

    def _set_up(self, path: Path) -> None:
        [version] = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise ConfigError(f"{path} is of version {version}, this program knows {_VERSION}")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        # a deleted text is overwritten, not only forgotten
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.executescript(_TABLES)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of the block or nothing."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock, closing(self._connection.execute(statement, values)) as cursor:
            return cursor.fetchall()

    def forget_log(self) -> None:
        """Empty the write-ahead log, in which deleted texts would otherwise still stand."""
        with self._lock:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file.  A second time does nothing."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


@final
class SqliteCatalog:
    """The segments of one namespace in a file; see `SegmentCatalog` for its calls."""

    def __init__(
        self,
        file: SegmentFile,
        namespace: str,
        tokenizer: PromptTokenizer,
        *,
        limits: CatalogLimits | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._file = file
        self._namespace = namespace
        self._tokenizer = tokenizer
        self._limits = limits or CatalogLimits()
        self._now_s = now_s

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """See `SegmentCatalog.register`."""
        num_bytes = self._check_new(new)
        id_ = segment_id(new.text)
        known = self.get(id_)
        # tokenised outside the transaction; a race only means that the same ids are made twice
        packed = self._packed_ids(new.text, known)
        with self._file.writing() as connection:
            created = self.get(id_) is None
            self._check_external(new.external_id, id_, replace_external)
            if created:
                self._check_room(num_bytes)
                connection.execute(
                    "INSERT INTO segments (namespace, id, text, num_bytes, packed_ids, "
                    "tokenizer_fingerprint, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (self._namespace, id_, new.text, num_bytes, packed,
                     self._tokenizer.fingerprint, int(self._now_s())),
                )  # fmt: skip
            self._describe(connection, id_, new, packed)
        segment = self.get(id_)
        assert segment is not None, "it was written just now"
        return segment, created

    def _packed_ids(self, text: str, known: RegisteredSegment | None) -> bytes:
        """The ids of a text, made anew if another tokenizer made those that are kept."""
        if known is not None and known.tokenizer_fingerprint == self._tokenizer.fingerprint:
            return known.packed_ids
        packed = token_bytes(self._tokenizer.encode_text(text))
        if not packed:
            raise RequestError("a segment needs at least one token")
        return packed

    def _describe(
        self, connection: sqlite3.Connection, id_: str, new: NewSegment, packed: bytes
    ) -> None:
        """Write what was said anew; what was left out stays."""
        if new.external_id is not None:
            connection.execute(
                "UPDATE segments SET external_id = NULL WHERE namespace = ? AND external_id = ?",
                (self._namespace, new.external_id),
            )
        metadata = None if new.metadata is None else json.dumps(dict(new.metadata))
        connection.execute(
            "UPDATE segments SET external_id = coalesce(?, external_id), "
            "title = coalesce(?, title), metadata = coalesce(?, metadata), packed_ids = ?, "
            "tokenizer_fingerprint = ? WHERE namespace = ? AND id = ?",
            (new.external_id, new.title, metadata, packed, self._tokenizer.fingerprint,
             self._namespace, id_),
        )  # fmt: skip

    def get(self, id_: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.get`."""
        return self._one("id", id_)

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.find_external`."""
        return self._one("external_id", external_id)

    def _one(self, column: str, value: str) -> RegisteredSegment | None:
        rows = self._file.rows(
            f"SELECT {_COLUMNS} FROM segments WHERE namespace = ? AND {column} = ?",
            self._namespace,
            value,
        )
        return _segment(rows[0]) if rows else None

    def page(self, *, after: str | None = None, limit: int = 100) -> CatalogPage:
        """See `SegmentCatalog.page`."""
        number = 0
        if after is not None:
            rows = self._file.rows(
                "SELECT number FROM segments WHERE namespace = ? AND id = ?", self._namespace, after
            )
            if not rows:
                raise RequestError(f"no segment {after} to list after", after=after)
            [(number,)] = rows
        rows = self._file.rows(
            f"SELECT {_COLUMNS} FROM segments WHERE namespace = ? AND number > ? "
            "ORDER BY number LIMIT ?",
            self._namespace,
            number,
            limit + 1,
        )
        return CatalogPage(tuple(map(_segment, rows[:limit])), len(rows) > limit)

    def delete(self, id_: str) -> bool:
        """See `SegmentCatalog.delete`."""
        with self._file.writing() as connection:
            done = connection.execute(
                "DELETE FROM segments WHERE namespace = ? AND id = ?", (self._namespace, id_)
            )
            deleted = done.rowcount > 0
        if deleted:
            self._file.forget_log()
        return deleted

    def _check_new(self, new: NewSegment) -> int:
        if not new.text:
            raise RequestError("a segment needs text")
        check_text(new.text, "a segment's text")
        num_bytes = len(new.text.encode())
        if num_bytes > self._limits.segment_bytes:
            raise RequestError(
                f"a segment's text has {num_bytes} bytes, limit is {self._limits.segment_bytes}",
                num_bytes=num_bytes,
                limit_bytes=self._limits.segment_bytes,
            )
        return num_bytes

    def _check_room(self, num_bytes: int) -> None:
        [(num_segments, total_bytes)] = self._file.rows(
            "SELECT count(*), coalesce(sum(num_bytes), 0) FROM segments WHERE namespace = ?",
            self._namespace,
        )
        if num_segments >= self._limits.num_segments:
            raise PoolExhausted(
                f"{num_segments} segments are registered, no more may be",
                limit_segments=self._limits.num_segments,
            )
        if total_bytes + num_bytes > self._limits.total_bytes:
            raise PoolExhausted(
                f"registered texts would take {total_bytes + num_bytes} bytes, limit is "
                f"{self._limits.total_bytes}",
                needed_bytes=total_bytes + num_bytes,
                limit_bytes=self._limits.total_bytes,
            )

    def _check_external(self, external_id: str | None, id_: SegmentId, replace_: bool) -> None:
        if external_id is None or replace_:
            return
        named = self.find_external(external_id)
        if named is not None and named.id != id_:
            raise RequestError(
                f"external id {external_id!r} names {named.id}, whose text is another",
                external_id=external_id,
                segment_id=named.id,
            )


def _segment(row: tuple[Any, ...]) -> RegisteredSegment:
    id_, text, packed, fingerprint, created_at, external_id, title, metadata = row
    said = MappingProxyType(json.loads(metadata))
    return RegisteredSegment(
        SegmentId(id_), text, packed, fingerprint, created_at, external_id, title, said
    )
