"""What `bench serving` runs: a model of a known shape with random weights, and prompts for it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from hypic_sdk.bench.serving_decays import fill_decays
from hypic_sdk.bench.serving_limits import Needs, Room, TimeLimit, check_memory
from hypic_sdk.bench.serving_report import Absent
from hypic_sdk.bench.serving_targets import DEFAULT_SHAPE
from hypic_sdk.config import (
    DEFAULT_MODE,
    MODES,
    Determinism,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    StoreConfig,
    keep_heap,
    let_heap_go,
)
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import ConfigError, WorkerError
from hypic_sdk.models.loader import load_model, model_files, open_checkpoint
from hypic_sdk.models.qwen3_5 import Model
from hypic_sdk.models.qwen_config import Config
from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    segment_id,
)
from hypic_sdk.transport.messages import EngineReport, EngineRequest, SamplingParams, WarmRequest

GIB = 1 << 30
LEADING_TOKENS = 24
QUESTION_TOKENS = 64
# of config.json; what stands in neither is the configuration class's default
SHAPES: dict[str, dict[str, Any]] = {
    DEFAULT_SHAPE: {"model_type": "qwen3_5_moe_text"},
    "tiny": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 500,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
SHAPES["tiny-8k"] = {**SHAPES["tiny"], "vocab_size": 8192}  # that of the packaged tokenizer


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of the rows, and how often each is run."""

    divisor: int  # of all lengths of documents
    budget_bytes: int
    num_runs: int
    grows: bool = False  # whether a row that finds too little room gets larger pools

    def tokens(self, count: int) -> int:
        """A length, as short as these sizes want it."""
        return max(16, count // self.divisor)


FULL_SIZES = Sizes(1, 24 * GIB, 7)
TINY_SIZES = Sizes(32, 64 << 20, 2, grows=True)


def check_shape(shape: str) -> None:
    """Raise ConfigError for a name that is not in `SHAPES`."""
    if shape not in SHAPES:
        raise ConfigError(f"shapes are {', '.join(SHAPES)}, got {shape!r}", shape=shape)


def shape_of(shape: str | None, *, tiny: bool, model: str | None = None) -> str:
    """The shape that options ask for.

    Raises:
        ConfigError: two of them name what is measured; no such shape.
    """
    if shape is not None and tiny:
        raise ConfigError(
            f"--tiny has a shape of its own: leave out --tiny, or --shapes {shape}", shape=shape
        )
    if shape is not None and model is not None:
        raise ConfigError(
            f"--model has its own shape: leave out --model {model}, or --shapes {shape}",
            shape=shape,
        )
    found = shape if shape is not None else "tiny" if tiny else DEFAULT_SHAPE
    check_shape(found)
    return found


def random_model(shape: str, device: torch.device, seed: int = 0) -> Model:
    """A model in bf16 whose weights are drawn on the device, of sizes as after training.

    Times do not depend on the values: shapes alone choose kernels, and rows go to the experts as
    evenly under any decays.

    Args:
        shape: a name in `SHAPES`.
    Raises:
        ConfigError: no such shape; less memory is free on the device than its weights take.
    """
    check_shape(shape)
    config = Config.from_hf(SHAPES[shape])
    check_memory(shape, lambda: Model(config, torch.bfloat16), device)
    with torch.device(device):
        model = Model(config, torch.bfloat16)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter)
        fill_decays(model)
    return model.eval()


def _fill(name: str, parameter: torch.Tensor) -> None:
    if "norm" in name:
        parameter.normal_(1.0 if name.endswith("mixer.norm.weight") else 0.0, 0.05)
    else:
        parameter.normal_(0, parameter.shape[-1] ** -0.5)


def model_of(shape: str, folder: Path | None, device: torch.device) -> Any:
    """A checkpoint's model if a folder is given, else one with random weights.

    Raises:
        ConfigError: no such shape; less memory is free on the device than the weights take.
        ModelFileError: the folder holds no model.
    """
    if folder is not None:
        opened = open_checkpoint(model_files(folder))
        check_memory(folder.name, lambda: opened.build(opened.dtype), device)
        return load_model(folder, device=device).model
    return random_model(shape, device)


def graph_notes(engine: Engine) -> dict[str, Any]:
    """How many forwards were replays so far, and why the others were none."""
    counts = engine.graph_counts
    if counts is None:
        return {"graphs": "off"}
    told = f"{counts.num_replayed} of {counts.num_captured}, {counts.capture_s:.1f} s"
    return {"graphs": told, "eager": dict(counts.eager)}


@final
class Bench:
    """One engine after the other over the same weights, and the clock."""

    def __init__(
        self,
        model: Any,
        shape: str,
        device: torch.device,
        sizes: Sizes,
        limit: TimeLimit | None = None,
    ) -> None:
        """
        Args:
            limit: none: rows may begin at any time.
        """
        self.model = model
        self.shape = shape
        self.device = device
        self.sizes = sizes
        self.limit = TimeLimit() if limit is None else limit
        store = StoreConfig(
            budget_bytes=sizes.budget_bytes, expected_segment_tokens=sizes.tokens(1024)
        )
        self._room = Room.of(model, store)
        if sizes.grows:  # of one document and one request, at least
            self._room = self._room.with_room_for(Needs(1, num_documents=1))
        self._count = 0
        self._fresh = 1_000_000
        self._engines: dict[tuple[str, Determinism | None, bool], Engine] = {}
        self._determinism: Determinism | None = None  # none: the device's default
        self._joined = True

    def engine(self, mode: str = DEFAULT_MODE) -> Engine:
        """The engine of a mode; any other is given up first, for its memory.

        There is room for one engine's pools beside the weights: who asks for another mode is not
        to hold the engine of the mode before.
        """
        key = mode, self._determinism, self._joined
        if key not in self._engines:
            self._engines.clear()
            self.empty_cache()
            self._engines[key] = Engine(self.model, "bench", self._config(mode))
            keep_heap()  # as the engine's own process does
        return self._engines[key]

    @contextmanager
    def under(self, determinism: Determinism) -> Iterator[None]:
        """Engines that are asked for in here are of this determinism, and of nobody outside."""
        before, self._determinism = self._determinism, determinism
        try:
            yield
        finally:
            self._determinism = before

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Engines that are asked for in here run live rows behind the forward that ends entries."""
        self._joined = False
        try:
            yield
        finally:
            self._joined = True

    @property
    def is_judged(self) -> bool:
        """Whether design 13's targets are of what is measured."""
        is_full = self.sizes is FULL_SIZES and self.shape == DEFAULT_SHAPE
        return is_full and self.device.type == "cuda"

    def needs(
        self,
        num_documents: int,
        document_tokens: int,
        *,
        num_requests: int = 1,
        reply_tokens: int = 1,
        kept: bool = True,
    ) -> Needs:
        """Of requests over the same documents.

        Args:
            kept: the documents are in the pool; else they are text.
        """
        around = LEADING_TOKENS + QUESTION_TOKENS
        return Needs(
            around + num_documents * document_tokens,
            reply_tokens,
            num_requests,
            num_documents if kept else 0,
            document_tokens,
        )

    def absent(self, name: str, needs: Needs | None = None) -> Absent | None:
        """Why a row may not begin: no time is left, or no room for it; none: it may.

        Asked before anything of the row runs, its engine included: pools may grow for it.
        """
        reason = self.limit.stops()
        if not reason and needs is not None:
            reason = self._lacks(needs)
        return Absent(name, reason) if reason else None

    def _lacks(self, needs: Needs) -> str:
        """Pools grow where how much room there is is none of the results."""
        reason = self._room.lacks_context(needs)
        if reason:
            return reason
        room = self._room.with_room_for(needs) if self.sizes.grows else self._room
        if room is not self._room:
            self._room = room
            self._engines.clear()
        return room.lacks_slots(needs)

    @property
    def warm_ups(self) -> int:
        """Runs of a shape that do not count: compiled, looked at, captured; and one more."""
        return 4 if self.device.type == "cuda" else 1

    def release(self) -> None:
        """Give up engines and weights."""
        self._engines.clear()
        self.model = None
        self.empty_cache()

    def empty_cache(self) -> None:
        """Give memory that nobody holds back to the device."""
        let_heap_go()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _config(self, mode: str) -> EngineConfig:
        return EngineConfig(
            device=str(self.device),
            determinism=self._determinism,
            joined=self._joined,
            capture_asks=2,  # rows are few, and of forwards as they run once they are captured
            reuse=ReuseConfig(mode=MODES[mode], seam=SeamRule(8, 0), min_segment_tokens=16),
            store=self._room.store,
            scheduler=SchedulerConfig(),
        )

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def fresh_seed(self) -> int:
        """For documents that nobody has seen."""
        self._fresh += 1000
        return self._fresh

    def tokens(self, seed: int, count: int) -> tuple[int, ...]:
        """Random token ids, the same for the same seed."""
        rng = random.Random(seed)
        return tuple(rng.choices(range(3, self.model.spec.vocab_size), k=count))

    def segment(self, seed: int, count: int) -> PromptPart:
        """A document of `count` tokens."""
        return PromptPart(Role.INNER, self.tokens(seed, count), segment_id(f"{seed} {count}"))

    def segments(self, seed: int, how_many: int, count: int) -> list[PromptPart]:
        """Several documents of one length."""
        return [self.segment(seed + i, count) for i in range(how_many)]

    def prompt(self, segments: Sequence[PromptPart], question: int) -> SegmentedPrompt:
        """A system message, documents, a question and a generation prompt, with their borders."""
        leading = PromptPart(Role.LEADING, self.tokens(1, LEADING_TOKENS))
        trailing = PromptPart(Role.TRAILING, self.tokens(10_000 + question, QUESTION_TOKENS))
        parts = (leading, *segments, trailing)
        end = sum(len(part.token_ids) for part in parts) - 4
        borders = (Border(LEADING_TOKENS, BorderKind.LEADING), Border(end, BorderKind.PROMPT))
        return SegmentedPrompt(parts, borders)

    def request(self, prompt: SegmentedPrompt, *, max_tokens: int, reuse: bool) -> EngineRequest:
        """A greedy request that ends by its length."""
        self._count += 1
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        return EngineRequest(f"r{self._count}", prompt, sampling, reuse=reuse)

    def first_token(
        self, engine: Engine, prompt: SegmentedPrompt, *, reuse: bool = True
    ) -> tuple[float, EngineReport]:
        """Milliseconds from submit to the first token on the host, nobody else being there."""
        self.wait()
        start_s = time.perf_counter()
        engine.submit(self.request(prompt, max_tokens=1, reuse=reuse))
        first_ms, report = None, None
        while engine.has_work:
            for event in engine.step():
                if event.error is not None:
                    raise WorkerError(f"a request of the bench failed: {event.error}")
                if first_ms is None:
                    first_ms = 1e3 * (time.perf_counter() - start_s)
                report = getattr(event, "report", None) or report
        assert first_ms is not None, "a request that did not fail has a token"
        assert report is not None, "a request ends with its report"
        return first_ms, report

    def warm(self, engine: Engine, segments: Sequence[PromptPart]) -> float:
        """Milliseconds until all of these are in the pool."""
        self._count += 1
        self.wait()
        start_s = time.perf_counter()
        engine.warm(WarmRequest(f"w{self._count}", tuple(segments)))
        while engine.has_work:
            for event in engine.step():
                if event.error is not None:
                    raise WorkerError(f"a warm request of the bench failed: {event.error}")
        self.wait()
        return 1e3 * (time.perf_counter() - start_s)
