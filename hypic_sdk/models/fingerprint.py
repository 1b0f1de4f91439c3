"""SHA-256 of a model's files, computed while they load and remembered for the next start."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from hypic_sdk.errors import ModelFileError

logger = logging.getLogger(__name__)

_TAG = b"hypic.model.v1\0"
_CACHE_VERSION = 1
_READ_BYTES = 1 << 20
_MAX_THREADS = 4
# a file this young may be written again within the resolution of its time stamp
_SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells that a file is still the one that was hashed."""

    path: str
    size_bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """The file's state now.  Raises ModelFileError if it is missing or no regular file."""
        try:
            status = path.stat()
        except OSError as error:
            raise ModelFileError(f"can not read {path}: {error}", path=str(path)) from error
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a regular file", path=str(path))
        return cls(str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass
class DigestCache:
    """Digests by (path, size, time of modification, inode), in one small JSON file or nowhere.

    A file that can not be read or written costs the memory of it, never a start.
    """

    path: Path | None = None
    known: dict[FileState, str] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> DigestCache:
        """Read the cache file; anything wrong with it counts as empty."""
        cache = cls(path)
        if path is None:
            return cache
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            content = json.loads(path.read_text("utf-8"))
            if content["version"] == _CACHE_VERSION:
                for *state, digest in content["files"]:
                    if len(bytes.fromhex(digest)) == hashlib.sha256().digest_size:
                        cache.known[FileState(*state)] = digest
        return cache

    def remember(self, digests: Mapping[FileState, str]) -> None:
        """Add digests and write the file, whole or not at all."""
        oldest_ns = time.time_ns() - int(_SETTLED_S * 1e9)
        settled = {s: d for s, d in digests.items() if s.modified_ns < oldest_ns}
        paths = {state.path for state in settled}
        kept = {s: d for s, d in self.known.items() if s.path not in paths}
        if self.path is None or {**kept, **settled} == self.known:
            return
        self.known = {**kept, **settled}
        rows = [
            [s.path, s.size_bytes, s.modified_ns, s.inode, digest]
            for s, digest in self.known.items()
        ]
        try:
            _write_whole(self.path, json.dumps({"version": _CACHE_VERSION, "files": rows}))
        except OSError as error:
            logger.warning("digests are not remembered: %s", error)


class FilesHash:
    """Hashes files in threads of its own; leave the `with` block to stop them."""

    def __init__(self, paths: Sequence[Path], cache: DigestCache) -> None:
        self._cache = cache
        self._states = {path.name: FileState.of(path) for path in paths}
        self._pool = ThreadPoolExecutor(
            max_workers=min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="model-hash"
        )
        self._digests: dict[str, Future[str] | str] = {}
        for path in paths:
            known = cache.known.get(self._states[path.name])
            self._digests[path.name] = known or self._pool.submit(_file_digest, path)

    def __enter__(self) -> FilesHash:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def fingerprint(self, paths: Sequence[Path]) -> str:
        """Wait for every file and combine names and digests, in order of names.

        Raises:
            ModelFileError: a file can not be read, or is no longer the one that was opened.
        """
        total, digests = hashlib.sha256(_TAG), {}
        for path in sorted(paths, key=lambda item: item.name):
            entry = self._digests[path.name]
            digest = entry if isinstance(entry, str) else entry.result()
            state = self._states[path.name]
            if FileState.of(path) != state:
                raise ModelFileError(f"{path} changed while it was read", path=str(path))
            digests[state] = digest
            total.update(len(path.name).to_bytes(4, "little") + path.name.encode())
            total.update(bytes.fromhex(digest))
        self._cache.remember(digests)
        return total.hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
    except OSError as error:
        raise ModelFileError(f"can not read {path}: {error}", path=str(path)) from error
    return digest.hexdigest()


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # mkstemp makes the file 0600
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
