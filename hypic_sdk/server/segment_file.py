"""The SQLite file of registered segments: its schema, its transactions."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, final

from hypic_sdk.errors import ConfigError
from hypic_sdk.prompt.catalog import Metadata, says

# what makes a file of each version out of one of the version before; 0 is an empty file
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
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
        )
        """,
        "CREATE INDEX sizes ON segments (namespace, num_bytes)",
    ),
    (
        "ALTER TABLE segments ADD COLUMN expires_at INTEGER",
        "ALTER TABLE segments ADD COLUMN priority INTEGER NOT NULL DEFAULT 50",
        "ALTER TABLE segments ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE segments ADD COLUMN pin_expires_at INTEGER",
        # counts and sizes are read from an index, without touching a text
        "DROP INDEX sizes",
        "CREATE INDEX sizes ON segments (namespace, expires_at, num_bytes)",
        "CREATE INDEX kept ON segments (namespace) WHERE is_pinned OR priority != 50",
    ),
)
VERSION = len(_MIGRATIONS)


@lru_cache(maxsize=64)
def _loaded(wanted: str) -> Metadata:
    loaded: Metadata = json.loads(wanted)
    return loaded


def _says(metadata: str, wanted: str) -> bool:
    """`prompt.catalog.says` for rows."""
    return says(json.loads(metadata), _loaded(wanted))


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
        if not 0 <= version <= VERSION:
            raise ConfigError(f"{path} is of version {version}, this program knows {VERSION}")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = NORMAL")
        # a deleted text is overwritten, not only forgotten
        self._connection.execute("PRAGMA secure_delete = ON")
        self._connection.create_function("says", 2, _says, deterministic=True)
        with self.writing() as connection:
            for steps in _MIGRATIONS[version:]:
                for step in steps:
                    connection.execute(step)
            connection.execute(f"PRAGMA user_version = {VERSION}")
        # a process that died may have left deleted texts in the log
        self.forget_log()

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
