"""One batch through the model: the only one who touches it."""

from __future__ import annotations

import time
from typing import final

import torch

from hypic_sdk.engine.batch import Batch, ColdStep, Sampled, StepResult
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.context import ForwardMemory, TableContext
from hypic_sdk.engine.run_table import RunTable, TableBuilder
from hypic_sdk.engine.sampling import sample_requests
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.models.base import CausalLM
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.store.slab import Slabs


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

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """Run one forward.  Raises whatever the model or an op raises."""
        start_s = time.monotonic()
        table = self._table(batch)
        row_independent = self._settings.row_independent(has_cold=bool(batch.colds))
        context = TableContext(
            table,
            self._memory,
            mode=self._settings.reuse.mode,
            rotary=self._rotary,
            angle_dtype=self._settings.state_dtype,
            row_independent=row_independent,
        )
        hidden_LD = self._model.forward(table.ids, context)
        sampled: tuple[Sampled, ...] = ()
        if batch.sampling:
            logits_RV = self._model.logits(
                hidden_LD[table.logits_rows], row_independent=row_independent
            )
            sampled = sample_requests(logits_RV, batch.sampling)
        finite = zip(batch.colds, context.cold_finite, strict=True)
        cold_finite = tuple(ok and self._is_finite(step) for step, ok in finite)
        return StepResult(sampled, cold_finite, 1e3 * (time.monotonic() - start_s))

    def _table(self, batch: Batch) -> RunTable:
        builder = TableBuilder(
            has_attention=self._has_attention,
            rotate_gaps=self._settings.reuse.mode.rotate,
            device=self._settings.device,
        )
        for request in batch.decodes:
            grant = request.held
            builder.add_decode(request.reply[-1], request.position, grant.state_slot, grant.kv)
        for assembly in batch.assemblies:
            builder.add_live(assembly.stretch)
        for cold in batch.colds:
            builder.add_cold(cold.chunk)
        return builder.build()

    def _is_finite(self, step: ColdStep) -> bool:
        """Whether the entry, once it is complete, holds no value that is not finite."""
        if not step.is_last:
            return True
        entry, slabs = step.chunk.entry, self._memory.slabs
        return all(bool(torch.isfinite(kept).all()) for kept in entry_tensors(entry, slabs))


def entry_tensors(entry: SegmentEntry, slabs: Slabs) -> list[torch.Tensor]:
    """All that an entry keeps, layer by layer within each: its bytes, in one order."""
    kept = [slabs.states[entry.state_slot], slabs.conv_tails[entry.state_slot]]
    if slabs.transitions is not None and entry.transition_slot != NO_SLOT:
        kept.append(slabs.transitions[entry.transition_slot])
    return [*kept, slabs.keys[:, entry.kv_slots], slabs.values[:, entry.kv_slots]]
