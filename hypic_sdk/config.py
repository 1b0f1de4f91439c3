"""Settings: small frozen classes that contain each other, checked once, never edited.

The only module of the package that reads the environment (`HYPIC_*`).
"""

from __future__ import annotations

import atexit
import gc
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from hypic_sdk.errors import ConfigError

MIB = 1024 * 1024
COLLECT_FROM = 10_000  # new objects, after `keep_heap`: some requests' worth; Python's own is 700


def _kinds(settings: type[Any]) -> Mapping[str, tuple[type[Any], ...]]:
    """The classes that each field of a settings class may have."""
    hints = get_type_hints(settings)
    return {name: get_args(hint) or (hint,) for name, hint in hints.items()}


def _check_kinds(settings: object) -> None:
    """Refuse a value of another kind by its field's name: settings come from people's files too.

    A whole number may stand for a fraction, a truth value for no number.
    """
    for name, kinds in _kinds(type(settings)).items():
        value = getattr(settings, name)
        known = (*kinds, int) if float in kinds else kinds
        if not isinstance(value, known) or (isinstance(value, bool) and bool not in kinds):
            said = " or ".join("none" if kind is type(None) else kind.__name__ for kind in kinds)
            raise ConfigError(f"{name} must be of kind {said}, got {value!r}")


@dataclass(frozen=True, slots=True)
class SeamWidths:
    """Tokens at each edge of one segment that are recomputed in place."""

    head_tokens: int = 8
    tail_tokens: int = 0

    def __post_init__(self) -> None:
        if self.head_tokens < 0 or self.tail_tokens < 0:
            raise ConfigError(
                f"seam widths must not be negative, got {self.head_tokens} and {self.tail_tokens}"
            )

    def covering_conv(self, conv_width: int) -> SeamWidths:
        """The same widths, with the head wide enough to warm up a conv of this width."""
        return replace(self, head_tokens=max(self.head_tokens, conv_width - 1))


_SEAM_TEXT = re.compile(r"^(?:(\d+)(?:\+(\d+))?|(\d+(?:\.\d+)?)%)$")


@dataclass(frozen=True, slots=True)
class SeamRule:
    """How the seam widths follow from a segment's length: fixed, or a share of it (head only).

    Written `8`, `8+8` (head + tail), `5%` (head, rounded up, resolved per segment) or `0`.
    """

    head_tokens: int = 8
    tail_tokens: int = 0
    head_fraction: float | None = None

    def __post_init__(self) -> None:
        _check_kinds(self)
        SeamWidths(self.head_tokens, self.tail_tokens)
        if self.head_fraction is not None and not 0.0 <= self.head_fraction <= 1.0:
            raise ConfigError(f"a seam must be 0 % to 100 %, got {100 * self.head_fraction:g} %")

    @classmethod
    def parse(cls, text: str) -> SeamRule:
        """Read `8`, `8+8`, `5%` or `0`.  Raises ConfigError for anything else."""
        match = _SEAM_TEXT.match(text.strip())
        if match is None:
            raise ConfigError(f"a seam is written 8, 8+8, 5% or 0, got {text!r}")
        head, tail, percent = match.groups()
        if percent is not None:
            return cls(0, 0, float(percent) / 100.0)
        return cls(int(head), int(tail or 0))

    def __str__(self) -> str:
        if self.head_fraction is not None:
            return f"{100 * self.head_fraction:g}%"
        return (
            f"{self.head_tokens}+{self.tail_tokens}" if self.tail_tokens else f"{self.head_tokens}"
        )

    def resolve(self, num_tokens: int) -> SeamWidths:
        """The widths for a segment of `num_tokens` tokens (before any widening for a conv)."""
        if self.head_fraction is None:
            return SeamWidths(self.head_tokens, self.tail_tokens)
        # the small slack keeps 5 % of 100 at 5 although 0.05 * 100 may round to 5.000000000000001
        return SeamWidths(math.ceil(num_tokens * self.head_fraction - 1e-9), 0)


@dataclass(frozen=True, slots=True)
class ReuseMode:
    """What is reused and how: independent switches, so that no mode string is ever compared.

    `segments`: position-independent entries are used at all.  `chains`: exact prefixes and composed
    chains are used.  `transition`: a gap moves the state by its cached transition (else by the
    identity, the naive addition).  `rotate`: cached keys, and states with rotary keys, are turned
    to where the segment stands now.  `seam`: seams are recomputed, the head widened to cover the
    conv.
    """

    name: str
    segments: bool = True
    chains: bool = True
    transition: bool = True
    rotate: bool = True
    seam: bool = True


MODES: Mapping[str, ReuseMode] = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            ReuseMode("transition_rope_recompute"),
            ReuseMode("transition_rope", seam=False),
            ReuseMode("transition", rotate=False, seam=False),
            ReuseMode("addition", transition=False, rotate=False, seam=False),
            ReuseMode("prefix_cache", segments=False),
            ReuseMode("full_recompute", segments=False, chains=False),
        )
    }
)
"""The reuse modes by their command-line names; the first is the default."""

DEFAULT_MODE = "transition_rope_recompute"


class Determinism(Enum):
    """Which forwards use row-independent arithmetic (design 3.9)."""

    OFF = "off"
    ENTRIES = "entries"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class ReuseConfig:
    """Which segments are kept, and which of their tokens."""

    mode: ReuseMode = MODES[DEFAULT_MODE]
    seam: SeamRule = SeamRule()
    min_segment_tokens: int = 64
    # an experiment (docs/experiments.md): segments are computed behind the prompt's leading part,
    # so that an entry is a function of both, and serves prompts that begin alike
    anchored: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.mode, ReuseMode):
            raise ConfigError(f"mode is a value of config.MODES, got {self.mode!r}")
        if not isinstance(self.seam, SeamRule):
            raise ConfigError(f"seam is a SeamRule (SeamRule.parse reads text), got {self.seam!r}")
        _check_kinds(self)
        if self.min_segment_tokens < 1:
            raise ConfigError(
                f"min_segment_tokens must be at least 1, got {self.min_segment_tokens}"
            )

    def seam_widths(self, num_tokens: int, conv_width: int) -> SeamWidths:
        """The widths that the mode really uses for a segment of this length (part of its key)."""
        if not self.mode.seam:
            return SeamWidths(0, 0)
        return self.seam.resolve(num_tokens).covering_conv(conv_width)

    def keeps(self, num_tokens: int, conv_width: int) -> bool:
        """Whether a segment of this length is kept at all (design 3.4)."""
        seam = self.seam_widths(num_tokens, conv_width)
        interior_tokens = num_tokens - seam.head_tokens - seam.tail_tokens
        return num_tokens >= self.min_segment_tokens and interior_tokens >= max(1, conv_width - 1)


PAIRS = ("float16", "float32", "float64", "int8")
"""How the pair (transition, end state) of a segment may be kept; the first is the default."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How much memory the pools may take, and in which precision a segment's pair is kept.

    The budget is split at start into state rows and KV slots by `expected_segment_tokens`, and by
    `segments_per_request`: a request has the keys of its segments once more, at its own positions.

    `pair`: the precision of dense transitions (end states, and log-decays, are in the model's own,
    fp32 at least), or `int8`: both by row in 8 bits, at half the bytes or less
    (`docs/experiments.md` has the error of each).
    """

    budget_bytes: int = 512 * MIB
    expected_segment_tokens: int = 256
    pair: str = PAIRS[0]
    max_chain_entries_per_session: int = 2
    segments_per_request: int = 4

    def __post_init__(self) -> None:
        _check_kinds(self)
        for name in ("budget_bytes", "expected_segment_tokens", "segments_per_request"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
        if self.max_chain_entries_per_session < 0:
            raise ConfigError(
                "max_chain_entries_per_session must not be negative, got "
                f"{self.max_chain_entries_per_session}"
            )
        if self.pair not in PAIRS:
            raise ConfigError(f"pair is one of {', '.join(PAIRS)}, got {self.pair!r}")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What runs next, how much of it a step takes, and how long anyone waits."""

    # token budget of a step; none: 256 on a CPU, 8192 on a GPU, 16384 on one of 70 GiB or more
    step_tokens: int | None = None
    chunk_tokens: int | None = None  # grid of chunked prefill; none: 256 on a CPU, 2048 on a GPU
    max_requests: int = 64  # decoding or assembling at once
    max_waiting: int = 1024  # in the queue; one more is QueueFull
    max_overtakes: int = 16  # how often later hits may pass one waiting miss
    admission_timeout_s: float = 60.0  # waiting for room longer than this is PoolExhausted

    def __post_init__(self) -> None:
        _check_kinds(self)
        for name in ("step_tokens", "chunk_tokens"):
            value = getattr(self, name)
            if value is not None and (value < 64 or value % 64):
                raise ConfigError(f"{name} must be a positive multiple of 64, got {value}")
        for name in ("max_requests", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_overtakes < 0:
            raise ConfigError(f"max_overtakes must not be negative, got {self.max_overtakes}")
        if not 0 < self.admission_timeout_s < math.inf:
            raise ConfigError(
                f"admission_timeout_s must be positive and finite, got {self.admission_timeout_s}"
            )


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """Live checks: replies that reuse gave, recomputed in full while nobody waits (design 12, L6).

    They take memory of their own beside the pools: keys and values for `max_tokens`, logits for
    `max_reply_tokens`, one state row.
    """

    idle_s: float = 0.1  # nobody may have been in the engine for that long
    share: float = 0.02  # of all time since the engine began, at most
    max_tokens: int = 8192  # prompt and reply together; longer requests are not looked at
    max_reply_tokens: int = 64  # of a reply, so many from its beginning
    limit_kl: float | None = None  # nats a token over the window; above it reuse is switched off
    window: int = 32  # latest replies that the limit is held against

    def __post_init__(self) -> None:
        _check_kinds(self)
        if not 0.0 <= self.idle_s < math.inf:
            raise ConfigError(f"idle_s must be 0 or more, and finite, got {self.idle_s}")
        if not 0.0 < self.share <= 1.0:
            raise ConfigError(f"share must be over 0, and at most 1, got {self.share}")
        for name in ("max_reply_tokens", "window"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_tokens <= self.max_reply_tokens:
            raise ConfigError(
                f"max_tokens {self.max_tokens} must be over max_reply_tokens "
                f"{self.max_reply_tokens}: the prompt counts too"
            )
        if self.limit_kl is not None and not 0.0 < self.limit_kl < math.inf:
            raise ConfigError(f"limit_kl must be positive and finite, got {self.limit_kl}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One engine: where it runs, in which precision, with which pools and rules."""

    device: str = "auto"  # auto, cpu, cuda, cuda:1 ...
    dtype: str = "auto"  # auto: float32 on a CPU, the checkpoint's own on a GPU
    determinism: Determinism | None = None  # none: all on a CPU, entries on a GPU
    graphs: str = "auto"  # auto: forwards are captured as CUDA graphs where they can be; off
    # usual forwards are captured before an engine is ready; none is begun after so long (0: none)
    capture_ahead_s: float = 0.0
    # any other is captured at this ask for its sizes; none: once eager forwards took as long, and
    # captures a tenth of the time at most
    capture_asks: int | None = None
    # launch a decode step before the tokens of the one before it are read; auto: on CUDA
    overlap: bool | str = "auto"
    joined: bool = True  # live rows go in the forward that completes the entries before them
    max_context_tokens: int | None = None  # none: the model's own limit
    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    shadow: ShadowConfig | None = None  # none: no live checks

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float64", "float32", "bfloat16", "float16"):
            raise ConfigError(
                f"dtype is auto, float64, float32, bfloat16 or float16, got {self.dtype!r}"
            )
        if self.determinism is not None and not isinstance(self.determinism, Determinism):
            names = ", ".join(f"Determinism({one.value!r})" for one in Determinism)
            raise ConfigError(f"determinism is none or one of {names}, got {self.determinism!r}")
        _check_kinds(self)
        if self.graphs not in ("auto", "off"):
            raise ConfigError(f"graphs is auto or off, got {self.graphs!r}")
        if self.overlap not in (True, False, "auto"):
            raise ConfigError(f"overlap is true, false or auto, got {self.overlap!r}")
        if not 0.0 <= self.capture_ahead_s < math.inf:
            raise ConfigError(
                f"capture_ahead_s must be 0 or more, and finite, got {self.capture_ahead_s}"
            )
        if self.capture_asks is not None and self.capture_asks < 1:
            raise ConfigError(f"capture_asks must be at least 1, got {self.capture_asks}")
        if self.max_context_tokens is not None and self.max_context_tokens < 1:
            raise ConfigError(f"max_context_tokens must be positive, got {self.max_context_tokens}")


def environment(name: str, default: str | None = None) -> str | None:
    """The value of `HYPIC_<NAME>`, or `default`."""
    return os.environ.get(f"HYPIC_{name.upper()}", default)


def cache_folder() -> Path:
    """Where digests and, later, tiers lie: `HYPIC_CACHE_DIR`, else the user's cache folder."""
    given = environment("CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    usual = (Path(base) if base else Path.home() / ".cache") / "hypic"
    return Path(given) if given else usual


def launched_place() -> tuple[int, int] | None:
    """Which of how many processes of this host this is, as torchrun says; none: it started none."""
    try:
        return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return None


def see_one_gpu(index: int, num_gpus: int) -> None:
    """Let this process see one GPU only, the first that it names; before anything touches CUDA.

    Every thread's current device is its own then, and no context lies on another's.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = shown.split(",") if shown else [str(number) for number in range(num_gpus)]
    os.environ["CUDA_VISIBLE_DEVICES"] = names[index % len(names)]


def keep_heap() -> None:
    """Leave all objects that live now out of every collection to come, and collect seldom.

    For a process of ours that has loaded what it will keep: a collection that looked through it all
    would hold up a request by milliseconds.  Never in somebody else's process.
    """
    let_heap_go()  # of an earlier call
    gc.freeze()
    # libraries look at the end of the process for what was not given back, and complain
    atexit.unregister(gc.unfreeze)
    atexit.register(gc.unfreeze)
    gc.set_threshold(COLLECT_FROM, 20, 20)


def let_heap_go() -> None:
    """Collect whatever nobody holds, also of what was kept."""
    gc.unfreeze()
    gc.collect()


def keep_nccl_calm(*, is_loopback: bool) -> None:
    """Keep NCCL's watchdogs from ending the process: waits have deadlines of their own.

    Args:
        is_loopback: whether the workers' addresses for links are; others are NCCL's to find.
    """
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast: of no use between two
    if is_loopback:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def keep_tokenizers_serial() -> None:
    """Make `tokenizers` use one thread, in a process that is one of many side by side."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
