"""Write the figures of the reader's model card from its metrics, so that none is typed by hand.

    python -m hypic_sdk.demo.card [--model hypic_sdk/demo/reader]

Standard library only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- begin figures -->\n", "<!-- end figures -->\n"
MODES = ("composed", "state_zeroed", "keys_removed")
HEAD = (
    "arm",
    "n",
    "full recompute",
    "every word taught",
    "some word new",
    "by documents 2 / 4 / 8 / 16",
    "composed",
    "state zeroed",
    "keys removed",
)


def _interval(one: Mapping[str, float]) -> str:
    return f"{one['em']:.1f} [{one['low']:.1f}, {one['high']:.1f}]"


def _words(row: Mapping[str, Any], which: str) -> str:
    part = row["by_words"].get(which)
    return f"{_interval(part)} of {part['n']}" if part and len(row["by_words"]) > 1 else "-"


def _arms(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    found = {(row["arm"], row["mode"]): row for row in rows}
    for row in rows:
        if row["mode"] != "full":
            continue
        name = row["arm"]
        others = [found.get((name, mode)) for mode in MODES]
        yield (
            name,
            str(row["n"]),
            _interval(row),
            _words(row, "known"),
            _words(row, "new"),
            " / ".join(f"{em:.0f}" for em in row["by_documents"].values()),
            *("-" if other is None else f"{other['em']:.1f}" for other in others),
        )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def figures(metrics: Mapping[str, Any]) -> str:
    """Return what stands between the card's marks."""
    norms = metrics["transition_norms"]
    flat = [norm for layer in norms for norm in layer]
    slow = sum(norm > 0.1 for norm in flat)
    layers = [[str(at), " ".join(f"{n:.3f}" for n in layer)] for at, layer in enumerate(norms)]
    return (
        f"{metrics['machine']}; seed {metrics['seed']}.\n\n"
        f"{table(HEAD, list(_arms(metrics['rows'])))}\n"
        f"{slow} of {len(flat)} heads ({slow / len(flat):.0%}) keep a transition norm above 0.1 "
        "over 256 tokens (median spectral norm):\n\n"
        f"{table(('linear layer', 'heads'), layers)}"
    )


def renewed(card: str, metrics: Mapping[str, Any]) -> str:
    """Return the card with its figures written anew.  Raises ValueError: a mark is missing."""
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the card needs the lines {BEGIN.strip()!r} and {END.strip()!r}")
    return before + BEGIN + figures(metrics) + END + after


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "reader")
    folder = parser.parse_args(argv).model
    card = folder / "MODEL_CARD.md"
    metrics = json.loads((folder / "metrics.json").read_text())
    card.write_text(renewed(card.read_text(), metrics))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
