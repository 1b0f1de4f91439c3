"""Forwards without cold rows as CUDA graphs: captured once a bucket, then replayed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, final

import torch

from hypic_sdk.engine.graph_tables import (
    Bucket,
    FixedTables,
    GraphShape,
    HostTables,
    plan_tables,
    why_eager,
)
from hypic_sdk.engine.run_table import TableBuilder

logger = logging.getLogger(__name__)

MAX_GRAPHS = 48  # more shapes than these run eagerly
WORTH_FROM = 2  # times that a shape is asked for: what comes once is not worth a capture


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a forward gives; of a graph: memory that the next replay writes again."""

    hidden_LD: torch.Tensor
    logits_RV: torch.Tensor  # of the rows that want logits, and of padding behind them


Forward = Callable[[], Rows]


class Capture(Protocol):
    """Makes of a forward over fixed buffers one that runs the same again, whatever is in them.

    The forward is called while the buffers hold a forward of nothing.
    """

    def __call__(self, forward: Forward) -> Forward: ...


@final
class CudaCapture:
    """A CUDA graph each; all share one pool of memory, since they never run side by side."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, forward: Forward) -> Forward:
        """Run once, so that kernels are compiled and libraries have their memory; then capture."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            forward()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # other threads (copies between workers) go on meanwhile
        with torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._stream,
            capture_error_mode="thread_local",
        ):
            rows = forward()

        def replay() -> Rows:
            graph.replay()
            return rows

        return replay


@dataclass(slots=True)
class GraphCounts:
    """What ran how, since the engine began."""

    num_replayed: int = 0
    num_captured: int = 0
    capture_s: float = 0.0
    eager: Counter[str] = field(default_factory=Counter)  # forwards without a graph, by reason


@dataclass(frozen=True, slots=True)
class _Graph:
    tables: FixedTables
    replay: Forward


@final
class GraphRunner:
    """Runs batches on graphs, where there is one that they fit."""

    def __init__(
        self,
        forward: Callable[[FixedTables], Rows],
        shape: GraphShape,
        device: torch.device,
        capture: Capture,
    ) -> None:
        """
        Args:
            forward: over tables; it reads and writes no other memory that might move.
        """
        self._forward = forward
        self._shape = shape
        self._capture = capture
        self._origin = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[Bucket, _Graph] = {}
        self._asked: Counter[Bucket] = Counter()
        self._is_broken = False
        self.counts = GraphCounts()

    def prepare(self, builder: TableBuilder) -> Forward | None:
        """Fill the buffers of a batch's graph; none: it has to run eagerly.

        The gaps' keys and values are to be placed before what is returned is called.
        """
        tables = self._tables(builder)
        graph = tables if isinstance(tables, str) else self._graph(tables.bucket)
        if isinstance(tables, str) or isinstance(graph, str):
            reason = tables if isinstance(tables, str) else str(graph)
            self.counts.eager[reason] += 1
            logger.debug("eager forward rows=%d reason=%s", builder.num_rows, reason)
            return None
        graph.tables.fill(tables.pieces)
        self.counts.num_replayed += 1
        return graph.replay

    def _tables(self, builder: TableBuilder) -> HostTables | str:
        if self._is_broken:
            return "a capture failed"
        reason = why_eager(builder)
        return reason if reason is not None else plan_tables(builder, self._shape, self._origin)

    def _graph(self, bucket: Bucket) -> _Graph | str:
        """The bucket's graph, or why there is none."""
        if bucket in self._graphs:
            return self._graphs[bucket]
        self._asked[bucket] += 1
        if self._asked[bucket] < WORTH_FROM:
            return "a new shape"
        if len(self._graphs) >= MAX_GRAPHS:
            return "many shapes"
        start_s = time.monotonic()
        tables = FixedTables(bucket, self._shape, self._origin)
        try:
            replay = self._capture(lambda: self._forward(tables))
        except RuntimeError:  # torch's own, and CUDA's
            logger.exception("a forward could not be captured bucket=%s", bucket)
            self._is_broken = True
            return "a capture failed"
        took_s = time.monotonic() - start_s
        self.counts.num_captured += 1
        self.counts.capture_s += took_s
        logger.info("captured bucket=%s took_s=%.2f", bucket, took_s)
        self._graphs[bucket] = _Graph(tables, replay)
        return self._graphs[bucket]
