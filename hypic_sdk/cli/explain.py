"""`hypic explain`: what a prompt would cost, told without running it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hypic_sdk.cli.documents import read_document
from hypic_sdk.cli.opening import open_local
from hypic_sdk.client import Hypic
from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import RequestError
from hypic_sdk.wire.explain import ExplainedPart, Explanation
from hypic_sdk.wire.shorthand import chat_request, completion_request


def prompt_fields(
    file: Path | None, question: str | None, documents: Sequence[Path]
) -> dict[str, Any]:
    """The fields of a request: of a file, or of a question over documents.

    A file holds the body of a chat or a completion as JSON, a list of messages, or a plain prompt.

    Raises:
        RequestError: neither, both, or a file that is nothing of the kind.
    """
    if (file is None) == (question is None):
        raise RequestError("give a prompt file or a --question")
    if file is None:
        texts = [read_document(path) for path in documents]
        return {"messages": [{"role": "user", "content": question}], "documents": texts}
    if documents:
        raise RequestError("documents stand in the prompt file; --document is for a --question")
    text = read_document(file)
    if file.suffix != ".json":
        return {"prompt": text}
    try:
        values = json.loads(text)
    except ValueError as error:
        raise RequestError(f"{file} is no JSON: {error}") from error
    if isinstance(values, list):
        return {"messages": values}
    if not isinstance(values, dict) or not {"messages", "prompt"} & values.keys():
        raise RequestError(f"{file} is no list of messages, and no body with messages or prompt")
    return {name: value for name, value in values.items() if name not in ("model", "stream")}


@dataclass(frozen=True, slots=True)
class Where:
    """Who is asked: a server, or an engine of this process, in which nothing is warm."""

    url: str | None
    api_key: str | None
    is_offline: bool
    model: str | None
    config: EngineConfig


def run_explain(
    console: Console,
    file: Path | None,
    question: str | None,
    documents: Sequence[Path],
    *,
    where: Where,
    as_json: bool,
) -> None:
    """Ask and show."""
    fields = prompt_fields(file, question, documents)
    told = _explained(Console(stderr=True) if as_json else console, fields, where)
    if as_json:
        console.print_json(told.model_dump_json())
    else:
        show_explanation(console, told, [path.name for path in documents])


def _explained(console: Console, fields: dict[str, Any], where: Where) -> Explanation:
    if not where.is_offline:
        with Hypic(where.url, api_key=where.api_key) as client:
            return client.prompts.explain(**fields)
    with open_local(console, where.model, where.config) as local:
        options: Any = dict(fields)
        if "messages" in options:
            return local.service.explain(chat_request(options.pop("messages"), options))
        return local.service.explain(completion_request(options.pop("prompt"), options))


def show_explanation(console: Console, told: Explanation, names: Sequence[str]) -> None:
    """Parts with what is expected of them, sums, warnings."""
    table = Table("part", "what", "from", "tokens", "expected", "reused")
    for part in told.parts:
        table.add_row(part.role, _what(part, names), str(part.start), str(part.tokens),
                      part.expected, str(part.reused_tokens or ""))  # fmt: skip
    console.print(table)
    console.print(
        f"{told.prompt_tokens} tokens: {told.cached_tokens} reused, {told.live_tokens} live, "
        f"{told.cold_tokens} computed once for new entries",
        highlight=False,
    )
    for warning in told.warnings:
        console.print(f"{warning.code}: {warning.message}", style="yellow", markup=False)


def _what(part: ExplainedPart, names: Sequence[str]) -> str:
    if part.document is not None and part.document < len(names):
        return names[part.document]
    return part.segment_id or "text"
