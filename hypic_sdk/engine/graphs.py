"""Forwards without cold rows as CUDA graphs: captured where it pays, then replayed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import torch

from hypic_sdk.engine.capture_rule import CaptureRule
from hypic_sdk.engine.graph_tables import (
    Bucket,
    Eager,
    Field,
    FixedTables,
    GraphShape,
    HostTables,
    plan_tables,
    why_eager,
)
from hypic_sdk.engine.run_table import TableBuilder

logger = logging.getLogger(__name__)

MAX_GRAPHS = 48  # more shapes than these run eagerly


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
    num_failed: int = 0  # captures: after the first one nothing is captured or replayed any more
    capture_s: float = 0.0
    eager: Counter[Eager] = field(default_factory=Counter)  # forwards without a graph, by reason

    def facts(self) -> dict[str, Any]:
        """The same as plain values, each reason by its name, also those that never came up."""
        return {
            "num_replayed": self.num_replayed,
            "num_captured": self.num_captured,
            "num_failed": self.num_failed,
            "capture_s": self.capture_s,
            "eager": {reason.name.lower(): self.eager[reason] for reason in Eager},
        }


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
        rule: CaptureRule,
    ) -> None:
        """
        Args:
            forward: over tables; it reads and writes no other memory that might move.
            rule: says when a bucket is captured.
        """
        self._forward = forward
        self._shape = shape
        self._capture = capture
        self._rule = rule
        self._origin = torch.zeros(1, dtype=torch.int64, device=device)
        self._graphs: dict[Bucket, _Graph] = {}
        self._fields: dict[Bucket, dict[str, Field]] = {}
        self._is_broken = False
        self._is_rented = False  # the batch of the last look runs eagerly for want of a capture
        self.counts = GraphCounts()

    def prepare(self, builder: TableBuilder, drawn_R: torch.Tensor) -> Forward | None:
        """Fill the buffers of a batch's graph; none: it has to run eagerly.

        The gaps' keys and values are to be placed before what is returned is called.

        Args:
            drawn_R: [any] int64 on the device, what the forward before drew.
        """
        tables = self._tables(builder)
        graph = tables if isinstance(tables, Eager) else self._graph(tables.bucket)
        self._is_rented = graph is Eager.NEW_SHAPE
        if isinstance(graph, Eager):
            self.counts.eager[graph] += 1
            logger.debug("eager forward rows=%d reason=%s", builder.num_rows, graph.value)
            self._rule.begin()
            return None
        assert not isinstance(tables, Eager), "there is no graph without tables"
        graph.tables.fill(tables.pieces)
        if builder.is_fed:
            graph.tables.feed(drawn_R)
        self.counts.num_replayed += 1
        return graph.replay

    def ran_eagerly(self) -> None:
        """The batch that had to run eagerly has been launched, nothing else since `prepare`."""
        if self._is_rented:
            self._rule.ran_eagerly()

    def capture_ahead(self, likely: Iterable[TableBuilder], limit_s: float) -> None:
        """Capture graphs that such batches need, before anybody asks for them.

        One that fails is logged, and all forwards are eager then.

        Args:
            limit_s: once it is over no further capture is begun.
        """
        start_s = time.monotonic()
        for builder in likely:
            if self._is_broken or time.monotonic() - start_s >= limit_s:
                break
            tables = self._tables(builder)
            if isinstance(tables, HostTables) and tables.bucket not in self._graphs:
                self._captured(tables.bucket)
        took_s = time.monotonic() - start_s
        logger.info("graphs before the first request=%d took_s=%.1f", len(self._graphs), took_s)

    def _tables(self, builder: TableBuilder) -> HostTables | Eager:
        if self._is_broken:
            return Eager.FAILED_CAPTURE
        reason = why_eager(builder)
        if reason is not None:
            return reason
        return plan_tables(builder, self._shape, self._origin, self._fields)

    def _graph(self, bucket: Bucket) -> _Graph | Eager:
        """The bucket's graph, or why there is none."""
        if bucket in self._graphs:
            return self._graphs[bucket]
        if len(self._graphs) >= MAX_GRAPHS:
            return Eager.MANY_SHAPES
        return self._captured(bucket) if self._rule.is_worth(bucket) else Eager.NEW_SHAPE

    def _captured(self, bucket: Bucket) -> _Graph | Eager:
        self._rule.begin()
        tables = FixedTables(bucket, self._shape, self._origin)
        try:
            replay = self._capture(lambda: self._forward(tables))
        except (
            Exception
        ):  # torch's own, CUDA's or Triton's: what is wrong shows in an eager forward
            logger.exception("a forward could not be captured bucket=%s", bucket)
            self._is_broken = True
            self.counts.num_failed += 1
            return Eager.FAILED_CAPTURE
        took_s = self._rule.captured()
        self.counts.num_captured += 1
        self.counts.capture_s += took_s
        logger.info("captured bucket=%s took_s=%.2f", bucket, took_s)
        self._graphs[bucket] = _Graph(tables, replay)
        return self._graphs[bucket]
