"""Flags of the command line to settings; defaults are those of `config`, written once there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hypic_sdk.config import (
    DEFAULT_MODE,
    MIB,
    MODES,
    EngineConfig,
    ReuseConfig,
    SeamRule,
    ShadowConfig,
    StoreConfig,
)
from hypic_sdk.errors import ConfigError

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="Checkpoint folder or hub id; none is the model inside the package."
    ),
]
ModeOption = Annotated[str, typer.Option("--mode", help=f"One of: {', '.join(MODES)}.")]
SeamOption = Annotated[
    str, typer.Option("--seam", help="Tokens recomputed per segment: 8, 8+8 (head+tail), 5% or 0.")
]
MinTokensOption = Annotated[
    int, typer.Option("--min-segment-tokens", help="Shorter segments are not kept.")
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
    Path | None, typer.Option("--json-lines", help="Append one JSON line per row here.")
]
BudgetOption = Annotated[int, typer.Option("--cache-mib", help="Memory of both pools, in MiB.")]

ShadowOption = Annotated[
    float | None,
    typer.Option(
        "--shadow",
        help="Recompute replies in full while nobody waits, for at most this share of time (0.02), "
        "and count what differs.",
    ),
]
ShadowLimitOption = Annotated[
    float | None,
    typer.Option(
        "--shadow-limit-kl",
        help="With --shadow: over so many nats a token, reuse is off until SIGUSR1.",
    ),
]
ShadowTokensOption = Annotated[
    int, typer.Option("--shadow-tokens", help="With --shadow: of prompt and reply, at most.")
]

ScriptOption = Annotated[
    Path | None,
    typer.Option("--script", help="Rules of `--model scripted`; none is what is built in."),
]

DEFAULT_SEAM = str(SeamRule())
DEFAULT_MIN_TOKENS = ReuseConfig().min_segment_tokens
DEFAULT_BUDGET_MIB = StoreConfig().budget_bytes // MIB
DEFAULT_SHADOW_TOKENS = ShadowConfig().max_tokens


def engine_config(
    mode: str = DEFAULT_MODE,
    seam: str = DEFAULT_SEAM,
    min_segment_tokens: int = DEFAULT_MIN_TOKENS,
    cache_mib: int = DEFAULT_BUDGET_MIB,
) -> EngineConfig:
    """The engine's settings.  Raises ConfigError for a mode or seam that does not exist."""
    if mode not in MODES:
        raise ConfigError(f"no reuse mode is called {mode!r}; there are {', '.join(MODES)}")
    reuse = ReuseConfig(MODES[mode], SeamRule.parse(seam), min_segment_tokens)
    base = EngineConfig()
    return replace(base, reuse=reuse, store=replace(base.store, budget_bytes=cache_mib * MIB))


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
