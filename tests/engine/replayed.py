"""A stand-in for CUDA graphs without a GPU: kernels in interpreter mode, and no look at a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hypic_sdk.engine import graph_tables
from hypic_sdk.engine.capture_rule import CaptureRule
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graphs import Forward, GraphCounts, Rows
from hypic_sdk.kernels import backend
from hypic_sdk.prompt.segment import BorderKind, PromptPart, SegmentedPrompt
from tests.engine.harness import check_ended, drain, events_of, logprobs, request_of, warm
from tests.engine.prompts import inner, prompt_of, tokens

# what a capture can not contain: a value on the host, numbers from there, a size that depends on
# values
FORBIDDEN = {
    "aten::_local_scalar_dense",
    "aten::lift_fresh",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::bincount",
    "aten::repeat_interleave",
    "aten::equal",
}


class NoHostValues(TorchDispatchMode):
    """Refuses what would wait for the device, or bring numbers from the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func._schema.name
        if name in FORBIDDEN and not (name == "aten::repeat_interleave" and len(args) > 1):
            raise AssertionError(f"{name} in a forward that is captured")
        return func(*args, **(kwargs or {}))


class Replayed:
    """A capture that keeps the forward, and runs it again over the same buffers."""

    def __init__(self) -> None:
        self.num_captured = 0
        self.num_replayed = 0

    def __call__(self, forward: Forward) -> Forward:
        self.num_captured += 1
        forward()  # what is found out once is found out here, as before a true capture
        with NoHostValues():
            forward()

        def replay() -> Rows:
            self.num_replayed += 1
            with NoHostValues():
                return forward()

        return replay


@contextmanager
def kernels_in_interpreter() -> Iterator[pytest.MonkeyPatch]:
    """Every Triton kernel is taken, whatever the device.

    Tables are small: the interpreter takes its time for programs that do nothing, too.
    """

    def select(
        op: str,
        reference: Callable[..., Any],
        load_kernel: Callable[[], Callable[..., Any]] | None,
        *,
        device: torch.device,
        needs_triton: bool = True,
        unfit: str = "",
    ) -> Callable[..., Any]:
        if load_kernel is None or unfit or not needs_triton:
            return reference
        return load_kernel()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "select", select)
        patch.setattr(graph_tables, "_SEQUENCE_MULTIPLE", 3)
        patch.setattr(graph_tables, "_SMALL_TASKS", (2, 4))
        patch.setattr(graph_tables, "_LARGE_TASKS", (0, 24))
        patch.setattr(graph_tables, "_SNAPSHOTS", 3)
        yield patch


def documents() -> list[PromptPart]:
    """Of three lengths."""
    return [inner(tokens(1, 40)), inner(tokens(2, 25)), inner(tokens(3, 70))]


def prompts(seed: int) -> list[SegmentedPrompt]:
    """Documents in several orders, one of them twice, with snapshots; and no document at all.

    No live run is too long for a graph.
    """
    a, b, c = documents()
    leading = tokens(9, 11)
    return [
        prompt_of(
            leading,
            *(a, tokens(seed, 3), b, a, tokens(seed + 1, 17)),
            borders=[(11, BorderKind.LEADING), (11 + 108 + 14, BorderKind.PROMPT)],
        ),
        prompt_of(c, b, tokens(seed + 2, 9)),
        prompt_of(tokens(seed + 3, 5)),
    ]


def answers(
    engine: Engine, batches: Sequence[Sequence[SegmentedPrompt]], max_tokens: int = 2
) -> list[torch.Tensor]:
    """Log-probabilities of every request; the requests of a batch run side by side."""
    used = {part for batch in batches for prompt in batch for part in prompt.parts}
    warm(engine, *(document for document in documents() if document in used))
    found = []
    for batch in batches:
        messages = [request_of(p, max_tokens=max_tokens + i) for i, p in enumerate(batch)]
        for message in messages:
            engine.submit(message)
        events = drain(engine)
        for message in messages:
            own = events_of(events, message.request_id)
            check_ended(own)
            found.append(logprobs(own))
    return found


def with_graphs(engine: Engine) -> GraphCounts:
    """Let an engine replay what it can, each shape from its first time on; its counts."""
    engine._runner.use_graphs(Replayed(), CaptureRule(asks=1))
    counts = engine._runner.graph_counts
    assert counts is not None
    return counts
