"""TTFT over cached documents against full recompute, by how long and how many documents are.

Every cell draws documents of its own, warms them, and asks in turn with them in a new order each
time: with their entries, and with mode "off", which is a full recompute by the same engine.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hypic_sdk.bench.report import Spread, append_json_line, circumstances
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import ConfigError
from hypic_sdk.offline import LocalHypic
from hypic_sdk.wire.report import CacheReport

if TYPE_CHECKING:
    from rich.console import Console

SEED = 52_711
LENGTHS = (128, 256, 512, 896)
COUNTS = (1, 2, 4, 8)
ROOM_TOKENS = 256  # of the window, for the template and the question


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured of one length and count."""

    num_tokens: int  # of a document, at most
    num_documents: int
    cached_ms: Spread
    recomputed_ms: Spread
    ratio: Spread  # of the one to the other, pair by pair
    computed_tokens: float  # with entries, in the middle
    prompt_tokens: int


def draw_document(local: LocalHypic, num_tokens: int, rng: random.Random) -> str:
    """Sentences of the library in a random order, of no more than so many tokens."""
    sentences = [one for text in DOCUMENTS.values() for one in text.split(". ")]
    said: list[str] = []
    left = num_tokens
    while True:
        sentence = f"{rng.choice(sentences).strip().rstrip('.')}."
        # on its own a sentence may have a token more than within a text, never fewer
        left -= local.tokenize(prompt=f" {sentence}").count
        if left < 0:
            return " ".join(said)
        said.append(sentence)


def ask(local: LocalHypic, texts: Sequence[str], question: str, mode: str) -> CacheReport:
    """The report of one question."""
    reply = local.chat.completions.create(
        messages=[{"role": "user", "content": question}],
        documents=texts,
        max_tokens=1,
        hypic={"mode": mode},
    )
    assert reply.cache is not None, "a report is told unless it is asked not to"
    return reply.cache


def measure(local: LocalHypic, num_tokens: int, num_documents: int, num_runs: int) -> Cell:
    """One cell; the first round is a warm-up and not counted."""
    rng = random.Random(f"{SEED} {num_tokens} {num_documents}")
    texts = [draw_document(local, num_tokens, rng) for _ in range(num_documents)]
    segments = local.segments.create_many(texts, warm="wait")
    cached: list[CacheReport] = []
    recomputed: list[CacheReport] = []
    for _ in range(num_runs + 1):
        order, question = rng.sample(texts, len(texts)), rng.choice(QUESTIONS).text
        cached.append(ask(local, order, question, "pic"))
        recomputed.append(ask(local, order, question, "off"))
    local.segments.delete_many(segments)
    return _cell(num_tokens, num_documents, cached[1:], recomputed[1:])


def _cell(
    num_tokens: int,
    num_documents: int,
    cached: Sequence[CacheReport],
    recomputed: Sequence[CacheReport],
) -> Cell:
    own = [report.timing_ms.ttft for report in cached]
    full = [report.timing_ms.ttft for report in recomputed]
    return Cell(
        num_tokens,
        num_documents,
        Spread.of(own),
        Spread.of(full),
        Spread.of([one / other for one, other in zip(own, full, strict=True)]),
        Spread.of([report.live_tokens + report.cold_tokens for report in cached]).median,
        max(report.prompt_tokens for report in cached),
    )


def grid(window_tokens: int) -> Iterator[tuple[int, int]]:
    """The lengths and counts that fit into a window, the shortest first."""
    for num_tokens in LENGTHS:
        for num_documents in COUNTS:
            if num_tokens * num_documents + ROOM_TOKENS <= window_tokens:
                yield num_tokens, num_documents


def run_ttft_bench(
    console: Console, *, model: str | None, num_runs: int, json_lines: Path | None
) -> None:
    """Measure, print the table, append the rows.  Raises ConfigError: nothing fits."""
    with LocalHypic(model) as local:
        [served] = local.models.list().data
        places = [*grid(served.hypic.max_context_tokens or 0)]
        if not places:
            raise ConfigError(f"no document of {LENGTHS[0]} tokens fits into the model's window")
        cells = [measure(local, *place, num_runs) for place in places]
    where = circumstances("auto")
    table = Table(
        "documents", "tokens each", "cached ms", "full recompute ms", "of it", "tokens computed",
        title=f"first token, {num_runs} runs: minimum / median / maximum",
    )  # fmt: skip
    for cell in cells:
        table.add_row(
            str(cell.num_documents),
            str(cell.num_tokens),
            str(cell.cached_ms),
            str(cell.recomputed_ms),
            f"{cell.ratio.median:.2f}",
            f"{cell.computed_tokens:.0f} of {cell.prompt_tokens}",
        )
        if json_lines is not None:
            fields: dict[str, Any] = {"bench": "ttft", "model": served.id, **asdict(cell)}
            append_json_line(json_lines, fields, where)
    console.print(str(where), highlight=False)
    console.print(table)
