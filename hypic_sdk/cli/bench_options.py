"""Options of the benches: numbers that have bounds, and the place where results go."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hypic_sdk.cli.options import finite

WEEK_S = 604_800.0
MOST_TOKENS = 10_000_000  # of a prompt or a document: more than any model takes
MOST_RUNS = 10_000  # of anything that is measured one after the other
MOST_DOCUMENTS = 1_000_000

OverwriteOption = Annotated[
    bool,
    typer.Option(
        "--overwrite",
        help="Put aside what an earlier run left there, with .old behind its name, or .old2, .old3 "
        "and so on: what was put aside before stays. Without it that is refused.",
    ),
]


def number(*names: str, least: float, most: float, help: str | None = None) -> Any:
    """An option that is a number within both bounds, or none where it may be left out.

    Infinity is out of every range, but what is no number is on neither side of a bound.
    """
    return typer.Option(*names, help=help, min=least, max=most, callback=_checked)


def _checked(value: float | list[int] | None) -> float | list[int] | None:
    """The same.  Raises BadParameter for nan."""
    return finite(value) if isinstance(value, float) else value


PerCountOption = Annotated[int, number("--per-count", least=1, most=MOST_RUNS)]
RowSecondsOption = Annotated[
    float, number("--seconds", least=0.0, most=WEEK_S, help="No row begins later than this.")
]
