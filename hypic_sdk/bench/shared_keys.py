"""Attention over a segment's own keys against attention over private copies of them.

The experiment of `hypic bench experiments`.  Where a request is assembled, its interiors' keys,
rotated to their new positions, and values are copied (`place_entries`), and `live_attention` reads
the copies.  `shared_attention` reads the segment's own, in one of two ways: the query is turned to
fit each segment, whose keys stand rotated at their places in it; or the keys stand unrotated, and
are rotated while they are read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from hypic_sdk.bench.kernel_shapes import ROUNDED, Shapes
from hypic_sdk.bench.replays import microseconds_of
from hypic_sdk.bench.report import Spread
from hypic_sdk.config import MIB
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention import reference as private_reference
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_attention.table import AttentionTable
from hypic_sdk.kernels.place_entries.op import place_entries
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles, rotate
from hypic_sdk.kernels.shared_attention.op import shared_attention
from hypic_sdk.kernels.shared_attention.plan import SharedInterior, SharedRun, SharedTable, Turn

logger = logging.getLogger(__name__)

LIMIT = 1.10  # times the attention over private copies: more, and the way is given up
TURNS: tuple[Turn, ...] = ("query", "key")
HEAD_TOKENS, LEADING_TOKENS = 8, 24
BOUND = ROUNDED  # relative RMS, as `live_attention`'s


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests of one shape, each over documents of its own."""

    name: str
    num_requests: int
    num_documents: int  # of a request
    document_tokens: int
    rows: int  # of the trailing part
    decodes: bool  # only the last row runs; else seams and trailing part too

    @property
    def interior(self) -> int:
        """Cached tokens of a document."""
        return self.document_tokens - HEAD_TOKENS

    @property
    def num_live(self) -> int:
        """Live tokens of a request."""
        return LEADING_TOKENS + self.num_documents * HEAD_TOKENS + self.rows

    @property
    def num_cached(self) -> int:
        """Cached tokens of a request."""
        return self.num_documents * self.interior


SCENES = (
    Scene("4 x 4k, 64 rows and seams", 1, 4, 4096, 64, decodes=False),
    Scene("12 x 1k, 64 rows and seams", 1, 12, 1024, 64, decodes=False),
    Scene("decode, batch 1, 4k", 1, 1, 4096, 64, decodes=True),
    Scene("decode, batch 32, 4k each", 32, 1, 4096, 64, decodes=True),
)
SMALL_SCENES = (
    Scene("small assembly", 1, 3, 700, 20, decodes=False),
    Scene("small decode", 3, 2, 1100, 9, decodes=True),
)
TINY_SCENES = (
    Scene("tiny assembly", 1, 3, 20, 5, decodes=False),
    Scene("tiny decode", 2, 2, 13, 3, decodes=True),
)


@final
class Slabs:
    """Keys and values of all layers: cached interiors, live tokens, room for private copies."""

    def __init__(
        self, scene: Scene, shapes: Shapes, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.scene = scene
        self.shapes = shapes
        self.scale = shapes.attention_size**-0.5
        cached, live = (scene.num_requests * x for x in (scene.num_cached, scene.num_live))
        shape = (shapes.num_attention, 2 * cached + live, shapes.num_kv_heads)
        self.keys, self.values = (
            torch.randn(*shape, shapes.attention_size, device=device, dtype=dtype) for _ in range(2)
        )
        slots = torch.arange(2 * cached + live, device=device)
        by_request = scene.num_requests, -1
        self.cached = slots[:cached].view(by_request)
        self.live = slots[cached : cached + live].view(by_request)
        self.copies = slots[cached + live :].view(by_request)
        spec = RotarySpec(1e7, 2 * max(1, shapes.attention_size // 8))
        positions = torch.arange(scene.num_cached + scene.num_live, device=device)
        wide = torch.promote_types(dtype, torch.float32)
        self.cos, self.sin = rotary_angles(spec, positions, wide)
        self._order()

    def _order(self) -> None:
        """Where each token of a request stands in it, and which tokens stand between interiors."""
        scene, device = self.scene, self.keys.device
        live, cached = [*range(LEADING_TOKENS)], list[int]()
        self.spans, position = list[tuple[int, int, int]](), LEADING_TOKENS
        for _ in range(scene.num_documents):
            self.spans.append((len(live), position, HEAD_TOKENS))
            live += range(position, position + HEAD_TOKENS)
            position += HEAD_TOKENS
            cached += range(position, position + scene.interior)
            position += scene.interior
        self.spans.append((len(live), position, scene.rows))
        live += range(position, position + scene.rows)
        self.live_positions = torch.tensor(live, device=device)
        self.cached_positions = torch.tensor(cached, device=device)
        placed = self.cached_positions.repeat(scene.num_requests)
        self._placed = self.cos[placed], self.sin[placed]

    @property
    def num_rows(self) -> int:
        """Queries of a forward."""
        return self.scene.num_requests * sum(count for _, _, count, _ in self.row_spans())

    @property
    def copies_bytes(self) -> int:
        """Keys and values that all requests hold twice where copies are private."""
        layers, _, heads, size = self.keys.shape
        return 2 * self.copies.numel() * layers * heads * size * self.keys.element_size()

    def row_spans(self) -> list[tuple[int, int, int, int]]:
        """Of a request's runs: place among its live tokens, position, rows, interiors before it."""
        runs = [(a, p, n, i) for i, (a, p, n) in enumerate(self.spans)]
        if self.scene.decodes:
            first, position, count, before = runs[-1]
            return [(first + count - 1, position + count - 1, 1, before)]
        return runs

    def private_runs(self) -> tuple[AttentionRun, ...]:
        """Over each request's own slots, live and copied, in order of position."""
        runs, row = [], 0
        for live, copies in zip(self.live, self.copies, strict=True):
            slots = torch.empty_like(torch.cat((live, copies)))
            slots[self.live_positions], slots[self.cached_positions] = live, copies
            for _, position, count, _ in self.row_spans():
                runs.append(AttentionRun(row, row + count, position, slots))
                row += count
        return tuple(runs)

    def shared_runs(self) -> tuple[SharedRun, ...]:
        """Over each request's live slots and the segments' own."""
        runs, row = [], 0
        for live, cached in zip(self.live, self.cached, strict=True):
            interiors = tuple(
                SharedInterior(position + HEAD_TOKENS, HEAD_TOKENS, slots)
                for (_, position, _), slots in zip(
                    self.spans[:-1], cached.split(self.scene.interior), strict=True
                )
            )
            for first, position, count, before in self.row_spans():
                seen = interiors[:before]
                runs.append(SharedRun(row, row + count, position, live, first, seen))
                row += count
        return tuple(runs)

    def place(self) -> None:
        """What an assembly does before its first layer: keys and values to private slots."""
        cos, sin = self._placed
        place_entries(
            *(self.keys, self.values, self.cached.flatten(), self.copies.flatten()),
            cos=cos,
            sin=sin,
        )

    def rotate_live(self) -> None:
        """Live keys as the layers have written them."""
        positions = self.live_positions.repeat(self.scene.num_requests)
        self._rotate(self.live.flatten(), positions)

    def rotate_cached(self) -> None:
        """Cached keys as way "query" keeps them: rotated at their places in the segment."""
        local = torch.arange(HEAD_TOKENS, self.scene.document_tokens, device=self.keys.device)
        how_many = self.scene.num_requests * self.scene.num_documents
        self._rotate(self.cached.flatten(), local.repeat(how_many))

    def _rotate(self, slots: torch.Tensor, positions: torch.Tensor) -> None:
        for layer in self.keys:
            layer[slots] = rotate(layer[slots], self.cos[positions], self.sin[positions])

    def query_positions(self) -> torch.Tensor:
        """Of all rows of a forward."""
        found = [p + i for _, p, n, _ in self.row_spans() for i in range(n)]
        return torch.tensor(found, device=self.keys.device).repeat(self.scene.num_requests)

    def turned(self, query_LQE: torch.Tensor) -> torch.Tensor:
        """Queries as `live_attention` takes them."""
        at = self.query_positions()
        return rotate(query_LQE, self.cos[at], self.sin[at])

    def query(self) -> torch.Tensor:
        """Random queries before their rotation."""
        shape = self.num_rows, self.shapes.num_query_heads, self.shapes.attention_size
        return torch.randn(shape, device=self.keys.device, dtype=self.keys.dtype)


@dataclass(frozen=True, slots=True)
class Check:
    """An arm against the definition in fp64; an error that is no number does not hold."""

    scene: str
    arm: str
    error: float  # relative RMS

    @property
    def passed(self) -> bool:
        """Whether it is within what bf16 allows."""
        return self.error <= BOUND


def checks(scene: Scene, shapes: Shapes, device: torch.device) -> list[Check]:
    """Every arm at a small shape, on the device, in bf16."""
    slabs = Slabs(scene, shapes, device, torch.bfloat16)
    query = slabs.query()
    want = _definition(slabs, query)
    slabs.rotate_live()
    slabs.place()
    found = []
    for arm in ("private", "key", "query"):
        if arm == "query":  # the others find cached keys unrotated
            slabs.rotate_cached()
        out = torch.full_like(query, torch.nan)
        try:
            _call(slabs, query, arm, out, num_layers=1)()
            error = float((out.cpu().double() - want).norm() / want.norm())
        except Exception as reason:  # a kernel that does not compile is wrong, and nothing else is
            logger.warning("%s fails here: %s", arm, reason)
            error = math.inf
        found.append(Check(scene.name, arm, error))
    return found


def _definition(slabs: Slabs, query_LQE: torch.Tensor) -> torch.Tensor:
    """In fp64 on the CPU from unrotated keys: all rotated at their positions, then attended to."""
    keys, values = slabs.keys[0].cpu().double(), slabs.values[0].cpu().double()
    positions = torch.arange(slabs.cos.shape[0])
    spec = RotarySpec(1e7, 2 * slabs.cos.shape[1])
    cos, sin = rotary_angles(spec, positions, torch.float64)
    at = slabs.query_positions().cpu()
    query = rotate(query_LQE.cpu().double(), cos[at], sin[at])
    out = torch.empty_like(query)
    row = 0
    for live, cached in zip(slabs.live.cpu(), slabs.cached.cpu(), strict=True):
        slots = torch.empty_like(torch.cat((live, cached)))
        slots[slabs.live_positions.cpu()], slots[slabs.cached_positions.cpu()] = live, cached
        own_keys, own_values = rotate(keys[slots], cos, sin), values[slots]
        for run in _own_runs(slabs, row):
            private_reference.live_attention(
                query, [run], own_keys, own_values, scale=slabs.scale, out_LQE=out
            )
            row = run.row_stop
    return out


def _own_runs(slabs: Slabs, row: int) -> list[AttentionRun]:
    """Of one request, over slots in order of position."""
    slots, runs = torch.arange(slabs.cos.shape[0]), []
    for _, position, count, _ in slabs.row_spans():
        runs.append(AttentionRun(row, row + count, position, slots))
        row += count
    return runs


@dataclass(frozen=True, slots=True)
class Timing:
    """One arm of one scene."""

    scene: str
    arm: str
    us_a_layer: Spread
    over_private: float  # medians
    with_placing_ms: float  # all layers, and for private copies what fills them; medians
    copies_mib: float  # of keys and values, in all layers


def timings(
    scene: Scene, shapes: Shapes, device: torch.device, arms: Sequence[str]
) -> list[Timing]:
    """Attention of all layers, private copies first; on a CUDA device as replays of a graph.

    Placing is counted for an assembly alone: a request that decodes has been placed before.
    """
    slabs = Slabs(scene, shapes, device, torch.bfloat16)
    query, num_layers = slabs.query(), shapes.num_attention
    placing = [0.0] if scene.decodes else microseconds_of(slabs.place, device)
    rows: list[Timing] = []
    for arm in ("private", *arms):
        call = _call(slabs, query, arm, torch.zeros_like(query), num_layers)
        us = microseconds_of(call, device)
        a_layer = Spread.of([x / num_layers for x in us])
        base = rows[0].us_a_layer.median if rows else a_layer.median
        extra = Spread.of(placing).median if arm == "private" else 0.0
        whole_ms = (num_layers * a_layer.median + extra) / 1e3
        mib = slabs.copies_bytes / MIB if arm == "private" else 0.0
        rows.append(Timing(scene.name, arm, a_layer, a_layer.median / base, whole_ms, mib))
    return rows


def _call(
    slabs: Slabs, query: torch.Tensor, arm: str, out: torch.Tensor, num_layers: int
) -> Callable[[], object]:
    """Attention of some layers, tables and rotated queries made beforehand."""
    slabs_of_layers = tuple(zip(slabs.keys, slabs.values, strict=True))[:num_layers]
    group, scale = slabs.shapes.num_query_heads // slabs.shapes.num_kv_heads, slabs.scale
    if arm == "private":
        runs, turned = slabs.private_runs(), slabs.turned(query)
        table: AttentionTable | Sequence[AttentionRun] = runs
        if query.device.type == "cuda":
            table = AttentionTable.of(runs, group, is_wide=False, device=query.device)

        def privately() -> None:
            assert runs, "a table finds slots by their address: they live as long as it does"
            for keys, values in slabs_of_layers:
                live_attention(turned, table, keys, values, scale=scale, out_LQE=out)

        return privately
    turn: Turn = "query" if arm == "query" else "key"
    shared_runs = slabs.shared_runs()
    shared_table = SharedTable.of(shared_runs, group, turn, is_wide=False)

    def sharing() -> None:
        for keys, values in slabs_of_layers:
            shared_attention(
                *(query, shared_runs, keys, values),
                cos=slabs.cos, sin=slabs.sin, turn=turn, scale=scale,
                table=shared_table, out_LQE=out,
            )  # fmt: skip

    return sharing
