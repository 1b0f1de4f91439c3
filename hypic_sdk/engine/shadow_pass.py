"""Full recompute of one finished reply, piece by piece, in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import final

import torch

from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.context import ForwardMemory, TableContext
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import LiveRun, PromptLayout
from hypic_sdk.engine.run_table import LiveStretch, TableBuilder
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.models.base import CausalLM
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.store.layout import SlabSizes, StoreLayout
from hypic_sdk.store.slab import Slabs


@final
class ShadowMemory:
    """One running state and `num_tokens` KV slots, taken once; nothing of the store's."""

    def __init__(
        self, layout: StoreLayout, settings: EngineSettings, area: ColdArea, num_tokens: int
    ) -> None:
        num_slots = num_tokens if layout.keeps_kv else 0
        num_bytes = layout.state_row_bytes + num_slots * layout.kv_slot_bytes
        slabs = Slabs.allocate(
            layout,
            SlabSizes(1, 0, num_slots, budget_bytes=num_bytes, unused_bytes=0),
            settings.device,
            purpose="live checks: lower max_tokens of ShadowConfig (--shadow-tokens)",
        )
        self.num_bytes = slabs.num_bytes
        # no cold segment runs here, so the engine's work memory is named and never touched
        self.forward = ForwardMemory(slabs, area)
        self.kv = KvTable(torch.arange(num_tokens), settings.device)


@final
class ShadowPass:
    """A plain causal forward over a prompt and its reply, one piece of the chunk grid a step."""

    def __init__(
        self,
        model: CausalLM,
        settings: EngineSettings,
        memory: ShadowMemory,
        prompt: SegmentedPrompt,
        reply: Sequence[int],
    ) -> None:
        """
        Args:
            reply: what was answered, without the last token that is looked at: no row follows it.
        """
        self._model = model
        self._settings = settings
        self._memory = memory
        self._token_ids = (*prompt.token_ids, *reply)
        self._first_row = prompt.num_tokens - 1  # whose logits are the reply's first
        layout = PromptLayout(prompt, (), settings.chunk_tokens, "")
        later = range(prompt.num_tokens, len(self._token_ids), settings.chunk_tokens)
        self._cuts = (*layout.cuts[:-1], *later, len(self._token_ids))
        self._pieces = [LiveRun(start, stop) for start, stop in pairwise(self._cuts)]
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Whether every token went through the model."""
        return self._next == len(self._pieces)

    @torch.inference_mode()
    def step(self) -> torch.Tensor:
        """Run what fits one grid chunk; hidden rows [n, D] of positions that the reply came from.

        Raises whatever the model or an op raises.
        """
        runs = self._take()
        start, stop = runs[0].start, runs[-1].stop
        stretch = LiveStretch(
            token_ids=self._token_ids[start:stop],
            steps=runs,
            load_slot=NO_SLOT if start == 0 else 0,
            save_slots=[0],
            kv=self._memory.kv,
            wants_logits=False,
        )
        hidden_LD = self._forward(stretch)
        return hidden_LD[max(0, self._first_row - start) : stop - start]

    def _take(self) -> list[LiveRun]:
        """The next pieces, as many as one grid chunk's tokens hold; at least one."""
        runs = [self._pieces[self._next]]
        for piece in self._pieces[self._next + 1 :]:
            if piece.stop - runs[0].start > self._settings.chunk_tokens:
                break
            runs.append(piece)
        self._next += len(runs)
        return runs

    def _forward(self, stretch: LiveStretch) -> torch.Tensor:
        settings, spec = self._settings, self._model.spec
        attention = spec.attention if spec.num_attention else None
        builder = TableBuilder(
            has_attention=attention is not None, rotate_gaps=True, device=settings.device
        )
        builder.add_live(stretch)
        context = TableContext(
            builder.build(),
            self._memory.forward,
            mode=settings.reuse.mode,
            rotary=None if attention is None else attention.rotary,
            angle_dtype=settings.state_dtype,
            row_independent=settings.row_independent(has_cold=False),
        )
        return self._model.forward(context.table.ids, context)
