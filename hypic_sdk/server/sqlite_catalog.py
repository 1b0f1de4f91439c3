"""Registered segments in a file: there after a restart, gone for good when deleted."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any, final

from hypic_sdk.errors import RequestError
from hypic_sdk.prompt.catalog import (
    CatalogLimits,
    CatalogPage,
    CatalogUsage,
    Metadata,
    NewSegment,
    PastPlaces,
    RegisteredSegment,
    check_external,
    ends_at,
)
from hypic_sdk.prompt.segment import SegmentId, segment_id, token_bytes
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.server.segment_file import SegmentFile

_COLUMNS = (
    "id, text, packed_ids, tokenizer_fingerprint, created_at, external_id, title, metadata, "
    "expires_at, priority, is_pinned, pin_expires_at"
)
_LIVE = "namespace = ? AND (expires_at IS NULL OR expires_at > ?)"


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
        self._past = PastPlaces()

    def register(
        self, new: NewSegment, *, replace_external: bool = False
    ) -> tuple[RegisteredSegment, bool]:
        """See `SegmentCatalog.register`."""
        num_bytes = self._limits.bytes_of(new)
        id_ = segment_id(new.text)
        # tokenised outside the transaction; a race only means that the same ids are made twice
        packed = self._packed_ids(new.text, self.get(id_))
        now_s = self._now_s()
        with self._file.writing() as connection:
            known = self.get(id_)
            named = None if new.external_id is None else self.find_external(new.external_id)
            check_external(
                new.external_id,
                id_,
                None if named is None else named.id,
                replace_external=replace_external,
            )
            if known is None:
                self._limits.check_room(self.usage(), num_bytes)
                self._insert(connection, id_, new.text, num_bytes, packed, int(now_s))
            known_end = None if known is None else known.expires_at
            self._describe(connection, id_, new, packed, ends_at(new, now_s, known_end))
            # as of the same moment: a short time to live may be over by now
            [segment] = self._live("AND id = ?", id_, now_s=now_s)
            self._past.forget(id_)
        return segment, known is None

    def _packed_ids(self, text: str, known: RegisteredSegment | None) -> bytes:
        """The ids of a text, made anew if another tokenizer made those that are kept."""
        if known is not None and known.tokenizer_fingerprint == self._tokenizer.fingerprint:
            return known.packed_ids
        packed = token_bytes(self._tokenizer.encode_segment(text))
        if not packed:
            raise RequestError("a segment needs at least one token")
        return packed

    def _insert(
        self, connection: sqlite3.Connection, id_: str, text: str, num_bytes: int, packed: bytes,
        now_s: int,
    ) -> None:  # fmt: skip
        """Write a text that nobody finds, over one whose time is over."""
        connection.execute(
            "DELETE FROM segments WHERE namespace = ? AND id = ?", (self._namespace, id_)
        )
        connection.execute(
            "INSERT INTO segments (namespace, id, text, num_bytes, packed_ids, "
            "tokenizer_fingerprint, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._namespace, id_, text, num_bytes, packed, self._tokenizer.fingerprint, now_s),
        )

    def _describe(
        self,
        connection: sqlite3.Connection,
        id_: str,
        new: NewSegment,
        packed: bytes,
        expires_at: int | None,
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
            "title = coalesce(?, title), metadata = coalesce(?, metadata), "
            "priority = coalesce(?, priority), expires_at = ?, packed_ids = ?, "
            "tokenizer_fingerprint = ? WHERE namespace = ? AND id = ?",
            (new.external_id, new.title, metadata, new.priority, expires_at, packed,
             self._tokenizer.fingerprint, self._namespace, id_),
        )  # fmt: skip

    def get(self, id_: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.get`."""
        return self._one("id", id_)

    def find_external(self, external_id: str) -> RegisteredSegment | None:
        """See `SegmentCatalog.find_external`."""
        return self._one("external_id", external_id)

    def _one(self, column: str, value: str) -> RegisteredSegment | None:
        found = self._live(f"AND {column} = ?", value)
        return found[0] if found else None

    def _live(
        self, condition: str, *values: Any, now_s: float | None = None
    ) -> list[RegisteredSegment]:
        """Segments whose time is not over, as they are then (none: now)."""
        now_s = self._now_s() if now_s is None else now_s
        rows = self._file.rows(
            f"SELECT {_COLUMNS} FROM segments WHERE {_LIVE} {condition}",
            self._namespace,
            now_s,
            *values,
        )
        return [_segment(row).as_of(now_s) for row in rows]

    def page(
        self, *, after: str | None = None, limit: int = 100, says: Metadata | None = None
    ) -> CatalogPage:
        """See `SegmentCatalog.page`."""
        number = 0 if after is None else self._number(after)
        condition = "AND number > ?"
        values: list[Any] = [number]
        if says is not None:
            condition += " AND says(metadata, ?)"
            values.append(json.dumps(dict(says), sort_keys=True))
        found = self._live(f"{condition} ORDER BY number LIMIT ?", *values, limit + 1)
        return CatalogPage(tuple(found[:limit]), len(found) > limit)

    def _number(self, after: str) -> int:
        """The place of a segment, also of one that is over or was deleted."""
        rows = self._file.rows(
            "SELECT number FROM segments WHERE namespace = ? AND id = ?", self._namespace, after
        )
        number: int | None = rows[0][0] if rows else self._past.number(after)
        if number is None:
            raise RequestError(f"no segment {after} to list after", after=after)
        return number

    def delete(self, id_: str) -> bool:
        """See `SegmentCatalog.delete`."""
        return bool(self.delete_many([id_]))

    def delete_many(self, ids: Iterable[str]) -> set[str]:
        """See `SegmentCatalog.delete_many`."""
        return self._delete(ids, _LIVE)

    def _delete(self, ids: Iterable[str], condition: str) -> set[str]:
        now_s = self._now_s()
        with self._file.writing() as connection:
            gone: dict[str, int] = {}
            for id_ in ids:
                named = (self._namespace, now_s, id_)
                where = f"FROM segments WHERE {condition} AND id = ?"
                for (number,) in connection.execute(f"SELECT number {where}", named).fetchall():
                    connection.execute(f"DELETE {where}", named)
                    gone[id_] = number
            for id_, number in gone.items():
                self._past.note(id_, number)
        if gone:
            self._file.forget_log()
        return set(gone)

    def set_pin(
        self, id_: str, *, is_pinned: bool, expires_at: int | None = None
    ) -> RegisteredSegment | None:
        """See `SegmentCatalog.set_pin`."""
        with self._file.writing() as connection:
            connection.execute(
                f"UPDATE segments SET is_pinned = ?, pin_expires_at = ? WHERE {_LIVE} AND id = ?",
                (is_pinned, expires_at, self._namespace, self._now_s(), id_),
            )
        return self.get(id_)

    def usage(self) -> CatalogUsage:
        """See `SegmentCatalog.usage`."""
        [(num_segments, num_bytes)] = self._file.rows(
            f"SELECT count(*), coalesce(sum(num_bytes), 0) FROM segments WHERE {_LIVE}",
            self._namespace,
            self._now_s(),
        )
        return CatalogUsage(num_segments, num_bytes)

    def expired(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.expired`."""
        rows = self._file.rows(
            f"SELECT {_COLUMNS} FROM segments WHERE namespace = ? AND expires_at <= ?",
            self._namespace,
            self._now_s(),
        )
        return tuple(map(_segment, rows))

    def forget_expired(self, ids: Iterable[str]) -> int:
        """See `SegmentCatalog.forget_expired`."""
        return len(self._delete(ids, "namespace = ? AND expires_at <= ?"))

    def lapsed_pins(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.lapsed_pins`."""
        with self._file.writing() as connection:
            lapsed = self._live("AND is_pinned AND pin_expires_at <= ?", self._now_s())
            connection.executemany(
                "UPDATE segments SET is_pinned = 0, pin_expires_at = NULL "
                "WHERE namespace = ? AND id = ?",
                [(self._namespace, one.id) for one in lapsed],
            )
        return tuple(lapsed)

    def kept_specially(self) -> tuple[RegisteredSegment, ...]:
        """See `SegmentCatalog.kept_specially`."""
        found = self._live("AND (is_pinned OR priority != 50) ORDER BY number")
        return tuple(one for one in found if one.is_kept_specially)


def _segment(row: tuple[Any, ...]) -> RegisteredSegment:
    id_, text, packed, fingerprint, created_at, external_id, title, metadata, *kept = row
    expires_at, priority, is_pinned, pin_expires_at = kept
    return RegisteredSegment(
        SegmentId(id_),
        text,
        packed,
        fingerprint,
        created_at,
        external_id,
        title,
        MappingProxyType(json.loads(metadata)),
        expires_at,
        priority,
        bool(is_pinned),
        pin_expires_at,
    )
