"""Rows of a measurement, written as they come: a run that was cut off goes on where it stopped."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from hypic_sdk.bench.destination import INSTEAD
from hypic_sdk.errors import ConfigError


def finite(value: object) -> object:
    """The same value with none for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return [finite(one) for one in value] if isinstance(value, list | tuple) else value


@final
class KeptRows:
    """A list of rows, and a file with a line for each, below a line of what they are about."""

    def __init__(self, path: Path | None, about: Mapping[str, object]) -> None:
        """Read what an earlier run about the same left.

        Args:
            path: none: nothing is written.
            about: what all rows have in common (model, seed, sizes, machine, commit ..).
        Raises:
            ConfigError: the file holds rows about anything else; it stays as it is.
        """
        self.rows: list[dict[str, Any]] = []
        self._path = path
        if path is None:
            return
        own = finite(dict(about))
        head = json.dumps({"about": own})
        lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
        if lines and lines[0] == head:
            self.rows = _whole_rows(lines[1:])
        elif lines:
            others = _others(lines[0], own)
            raise ConfigError(f"{path} holds rows of another run (another {others}): {INSTEAD}")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        path.write_text(f"{head}\n{text}", encoding="utf-8")

    def add(self, row: Mapping[str, object]) -> None:
        """Keep a row; it is on disk when this returns."""
        plain = finite(dict(row))
        assert isinstance(plain, dict)
        self.rows.append(plain)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain) + "\n")


def _others(head: str, about: object) -> str:
    """Names of what a run with this first line had otherwise."""
    with suppress(ValueError, AttributeError, KeyError, TypeError):
        theirs = json.loads(head)["about"].items()
        ours = about.items() if isinstance(about, dict) else ()
        # as JSON, since a value may be a list, and a list there was a tuple here
        changed = {(key, json.dumps(value)) for key, value in theirs}
        changed ^= {(key, json.dumps(value)) for key, value in ours}
        return ", ".join(sorted({key for key, _ in changed}))
    return "kind of file"


def _whole_rows(lines: list[str]) -> list[dict[str, Any]]:
    """The rows up to one that was being written when the run was cut off."""
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


@final
class TimeLimit:
    """How long a run may take, and how long it has taken."""

    def __init__(self, seconds: float | None = None) -> None:
        """
        Args:
            seconds: none: as long as it takes.
        """
        self._seconds = math.inf if seconds is None else seconds
        self._started_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def is_over(self, share: float = 1.0) -> bool:
        """Whether that share of the time has passed."""
        return self.passed_s >= share * self._seconds
