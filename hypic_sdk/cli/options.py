"""Flags of the command line to settings; defaults are those of `config`, written once there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hypic_sdk.bench.destination import named
from hypic_sdk.config import (
    DEFAULT_MODE,
    MIB,
    MODES,
    PAIRS,
    EngineConfig,
    ReuseConfig,
    SeamRule,
    ShadowConfig,
    StoreConfig,
)
from hypic_sdk.errors import ConfigError
from hypic_sdk.wire.limits import MAX_TOKENS

MOST_MIB = 1 << 40  # so that a number of bytes is one of 64 bits


def finite(value: float | None) -> float | None:
    """The callback of an option that takes no NaN, which no bound refuses, and no infinity."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


def above_zero(value: float | None) -> float | None:
    """The callback of one that must be positive as well."""
    if finite(value) is not None and value is not None and value <= 0.0:
        raise typer.BadParameter(f"{value} is not over 0.")
    return value


def path_of(text: str | Path) -> Path:
    """The parser of a path that is not empty.  Raises BadParameter."""
    try:
        return named(text)
    except ConfigError as error:
        raise typer.BadParameter(error.message) from error


def written_path(*names: str, help: str | None = None) -> Any:
    """An option that is a place to write at; an empty text is none, and not the current folder."""
    return typer.Option(*names, help=help, parser=path_of, metavar="PATH")


ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="Checkpoint folder or hub id; none is the model inside the package."
    ),
]
ModelNameOption = Annotated[
    str | None, typer.Option("--model-name", help="What replies call the model.")
]
ModeOption = Annotated[str, typer.Option("--mode", help=f"One of: {', '.join(MODES)}.")]
SeamOption = Annotated[
    str, typer.Option("--seam", help="Tokens recomputed per segment: 8, 8+8 (head+tail), 5% or 0.")
]
MinTokensOption = Annotated[
    int,
    typer.Option("--min-segment-tokens", min=1, max=MAX_TOKENS, help="Shorter ones are not kept."),
]
PortOption = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="0 is one that is free.")
]
KeysOption = Annotated[
    Path | None, typer.Option("--keys", help="Keys file; without it only this machine may call.")
]
SegmentsFileOption = Annotated[
    Path | None,
    typer.Option(
        "--segments-file",
        help="Where registered texts are kept; none is a file in the user's cache folder.",
    ),
]
WorkersOption = Annotated[
    int,
    typer.Option(
        "--workers",
        min=0,
        max=64,
        help="Engine processes that share the work; each has a whole model and a whole cache.",
    ),
]
GateOption = Annotated[
    str | None,
    typer.Option("--gate", help="HOST:PORT where workers of other hosts join (hypic worker)."),
]
WorkerKeyOption = Annotated[
    Path | None,
    typer.Option("--worker-key", help="The key file that they share (hypic worker-key)."),
]
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="A server; none is HYPIC_BASE_URL, else this machine's port 30000."),
]
KeyOption = Annotated[
    str | None, typer.Option("--api-key", help="Its key; none is HYPIC_API_KEY, else no key.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1")]
JsonLinesOption = Annotated[
    Path | None, written_path("--json-lines", help="Append one JSON line per row here.")
]
PairOption = Annotated[
    str,
    typer.Option(
        "--pair",
        help=f"How a segment's transition and end state are kept: {', '.join(PAIRS)}; int8 takes "
        "half the bytes or less.",
    ),
]
BudgetOption = Annotated[
    int,
    typer.Option("--cache-mib", min=1, max=MOST_MIB, help="Memory of both pools, in MiB."),
]

ShadowOption = Annotated[
    float | None,
    typer.Option(
        "--shadow",
        max=1.0,
        callback=above_zero,
        help="Recompute replies in full while nobody waits, for at most this share of time (0.02), "
        "and count what differs.",
    ),
]
ShadowLimitOption = Annotated[
    float | None,
    typer.Option(
        "--shadow-limit-kl",
        callback=above_zero,
        help="With --shadow: over so many nats a token, reuse is off until SIGUSR1.",
    ),
]
ShadowTokensOption = Annotated[
    int,
    typer.Option(
        "--shadow-tokens",
        min=ShadowConfig().max_reply_tokens + 1,
        max=MAX_TOKENS,
        help="With --shadow: of prompt and reply, at most.",
    ),
]

SegmentTokensOption = Annotated[
    int,
    typer.Option(
        "--segment-tokens",
        help="Of a usual segment: how the cache is split into states and keys.",
        min=1,
        max=MAX_TOKENS,
    ),
]

SegmentsPerRequestOption = Annotated[
    int,
    typer.Option(
        "--segments-per-request",
        help="Of a usual request, whose keys it has once more: how the cache is split.",
        min=1,
        max=MAX_TOKENS,
    ),
]

CaptureAheadOption = Annotated[
    float,
    typer.Option(
        "--capture-ahead",
        min=0.0,
        callback=finite,
        help="On CUDA: seconds at most that the server takes, before it is ready, to capture usual "
        "forwards as graphs; 0 is none.",
    ),
]

OverlapOption = Annotated[
    bool | None,
    typer.Option(
        "--overlap/--no-overlap", help="Launch a decode step before the one before it is read."
    ),
]

ScriptOption = Annotated[
    Path | None,
    typer.Option("--script", help="Rules of `--model scripted`; none is what is built in."),
]

DEFAULT_SEAM = str(SeamRule())
DEFAULT_MIN_TOKENS = ReuseConfig().min_segment_tokens
DEFAULT_BUDGET_MIB = StoreConfig().budget_bytes // MIB
DEFAULT_PAIR = StoreConfig().pair
DEFAULT_SEGMENT_TOKENS = StoreConfig().expected_segment_tokens
DEFAULT_SEGMENTS_PER_REQUEST = StoreConfig().segments_per_request
# of a server, which is started once and long before its first request; a library's user would wait
SERVER_CAPTURE_AHEAD_S = 60.0
DEFAULT_SHADOW_TOKENS = ShadowConfig().max_tokens


def engine_config(
    mode: str = DEFAULT_MODE,
    seam: str = DEFAULT_SEAM,
    min_segment_tokens: int = DEFAULT_MIN_TOKENS,
    cache_mib: int = DEFAULT_BUDGET_MIB,
    pair: str = DEFAULT_PAIR,
) -> EngineConfig:
    """The engine's settings.  Raises ConfigError for a mode, seam or pair that does not exist."""
    if mode not in MODES:
        raise ConfigError(f"no reuse mode is called {mode!r}; there are {', '.join(MODES)}")
    reuse = ReuseConfig(MODES[mode], SeamRule.parse(seam), min_segment_tokens)
    base = EngineConfig()
    store = replace(base.store, budget_bytes=cache_mib * MIB, pair=pair)
    return replace(base, reuse=reuse, store=store)


def of_server(
    config: EngineConfig,
    capture_ahead_s: float,
    overlap: bool | None,
    segment_tokens: int,
    segments_per_request: int,
) -> EngineConfig:
    """The same for a server.

    Args:
        overlap: none: as without a word on it.
        segment_tokens, segments_per_request: as in `with_split`.
    """
    overlaps = config.overlap if overlap is None else overlap
    config = with_split(config, segment_tokens, segments_per_request)
    return replace(config, capture_ahead_s=capture_ahead_s, overlap=overlaps)


def with_split(
    config: EngineConfig, segment_tokens: int, segments_per_request: int
) -> EngineConfig:
    """The same with the cache split for what is usual, as `StoreConfig` has it."""
    store = replace(
        config.store,
        expected_segment_tokens=segment_tokens,
        segments_per_request=segments_per_request,
    )
    return replace(config, store=store)


def with_shadow(
    config: EngineConfig, share: float | None, limit_kl: float | None, max_tokens: int
) -> EngineConfig:
    """The same with live checks (none: without).  Raises ConfigError for a limit without them."""
    if share is None:
        if limit_kl is not None:
            raise ConfigError("--shadow-limit-kl is a limit on what --shadow finds: give both")
        return config
    shadow = ShadowConfig(share=share, max_tokens=max_tokens, limit_kl=limit_kl)
    return replace(config, shadow=shadow)
