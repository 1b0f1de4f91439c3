"""`hypic generate`: one question over documents, and what the cache did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hypic_sdk.cli import picture
from hypic_sdk.cli.documents import read_document
from hypic_sdk.cli.opening import open_local, warm
from hypic_sdk.config import EngineConfig
from hypic_sdk.wire.report import CacheReport
from hypic_sdk.wire.segments import SegmentObject

if TYPE_CHECKING:
    from hypic_sdk.offline import LocalHypic


@dataclass(frozen=True, slots=True)
class Ask:
    """What the caller wants answered."""

    question: str
    documents: tuple[Path, ...]
    system: str | None
    max_tokens: int
    temperature: float
    seed: int | None
    off: bool


def chat_fields(ask: Ask, segments: Sequence[SegmentObject]) -> dict[str, Any]:
    """The fields of the chat request."""
    messages = [{"role": "user", "content": ask.question}]
    if ask.system is not None:
        messages.insert(0, {"role": "system", "content": ask.system})
    fields: dict[str, Any] = {
        "messages": messages,
        "documents": segments,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "hypic": {"mode": "off" if ask.off else "pic"},
    }
    return fields if ask.seed is None else {**fields, "seed": ask.seed}


def show_report(console: Console, report: CacheReport, names: Sequence[str]) -> None:
    """The bar, its legend, the table of segments."""
    console.print(picture.bar(report, console.width - 2))
    console.print(picture.legend())
    console.print(picture.summary(report), highlight=False)
    table = Table("document", "status", "reason", "tier", "tokens", "reused", "cold ms")
    for segment in report.segments or ():
        name = names[segment.document] if segment.document is not None else segment.segment_id
        table.add_row(*picture.segment_row(segment, name))
    if table.row_count:
        console.print(table)


def run_generate(
    console: Console, ask: Ask, *, model: str | None, config: EngineConfig, as_json: bool
) -> None:
    """Load, warm, ask, print."""
    texts = [read_document(path) for path in ask.documents]
    quiet = Console(stderr=True) if as_json else console
    with open_local(quiet, model, config) as local:
        segments = local.segments.create_many(texts)
        if segments and not ask.off:
            warm(quiet, local, segments)
        fields = chat_fields(ask, segments)
        if as_json:
            console.print_json(local.chat.completions.create(**fields).model_dump_json())
            return
        report = stream_answer(console, local, fields)
        if report is not None:
            show_report(console, report, [path.name for path in ask.documents])


def stream_answer(
    console: Console, local: LocalHypic, fields: dict[str, Any]
) -> CacheReport | None:
    """Print the answer as it comes; give the report of the last chunk."""
    report = None
    with local.chat.completions.stream(**fields) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                console.print(choice.delta.content or "", end="", markup=False, highlight=False)
            report = chunk.cache or report
    console.print()
    return report
