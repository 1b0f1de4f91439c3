"""One batch through the model: the only one who touches it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import final

import torch

from hypic_sdk.engine.batch import Batch, FiniteFlags
from hypic_sdk.engine.capture_rule import CaptureRule
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.context import ForwardMemory, TableContext, place_gaps
from hypic_sdk.engine.graph_tables import FixedTables, GraphShape, why_eager
from hypic_sdk.engine.graphs import Capture, CudaCapture, GraphCounts, GraphRunner, Rows
from hypic_sdk.engine.launched import Download, Drawn, Launched
from hypic_sdk.engine.likely import Likely, likely_forwards
from hypic_sdk.engine.logit_edits import edits_of, split_late
from hypic_sdk.engine.prompt_logprobs import prompt_logprobs
from hypic_sdk.engine.request import Reply
from hypic_sdk.engine.run_table import RunTable, TableBuilder
from hypic_sdk.engine.sampling import draw_replies
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.kernels.upload import upload
from hypic_sdk.models.base import CausalLM
from hypic_sdk.store.entry_bytes import entry_tensors
from hypic_sdk.store.slab import Slabs
from hypic_sdk.transport.messages import TokenLogprobs


@final
class Runner:
    """Builds the run table of a batch, runs the forward, draws the tokens."""

    def __init__(
        self, model: CausalLM, settings: EngineSettings, slabs: Slabs, area: ColdArea
    ) -> None:
        self._model = model
        self._settings = settings
        self._memory = ForwardMemory(slabs, area)
        attention = model.spec.attention if model.spec.num_attention else None
        self._has_attention = attention is not None
        self._rotary = None if attention is None else attention.rotary
        self._no_cold = torch.ones(0, dtype=torch.bool, device=settings.device)
        # [any] int64, what the latest forward drew, in the order of its replies
        self._drawn_R = torch.zeros(0, dtype=torch.int64, device=settings.device)
        self._graphs: GraphRunner | None = None
        if settings.graphs:
            self.use_graphs(CudaCapture(settings.device))
        # told of the logits of each reply that a forward gave some, before anything is done to them
        self.on_logits: Callable[[Sequence[Reply], torch.Tensor], None] | None = None

    def use_graphs(self, capture: Capture, rule: CaptureRule | None = None) -> None:
        """Run forwards without cold rows over fixed buffers, as this captures them.

        Args:
            rule: says when; none: that of the settings.
        """
        settings, slabs = self._settings, self._memory.slabs
        shape = GraphShape.of(
            self._model.spec,
            settings.dtype,
            len(slabs.conv_tails),
            rotates=settings.reuse.mode.rotate,
        )
        rule = rule or CaptureRule(settings.capture_asks)
        self._graphs = GraphRunner(self._over, shape, settings.device, capture, rule)

    @torch.inference_mode()
    def capture_ahead(self, likely: Likely, limit_s: float) -> None:
        """Capture what most traffic asks for, within a time; without graphs there is nothing."""
        if self._graphs is None:
            return
        forwards = likely_forwards(likely, self._new_builder, self._settings.device)
        self._graphs.capture_ahead(forwards, limit_s)

    @property
    def graph_counts(self) -> GraphCounts | None:
        """What ran on graphs and what did not; none: graphs are off."""
        return None if self._graphs is None else self._graphs.counts

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Launched:
        """Run one forward and draw its tokens, which nobody has waited for.

        Raises whatever the model or an op raises.
        """
        start_s = time.monotonic()
        if batch.num_rows == 0:  # nothing but replies whose masks were late
            drawn = self._draw(batch, [])
            return Launched(batch, *drawn, lambda: FiniteFlags((), ()), (), start_s)
        builder = self._builder(batch)
        row_independent = self._settings.row_independent(has_cold=bool(batch.colds))
        is_placed = self._placed_ahead(builder)
        rows, cold_finite = self._replayed(builder), self._no_cold
        if rows is None:
            table = builder.build(self._drawn_R, places_gaps=not is_placed)
            context = self._context(table, row_independent=row_independent)
            rows = self._forward(context, has_logits=bool(batch.sampling))
            cold_finite = context.cold_finite
            if self._graphs is not None:
                self._graphs.ran_eagerly()
        hidden_LD = rows.hidden_LD
        drawn = self._draw(batch, self._logits(batch, rows.logits_RV[: builder.num_logits_rows]))
        told = tuple(self._prompt_logprobs(batch, hidden_LD, row_independent=row_independent))
        finite = self._finite_flags(batch, cold_finite, hidden_LD)
        return Launched(batch, *drawn, finite, told, start_s)

    def _logits(self, batch: Batch, logits_RV: torch.Tensor) -> list[torch.Tensor]:
        """Of the replies that this forward gives some, a row each; none if it gives none."""
        if not batch.sampling:
            return []
        places = batch.sampling_rows
        if len(places) > logits_RV.shape[0]:  # several replies begin from one row
            logits_RV = logits_RV[upload(places, logits_RV.device)]
        if self.on_logits is not None:
            self.on_logits(batch.sampling, logits_RV)
        return [logits_RV]

    def _placed_ahead(self, builder: TableBuilder) -> bool:
        """Place the gaps of a forward that may run on a graph; whether that was done.

        As long as the gaps are, so outside of the graph; and before its tables are prepared, so
        that the device copies while the host plans.
        """
        if self._graphs is None or why_eager(builder) is not None:
            return False
        placement = builder.placement()
        if placement is not None:
            place_gaps(placement, self._memory, self._rotary, self._settings.state_dtype)
        return True

    def _replayed(self, builder: TableBuilder) -> Rows | None:
        """The forward on a graph, if there is one for it; its gaps have been placed."""
        replay = None if self._graphs is None else self._graphs.prepare(builder, self._drawn_R)
        return None if replay is None else replay()

    def _context(self, table: RunTable, *, row_independent: bool) -> TableContext:
        return TableContext(
            table,
            self._memory,
            mode=self._settings.reuse.mode,
            rotary=self._rotary,
            angle_dtype=self._settings.state_dtype,
            row_independent=row_independent,
        )

    def _forward(self, context: TableContext, *, has_logits: bool) -> Rows:
        """Hidden rows, and logits of the rows that the table names."""
        table, row_independent = context.table, context.row_independent
        hidden_LD = self._model.forward(table.ids, context)
        if not has_logits:
            return Rows(hidden_LD, hidden_LD[:0])
        logits_RV = self._model.logits(
            hidden_LD[table.logits_rows], row_independent=row_independent
        )
        return Rows(hidden_LD, logits_RV)

    def _over(self, tables: FixedTables) -> Rows:
        """The forward that is captured: the same over whatever stands in the tables."""
        row_independent = self._settings.row_independent(has_cold=False)
        context = self._context(tables.run_table(), row_independent=row_independent)
        return self._forward(context, has_logits=True)

    def _draw(
        self, batch: Batch, logits: list[torch.Tensor]
    ) -> tuple[tuple[Reply, ...], Drawn | None, tuple[tuple[Reply, torch.Tensor], ...]]:
        """A token, or its logits to be held, for each reply that has logits.

        Args:
            logits: those of this forward, if it gave any.
        """
        replies = [*batch.sampling, *batch.held]
        if not replies:
            return (), None, ()
        kept = [reply.held_logits for reply in batch.held if reply.held_logits is not None]
        logits_RV = torch.cat([*logits, torch.stack(kept)]) if kept else logits[0]
        ready, late = split_late(replies, may_wait=batch.is_drawing_only)
        held = tuple((replies[row], logits_RV[row].clone()) for row in late)
        if late:
            logits_RV = logits_RV[upload(ready, logits_RV.device)]
        chosen = tuple(replies[row] for row in ready)
        if not chosen:
            return (), None, held
        edits = edits_of(
            chosen,
            vocab_size=logits_RV.shape[1],
            eos_token_ids=self._settings.eos_token_ids,
            drawn_R=self._drawn_R,
        )
        drawn = draw_replies(logits_RV, chosen, edits)
        self._drawn_R = drawn.ids_R
        return chosen, drawn, held

    def _prompt_logprobs(
        self, batch: Batch, hidden_LD: torch.Tensor, *, row_independent: bool
    ) -> Iterator[list[TokenLogprobs]]:
        """Of each stretch in order, whose rows follow the decode rows."""
        row = len(batch.decodes)
        for step in batch.assemblies:
            wanted = step.request.message.sampling.prompt_logprobs
            yield (
                []
                if wanted is None
                else prompt_logprobs(
                    self._model, hidden_LD, step, row, row_independent=row_independent
                )
            )
            row += len(step.stretch.token_ids)

    def _new_builder(self) -> TableBuilder:
        return TableBuilder(
            has_attention=self._has_attention,
            rotate_gaps=self._settings.reuse.mode.rotate,
            device=self._settings.device,
        )

    def _builder(self, batch: Batch) -> TableBuilder:
        builder = self._new_builder()
        for reply in batch.decodes:
            fed_from = reply.pending_row
            token_id = reply.token_ids[-1] if fed_from is None else 0
            builder.add_decode(token_id, reply.position, reply.state_slot, reply.kv, fed_from)
        for assembly in batch.assemblies:
            builder.add_live(assembly.stretch)
        for cold in batch.colds:
            builder.add_cold(cold.chunk)
        return builder

    def _finite_flags(
        self, batch: Batch, cold_finite: torch.Tensor, hidden_LD: torch.Tensor
    ) -> Callable[[], FiniteFlags]:
        """Look at everything that will be kept; whoever asks for what was found waits for it.

        Args:
            cold_finite: [cold chunks] bool, what the scans found.
        """
        slabs, row = self._memory.slabs, len(batch.decodes)
        flags = [cold_finite]
        flags += [
            _all_finite(entry_tensors(slabs, step.chunk.entry))
            for step in batch.colds
            if step.is_last
        ]
        for step in batch.assemblies:
            for kept in step.snapshots:
                # a key or value that is not finite shows in its own row, and in all that see it
                rows_LD = hidden_LD[row : row + step.rows_before(kept.snapshot.position)]
                flags.append(_all_finite([*_row(slabs, kept.state_slot), rows_LD]))
            row += len(step.stretch.token_ids)
        if not batch.colds and len(flags) == 1:
            return lambda: FiniteFlags((), tuple(() for _ in batch.assemblies))
        found = Download(torch.cat(flags))
        return lambda: _told(batch, found.read().tolist())


def _told(batch: Batch, flags: Sequence[bool]) -> FiniteFlags:
    """Of each cold chunk what its scan found, of each segment that ends, of each snapshot."""
    told = iter(flags)
    scanned = list(itertools.islice(told, len(batch.colds)))
    whole = [next(told) if step.is_last else True for step in batch.colds]
    colds = tuple(a and b for a, b in zip(scanned, whole, strict=True))
    return FiniteFlags(
        colds, tuple(tuple(next(told) for _ in step.snapshots) for step in batch.assemblies)
    )


def _row(slabs: Slabs, state_slot: int) -> list[torch.Tensor]:
    return [slabs.states[state_slot], slabs.conv_tails[state_slot]]


def _all_finite(kept: Iterable[torch.Tensor]) -> torch.Tensor:
    """[1] bool, which nobody has waited for."""
    return torch.stack([tensor.isfinite().all() for tensor in kept]).all(0, keepdim=True)
