"""`hypic generate`: one question over documents, and what the cache did."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rich.console import Console
from rich.table import Table

from hypic_sdk.cli import picture
from hypic_sdk.cli.documents import read_document
from hypic_sdk.cli.opening import open_local, warm
from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import RequestError
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from hypic_sdk.wire.replies import Delta
from hypic_sdk.wire.report import CacheReport
from hypic_sdk.wire.segments import SegmentObject

if TYPE_CHECKING:
    from hypic_sdk.offline import LocalHypic

LENGTH_NOTE = "note: the reply was cut at its limit of tokens; --max-tokens allows more\n"


@dataclass(frozen=True, slots=True)
class Ask:
    """What the caller wants answered.

    `options` are further fields of the request; what is not among them is left to the model.
    """

    question: str
    documents: tuple[Path, ...]
    system: str | None
    options: Mapping[str, Any]
    off: bool


def given_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given: one left out must not be sent, not even as some default."""
    return {name: value for name, value in values.items() if value is not None}


def template_options(pairs: Sequence[str], *, thinking: bool | None) -> dict[str, Any] | None:
    """Variables of the chat template out of `NAME=VALUE`; none if there are none.

    A value is read as JSON where it is JSON (`true`, `3`), and is a text otherwise.

    Raises:
        RequestError: a pair without a name or without `=`.
    """
    options: dict[str, Any] = {} if thinking is None else {"enable_thinking": thinking}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not name or not sign:
            raise RequestError(f"--template-option takes NAME=VALUE, got {pair!r}")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options or None


def chat_fields(ask: Ask, segments: Sequence[SegmentObject]) -> dict[str, Any]:
    """The fields of the chat request."""
    messages = [{"role": "user", "content": ask.question}]
    if ask.system is not None:
        messages.insert(0, {"role": "system", "content": ask.system})
    return {
        "messages": messages,
        "documents": segments,
        "hypic": {"mode": "off" if ask.off else "pic"},
        **ask.options,
    }


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
    """Load, warm, ask, print.

    Raises:
        RequestError: options that can not be, before anything is loaded for them.
        HypicError: whatever keeps it from an answer.
    """
    parse(ChatRequest, chat_fields(ask, ()))
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
    report, printer = None, AnswerPrinter(console)
    with local.chat.completions.stream(**fields) as chunks:
        for chunk in chunks:
            for choice in chunk.choices:
                printer.show(choice.delta, choice.finish_reason)
            report = chunk.cache or report
    return report


@final
class AnswerPrinter:
    """Prints a reply as it comes: reasoning marked and dim, the answer plain, how it ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reasons = False  # the last thing that was printed is reasoning

    def show(self, delta: Delta, finish_reason: str | None) -> None:
        """Print the next delta, and at the end what is worth knowing of it."""
        if delta.reasoning_content:
            if not self._reasons:
                self._print("reasoning: ", style="dim")
            self._reasons = True
            self._print(delta.reasoning_content, style="dim")
        if delta.content:
            if self._reasons:
                self._print("\n\n")
            self._reasons = False
            self._print(delta.content)
        if finish_reason is not None:
            self._print("\n")
        if finish_reason == "length":
            self._print(LENGTH_NOTE, style="yellow")

    def _print(self, text: str, style: str | None = None) -> None:
        # the console would break lines of its own otherwise, wherever a delta ends
        self._console.print(
            text, end="", style=style, markup=False, highlight=False, soft_wrap=True
        )
