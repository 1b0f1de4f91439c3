"""Where a bench writes: looked at before anything is measured, and one run's alone.

One rule for every bench: what an earlier run left is not written over.  A bench that goes on where
it stopped finds its own rows (`kept_rows` refuses those of another run); any other is refused.  Who
says `--overwrite` has it put aside, with `.old` behind its name; where that is taken, with `.old2`,
`.old3` and so on: what was put aside before stays, and the highest number was the last.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from tempfile import TemporaryFile

from hypic_sdk.errors import ConfigError

_ASIDE = re.compile(r"\.old(\d*)$")
INSTEAD = "name another folder, or add --overwrite"


def named(text: str | Path) -> Path:
    """A path as a command line has it.  Raises ConfigError for an empty one.

    As a path, an empty text would be the current folder: `--out "$FOLDER"`, and there is none.
    """
    if not str(text).strip():
        raise ConfigError("an empty path names no place: name one (the current folder is .)")
    return Path(text)


@contextmanager
def claimed(
    folder: Path | None, bench: str, *beside: str, overwrite: bool = False, resumes: bool = False
) -> Iterator[None]:
    """Hold a folder for one run of a bench, which is made if need be.

    Args:
        folder: none: nothing is written, and nothing looked at.
        bench: which writes `<bench>.json`.
        beside: patterns of what else it writes there.
        overwrite: what an earlier run left is put aside.
        resumes: the bench goes on with `<bench>_*.jsonl` of an earlier run.
    Raises:
        ConfigError: nothing can be written there, another run does so now, or an earlier one did.
    """
    if folder is None:
        yield
        return
    check_folder(folder)
    with _alone(folder, bench):
        rows = f"{bench}_*.jsonl"
        own = (f"{bench}.json", *beside, rows)
        there = _found(folder, *own)
        if overwrite:
            _put_aside(there, _next_ending(folder, *own))
        elif resumes:
            _check_rows(folder / f"{bench}.json", _found(folder, rows))
        elif there:
            raise ConfigError(f"{there[0]} is of an earlier run: {INSTEAD}")
        yield


def check_folder(folder: Path) -> None:
    """Make a folder and try to write into it.  Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except FileExistsError as error:
        raise ConfigError(f"{folder} is a file, and results need a folder") from error
    except OSError as error:
        raise _unusable(folder, error) from error


def claim_file(path: Path | None, *, overwrite: bool) -> None:
    """Make way for a file of one run.

    Args:
        path: none: nothing is written.
        overwrite: one that is there is put aside.
    Raises:
        ConfigError: it can not be written, or it is there and is not to be lost.
    """
    check_file(path)
    if path is not None and path.exists():
        if not overwrite:
            raise ConfigError(f"{path} is there already: name another, or add --overwrite")
        _put_aside([path], _next_ending(path.parent, escape(path.name)))


def check_file(path: Path | None) -> None:
    """Look whether a file can be written, or written on; it is not changed.

    Args:
        path: none: nothing is written.
    Raises:
        ConfigError: it can not.
    """
    if path is None:
        return
    check_folder(path.parent)
    try:
        if path.exists():
            with path.open("ab"):
                pass
    except OSError as error:
        raise _unusable(path, error) from error


def _found(folder: Path, *patterns: str) -> list[Path]:
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _check_rows(report: Path, rows: list[Path]) -> None:
    """Whether what is there can be gone on with, as far as files tell."""
    if report.exists() and not rows:
        raise ConfigError(
            f"{report} is of an earlier run that left no rows to go on with: {INSTEAD}"
        )
    for path in (*rows, report):
        check_file(path)


def _put_aside(paths: Sequence[Path], ending: str) -> None:
    for path in paths:
        try:
            path.rename(path.with_name(path.name + ending))
        except OSError as error:
            raise _unusable(path, error) from error


def _next_ending(folder: Path, *patterns: str) -> str:
    """Of all that one run left; behind those of every run before, so that nothing has it yet."""
    kept = _found(folder, *(f"{pattern}.old*" for pattern in patterns))
    numbers = [int(found[1] or 1) for path in kept if (found := _ASIDE.search(path.name))]
    number = max(numbers, default=0) + 1
    return f".old{number}" if number > 1 else ".old"


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} can not be written: {error.strerror or error}; name another place")


@contextmanager
def _alone(folder: Path, bench: str) -> Iterator[None]:
    """No other run of this bench writes there meanwhile; the kernel forgets a run that died."""
    path = folder / f".{bench}.lock"
    held = _locked(path)
    if held is None:
        raise ConfigError(
            f"a run of `hypic bench {bench}` writes into {folder} now: name another folder, or wait"
        )
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(held)


def _locked(path: Path) -> int | None:
    """A file that is open and locked; none where somebody else holds it.  Raises ConfigError."""
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # who held it before takes its name away at the end, and what is open here may have none
        is_named = os.fstat(held).st_nlink > 0
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            return None
        raise _unusable(path, error) from error
    if not is_named:
        os.close(held)
        return None
    return held
