"""`hypic doctor`: what a model is and what it will cost here, before its weights are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from hypic_sdk.config import MIB, EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import HypicError, RequestError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console

    from hypic_sdk.doctor.report import (
        DoctorReport,
        MemoryPlan,
        SamplingFacts,
        TemplateFacts,
    )


def run_doctor(console: Console, *, model: str | None, config: EngineConfig, as_json: bool) -> None:
    """Examine a model folder or hub id and print what was found.

    With `as_json` an error is printed as JSON too, and the exit status says that there was one.

    Raises:
        HypicError: why the model can not be served here.
    """
    try:
        report = _examined(model, config)
    except HypicError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"error": error.to_payload()}, indent=2))
        raise typer.Exit(2 if isinstance(error, RequestError) else 1) from error
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
    else:
        show(console, report)


def _examined(model: str | None, config: EngineConfig) -> DoctorReport:
    try:
        from hypic_sdk.doctor.examine import examine_model
    except ImportError as error:
        raise UnsupportedError(
            f"examining a model needs: pip install 'hypic-sdk[server]' ({error})"
        ) from error
    return examine_model(reader_path() if model is None else model, config)


def show(console: Console, report: DoctorReport) -> None:
    """The report for people."""
    table = _grid()
    for name, value in [
        *_model_rows(report),
        *_prompt_rows(report),
        *_memory_rows(report.memory, report.placement.pair),
    ]:
        table.add_row(name, value)
    console.print(table)
    if report.memory.segments:
        console.print(_segment_table(report.memory))
    console.print(_op_table(report))
    console.print(_law_table(report))
    for note in report.notes:
        console.print(f"note: {note}", style="yellow", highlight=False)
    if report.memory.fits:
        console.print("this model can be served here", style="green")
    else:
        console.print("this model can be served here once there is room for it", style="yellow")


def _grid() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _model_rows(report: DoctorReport) -> list[tuple[str, str]]:
    identity, placement = report.identity, report.placement
    heads = f"{identity.num_heads} state heads of {identity.key_size} x {identity.value_size}"
    layers = f"{identity.num_layers}: {identity.num_linear} linear ({heads})"
    if identity.num_query_heads is not None:
        layers += (
            f", {identity.num_attention} attention ({identity.num_query_heads} query heads on "
            f"{identity.num_kv_heads} of {identity.head_size})"
        )
    stored = ", ".join(f"{name} {_bytes(size)}" for name, size in identity.stored_bytes.items())
    return [
        ("model", f"{identity.model_type} in {identity.folder}"),
        ("family", f"{identity.family}, {identity.transition} transitions"),
        ("layers", layers),
        *((name, words) for name, words in identity.more.items()),
        ("parameters", f"{identity.num_parameters:,}"),
        ("stored", f"{stored} in {identity.num_shards} file(s)"),
        ("context", f"{identity.max_context_tokens:,} tokens"),
        (
            "runs on",
            f"{placement.device} ({placement.device_name}) in {placement.dtype}, states in "
            f"{placement.state_dtype}, {_pair_words(placement.pair)}, "
            f"deterministic: {placement.determinism}",
        ),
    ]


def _pair_words(pair: str) -> str:
    return "pairs in int8" if pair == "int8" else f"dense transitions in {pair}"


def _prompt_rows(report: DoctorReport) -> list[tuple[str, str]]:
    tokenizer, identity = report.tokenizer, report.identity
    rows = [
        (
            "tokenizer",
            f"{tokenizer.vocab_size:,} ids (the model has {identity.vocab_size:,} rows), "
            f"{tokenizer.num_control_tokens} control tokens that no text can make",
        ),
        ("end tokens", ", ".join(map(str, identity.end_token_ids)) or "none"),
        ("sampling", _sampling_words(report.sampling)),
    ]
    template = report.template
    if template is None:
        return [*rows, ("chat template", "none")]
    return [
        *rows,
        ("chat template", ", ".join(_features(template))),
        ("segments in", ", ".join(template.segments_in) or "no message"),
    ]


def _sampling_words(sampling: SamplingFacts) -> str:
    """What applies where a caller says nothing; of the rest only what is not neutral."""
    drawn = sampling.temperature > 0.0
    told = {
        f"temperature {sampling.temperature:g}": drawn,
        f"top_k {sampling.top_k}": drawn and sampling.top_k > 0,
        f"top_p {sampling.top_p:g}": drawn and sampling.top_p < 1.0,
        f"min_p {sampling.min_p:g}": drawn and sampling.min_p > 0.0,
        "the likeliest token each time": not drawn,
        f"repetition_penalty {sampling.repetition_penalty:g}": sampling.repetition_penalty != 1.0,
        f"presence_penalty {sampling.presence_penalty:g}": sampling.presence_penalty != 0.0,
        f"frequency_penalty {sampling.frequency_penalty:g}": sampling.frequency_penalty != 0.0,
        f"min_tokens {sampling.min_tokens}": sampling.min_tokens > 0,
        f"max_tokens {sampling.max_tokens}": True,
    }
    return ", ".join(words for words, there in told.items() if there)


def _features(template: TemplateFacts) -> list[str]:
    features = [f"{role} messages" for role in template.roles]
    told = {
        "tool schemas": template.tools,
        f"tool calls as {template.call_format}": template.call_format is not None,
        "enable_thinking": template.thinking_switch,
        "replies open with <think>": template.opens_thinking,
        "shows reasoning": template.shows_reasoning,
        "drops reasoning of earlier turns": template.drops_earlier_reasoning,
        "chains at message ends": template.message_borders,
        f"ends a reply with {template.ends_reply_with}": template.ends_reply_with is not None,
    }
    return features + [name for name, there in told.items() if there]


def _memory_rows(memory: MemoryPlan, pair: str) -> list[tuple[str, str]]:
    kept = "pairs" if pair == "int8" else "transitions"
    free = "" if memory.available_bytes is None else f" ({_bytes(memory.available_bytes)} free)"
    return [
        ("weights", f"{_bytes(memory.weights_bytes)}{free}"),
        (
            "cache",
            f"{_bytes(memory.budget_bytes)}: {memory.num_state_rows} state rows of "
            f"{_bytes(memory.state_row_bytes)}, {memory.num_transition_rows} {kept} of "
            f"{_bytes(memory.transition_row_bytes)}, keys and values of {memory.num_kv_tokens:,} "
            f"tokens of {_bytes(memory.kv_token_bytes)}",
        ),
        ("shortest segment", _shortest_words(memory)),
    ]


def _shortest_words(memory: MemoryPlan) -> str:
    if memory.min_segment_tokens is None:
        return "none is kept in this mode"
    return (
        f"{memory.min_segment_tokens} tokens are kept (seam {memory.seam}); shorter ones are "
        "computed in place"
    )


def _segment_table(memory: MemoryPlan) -> Table:
    table = Table("segment of", "kept", "takes", "fit in the cache", box=None, pad_edge=False)
    for cost in memory.segments:
        table.add_row(
            f"{cost.num_tokens:,} tokens",
            f"{cost.interior_tokens:,} tokens",
            _bytes(cost.num_bytes),
            f"{cost.fits:,}",
        )
    return table


def _op_table(report: DoctorReport) -> Table:
    table = Table("op", "runs", "why", box=None, pad_edge=False)
    for choice in report.ops:
        table.add_row(choice.op, choice.implementation, choice.reason)
    return table


def _law_table(report: DoctorReport) -> Table:
    table = Table("law, on random inputs of these shapes", "error", "bound", "", box=None,
                  pad_edge=False)  # fmt: skip
    for law in report.laws:
        verdict = "holds" if law.holds else "BROKEN"
        table.add_row(law.law, f"{law.error:.1e}", f"{law.bound:.1e}", verdict)
    return table


def _bytes(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < MIB else f"{size / MIB:,.1f} MiB"
