"""How much one tenant may have of each thing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from hypic_sdk.errors import ConfigError
from hypic_sdk.prompt.catalog import CatalogLimits

_AMOUNT = re.compile(r"([0-9]{1,18})([KMG]iB)?")
_UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of one tenant; none is no limit of its own.

    What is over `text_bytes`, `num_segments` or `pinned_bytes` is refused with 409 and both
    numbers; over `warm_jobs` or `in_flight` with 429 and a time to wait.  Entries over
    `cached_bytes` go, the tenant's own least recently used ones first; a warm job that can never
    be warm as a whole is refused.
    """

    num_segments: int = 100_000
    text_bytes: int = 1 << 30
    cached_bytes: int | None = None
    pinned_bytes: int | None = None
    warm_jobs: int = 16  # running at once
    in_flight: int = 512  # requests at once

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is not None and value < 0:
                raise ConfigError(f"the quota {one.name} must not be negative, got {value}")

    @property
    def of_texts(self) -> CatalogLimits:
        """What the registry goes by."""
        return CatalogLimits(num_segments=self.num_segments, total_bytes=self.text_bytes)

    def with_words(self, words: Iterable[str]) -> Quota:
        """Changed by words like `num_segments=1000` or `text_bytes=64MiB`.

        Raises:
            ConfigError: a word that is none of these, or twice the same.
        """
        names = {one.name for one in fields(self)}
        values: dict[str, int] = {}
        for word in words:
            name, _, amount = word.partition("=")
            match = _AMOUNT.fullmatch(amount)
            if name not in names or match is None:
                raise ConfigError(
                    f"a quota is one of {', '.join(sorted(names))}, `=` and a number with or "
                    f"without KiB, MiB or GiB; got {word!r}"
                )
            if name in values:
                raise ConfigError(f"the quota {name} is given twice")
            values[name] = int(match[1]) * _UNITS[match[2]]
        return replace(self, **values)
