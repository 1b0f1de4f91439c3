"""How small the pair of a segment may be stored, and what each way costs in the composed state.

The pairs are of real documents, of every linear layer and head, from the definition in fp64.  Each
way of storing one is undone again, documents are composed in random orders, and the state at the
end is compared with that of the pairs as they are: what an answer would be read from.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from hypic_sdk.algebra.segment_state import SegmentState, fold
from hypic_sdk.algebra.transition import DenseTransition
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.scores import relative_l2
from hypic_sdk.bench.subject import Subject, load_subject
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConfigError
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.int8_pairs import DIAGONAL_DTYPE, SCALE_DTYPE, from_int8, to_int8
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt

if TYPE_CHECKING:
    from rich.console import Console

SEED = 90_211
HEAD_TOKENS = 8  # the head seam, which no pair contains
NUM_ORDERS = 24
DOCUMENTS_A_PROMPT = 8

Pair = SegmentState[DenseTransition]
Codec = Callable[[torch.Tensor], tuple[torch.Tensor, float]]
"""Of a tensor [.., rows, columns] in fp64: what is read back, and the bytes of one matrix."""


def as_dtype(dtype: torch.dtype) -> Codec:
    """Rounded to a floating-point type."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        return x.to(dtype).to(x.dtype), x.shape[-2] * x.shape[-1] * dtype.itemsize

    return run


def int8(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Whole numbers of 8 bits, with one bf16 scale a row, as the store rounds them."""
    return from_int8(*to_int8(x), x.dtype), x.shape[-2] * (x.shape[-1] + SCALE_DTYPE.itemsize)


def fp8(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Floating-point numbers of 8 bits, with one bf16 scale a row."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = (x.abs().amax(-1, keepdim=True) / largest).to(SCALE_DTYPE).to(x.dtype)
    # a row of nothing has a scale of zero, and is read back as zero
    scaled = torch.where(scale > 0, x / scale.clamp(min=1e-30), 0.0).clamp(-largest, largest)
    rounded = scaled.to(torch.float8_e4m3fn).to(x.dtype)
    return rounded * scale, x.shape[-2] * (x.shape[-1] + SCALE_DTYPE.itemsize)


def beside_diagonal(inner: Codec) -> Codec:
    """The diagonal in fp16, the rest by another way: most of what a transition keeps is on it."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        diagonal = torch.diag_embed(x.diagonal(dim1=-2, dim2=-1))
        rest, num_bytes = inner(x - diagonal)
        kept = diagonal.to(DIAGONAL_DTYPE).to(x.dtype)
        return kept + rest, num_bytes + DIAGONAL_DTYPE.itemsize * x.shape[-1]

    return run


def of_rank(rank: int) -> Codec:
    """The nearest matrix of a rank, as two fp16 factors."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        left, sizes, right = torch.linalg.svd(x)
        root = sizes[..., :rank].sqrt()
        first = (left[..., :rank] * root[..., None, :]).to(torch.float16).to(x.dtype)
        second = (root[..., None] * right[..., :rank, :]).to(torch.float16).to(x.dtype)
        return first @ second, 2 * rank * (x.shape[-2] + x.shape[-1])

    return run


def nothing(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Zero: whatever stood before the segment is gone."""
    return torch.zeros_like(x), 0.0


def identity(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Addition: the segment changes nothing of what stood before."""
    return torch.eye(x.shape[-1], dtype=x.dtype).expand_as(x).clone(), 0.0


def scalar(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The nearest multiple of the identity, one fp32 number a head."""
    mean = x.diagonal(dim1=-2, dim2=-1).mean(-1).to(torch.float32).to(x.dtype)
    return mean[..., None, None] * torch.eye(x.shape[-1], dtype=x.dtype), 4.0


STATES: Mapping[str, Codec] = MappingProxyType(
    {"fp32": as_dtype(torch.float32), "fp16": as_dtype(torch.float16), "int8": int8}
)
TRANSITIONS: Mapping[str, Codec] = MappingProxyType(
    {
        "fp32": as_dtype(torch.float32),
        "fp16": as_dtype(torch.float16),
        "bf16": as_dtype(torch.bfloat16),
        "int8": int8,
        "fp8": fp8,
        "int8, diagonal": beside_diagonal(int8),
        "fp8, diagonal": beside_diagonal(fp8),
        "rank 16, diagonal": beside_diagonal(of_rank(16)),
        "rank 16": of_rank(16),
        "rank 8": of_rank(8),
        "rank 4": of_rank(4),
        "scalar": scalar,
        "addition": identity,
        "null": nothing,
    }
)
#: transition and state; the first is what the store keeps unless told otherwise, and with
#: `StoreConfig(pair="int8")` both are int8, the transition beside its diagonal
WAYS = (
    ("fp16", "fp32"),
    ("fp32", "fp32"),
    ("bf16", "fp32"),
    ("fp16", "fp16"),
    ("int8", "fp32"),
    ("fp8", "fp32"),
    ("int8", "int8"),
    ("fp8", "int8"),
    ("int8, diagonal", "fp32"),
    ("fp8, diagonal", "fp32"),
    ("int8, diagonal", "fp16"),
    ("fp8, diagonal", "fp16"),
    ("int8, diagonal", "int8"),
    ("fp8, diagonal", "int8"),
    ("rank 16, diagonal", "fp32"),
    ("fp16", "int8"),
    ("rank 16", "fp32"),
    ("rank 8", "fp32"),
    ("rank 4", "fp32"),
    ("scalar", "fp32"),
    ("addition", "fp32"),
    ("null", "fp32"),
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of storing pairs; errors are relative L2 of a layer's state after eight documents."""

    transition: str
    state: str
    num_bytes: float  # of all pairs of one segment
    share: float  # of what the store keeps
    median: float
    worst: float  # of all orders and layers
    by_layer: tuple[float, ...]  # medians


def document_pairs(subject: Subject, texts: Sequence[str]) -> list[list[Pair]]:
    """The pair of each document's interior, document by document, layer by layer, fp64.

    Raises:
        ConfigError: the model's transitions are no matrices.
    """
    probe = subject.probe("full_recompute")
    probe.model.keeps_recurrences = True
    found = []
    for text in texts:
        ids = subject.tokenizer.encode_segment(text)
        parts = (PromptPart(Role.LEADING, ids), PromptPart(Role.TRAILING, ids[:1]))
        probe.read(SegmentedPrompt(parts), 1)
        layers = zip(*probe.model.recurrences, strict=True)
        found.append([_interior(chunks, len(ids)) for chunks in layers])
    return found


def _interior(chunks: Sequence[Recurrence], num_tokens: int) -> Pair:
    """The pair of tokens [HEAD_TOKENS, num_tokens) of a stream that is cut into forwards."""
    pairs, at = [], 0
    for chunk in chunks:
        start, stop = max(HEAD_TOKENS - at, 0), min(num_tokens - at, chunk.num_tokens)
        at += chunk.num_tokens
        if start < stop:
            pairs.append(_in_fp64(chunk.rows(start, stop)).segment_state())
    whole = fold(pairs)
    if not isinstance(whole.transition, DenseTransition):
        raise ConfigError("the transitions of this model are no matrices: there is little to save")
    return SegmentState(whole.transition, whole.end_state)


def _in_fp64(recurrence: Recurrence) -> Recurrence:
    tensors = {f.name: getattr(recurrence, f.name) for f in fields(recurrence)}
    wide: dict[str, Any] = {
        name: t.double() for name, t in tensors.items() if isinstance(t, torch.Tensor)
    }
    return replace(recurrence, **wide)


def stored(pair: Pair, transition: str, state: str) -> tuple[Pair, float]:
    """What is read back of a pair that was stored one way, and its bytes, all heads together."""
    matrix, of_matrix = TRANSITIONS[transition](pair.transition.matrix)
    end_state, of_state = STATES[state](pair.end_state)
    num_bytes = pair.end_state.shape[0] * (of_matrix + of_state)
    return SegmentState(DenseTransition(matrix), end_state), num_bytes


def measure(pairs: Sequence[Sequence[Pair]], transition: str, state: str) -> Way:
    """One way of storing, over the same orders of documents as every other."""
    rng = random.Random(SEED)
    small = [[stored(pair, transition, state) for pair in layers] for layers in pairs]
    errors: list[list[float]] = [[] for _ in pairs[0]]
    for _ in range(NUM_ORDERS):
        order = rng.sample(range(len(pairs)), min(DOCUMENTS_A_PROMPT, len(pairs)))
        for layer, found in enumerate(errors):
            wanted = composed([pairs[one][layer] for one in order])
            found.append(relative_l2(composed([small[one][layer][0] for one in order]), wanted))
    num_bytes = sum(own for _, own in small[0])
    kept = sum(stored(pair, *WAYS[0])[1] for pair in pairs[0])
    return Way(
        transition,
        state,
        num_bytes,
        num_bytes / kept,
        statistics.median(error for found in errors for error in found),
        max(error for found in errors for error in found),
        tuple(statistics.median(found) for found in errors),
    )


def composed(pairs: Sequence[Pair]) -> torch.Tensor:
    """The state [H, K, V] after segments that follow each other, from a zero state."""
    state = torch.zeros_like(pairs[0].end_state)
    for pair in pairs:
        state = pair.apply(state)
    return state


def frontier(ways: Sequence[Way]) -> list[Way]:
    """Those that no other way beats in both bytes and median error."""
    return [
        one
        for one in ways
        if not any(
            other.num_bytes <= one.num_bytes
            and other.median <= one.median
            and (other.num_bytes, other.median) != (one.num_bytes, one.median)
            for other in ways
        )
    ]


def run_pairs_bench(console: Console, *, model: str | None, folder: Path | None) -> list[Way]:
    """Measure every way, print the table, write pairs.json into `folder`.

    Raises:
        ConfigError: the model's transitions are no matrices.
    """
    subject = load_subject(model, "cpu")
    pairs = document_pairs(subject, list(DOCUMENTS.values()))
    ways = [measure(pairs, *way) for way in WAYS]
    best = frontier(ways)
    table = Table("transition", "state", "KiB a segment", "of it", "median error", "worst", "")
    for way in ways:
        table.add_row(
            way.transition,
            way.state,
            f"{way.num_bytes / 1024:.1f}",
            f"{way.share:.2f}",
            f"{way.median:.1e}",
            f"{way.worst:.1e}",
            "frontier" if way in best else "",
        )
    where = circumstances(subject.device)
    console.print(str(where), highlight=False)
    console.print(
        f"{subject.name}: {len(pairs)} documents, {NUM_ORDERS} orders of {DOCUMENTS_A_PROMPT}; "
        f"relative L2 of a layer's state; seed {SEED}"
    )
    console.print(table)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        report = {
            "bench": "pairs",
            "model": subject.name,
            "seed": SEED,
            "circumstances": asdict(where),
            "ways": [asdict(way) for way in ways],
            "frontier": [(way.transition, way.state) for way in best],
        }
        (folder / "pairs.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return ways
