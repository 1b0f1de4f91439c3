"""ForwardContext over a run table: the one that layers ask during a mixed forward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from hypic_sdk.algebra.rotary import RotarySpec, rotary_angles
from hypic_sdk.config import ReuseMode
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.gap_placement import GapPlacement
from hypic_sdk.engine.run_table import RunTable
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.attention_inputs.op import attention_inputs
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.place_entries.op import place_entries
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.short_conv.op import short_conv
from hypic_sdk.store.slab import Slabs


@dataclass(frozen=True, slots=True, eq=False)
class LinearSlabs:
    """Views of every linear layer's part of the slabs, made once."""

    states: tuple[torch.Tensor, ...]  # J of [S, H, K, V]
    conv_tails: tuple[torch.Tensor, ...]  # J of [S or more, W-1, C]
    transitions: tuple[torch.Tensor | Int8Pairs | None, ...]  # J of [X, H, ..]

    @classmethod
    def of(cls, slabs: Slabs) -> LinearSlabs:
        """Cut slabs of all layers into layers."""
        transitions = _layers(slabs.transitions, slabs.states.shape[1])
        return cls(
            states=slabs.states.unbind(1),
            conv_tails=slabs.conv_tails.unbind(1),
            transitions=transitions if slabs.pairs is None else slabs.pairs.layers(),
        )


@dataclass(frozen=True, slots=True, eq=False)
class WorkSlabs:
    """Views of every linear layer's part of the work memory of cold segments, likewise."""

    states: tuple[torch.Tensor, ...]  # J of [X, H, K, V]
    conv_tails: tuple[torch.Tensor, ...]  # J of [X, W-1, C]
    transitions: tuple[torch.Tensor | None, ...]  # J of [X, H, ..]
    heads: tuple[torch.Tensor | None, ...]  # J of [X, H, K, V]

    @classmethod
    def of(cls, area: ColdArea) -> WorkSlabs:
        """Cut slabs of all layers into layers."""
        num_layers = area.states.shape[1]
        return cls(
            states=area.states.unbind(1),
            conv_tails=area.tails.unbind(1),
            transitions=_layers(area.transitions, num_layers),
            heads=_layers(area.heads, num_layers),
        )


def _layers(slab: torch.Tensor | None, num_layers: int) -> tuple[torch.Tensor | None, ...]:
    return (None,) * num_layers if slab is None else slab.unbind(1)


@final
class ForwardMemory:
    """All that a forward reads and writes besides its own rows."""

    def __init__(self, slabs: Slabs, area: ColdArea) -> None:
        self.slabs = slabs
        self.linear = LinearSlabs.of(slabs)
        self.work = WorkSlabs.of(area)
        self.keys = slabs.keys.unbind(0)  # A of [P, G, E]
        self.values = slabs.values.unbind(0)


def _angles(
    rotary: RotarySpec | None, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    return (None, None) if rotary is None else rotary_angles(rotary, positions, dtype)


def place_gaps(
    placement: GapPlacement,
    memory: ForwardMemory,
    rotary: RotarySpec | None,
    angle_dtype: torch.dtype,
) -> None:
    """Splice: copy cached keys and values to their private slots, keys turned on the way."""
    cos, sin = _angles(rotary, placement.positions, angle_dtype)
    place_entries(
        memory.slabs.keys,
        memory.slabs.values,
        placement.source_slots,
        placement.target_slots,
        cos=cos,
        sin=sin,
        interleaved=rotary is not None and rotary.interleaved,
    )


@final
class TableContext:
    """Answers for one forward; made for it, and dropped after it."""

    def __init__(
        self,
        table: RunTable,
        memory: ForwardMemory,
        *,
        mode: ReuseMode,
        rotary: RotarySpec | None,
        angle_dtype: torch.dtype,
        row_independent: bool,
    ) -> None:
        """Places the forward's gaps at once, but for those over entries that it writes itself.

        Args:
            rotary: of the attention layers.
            angle_dtype: of the cosines and sines, fp32 or fp64.
        """
        self._table = table
        self._memory = memory
        self._mode = mode
        self._rotary = rotary
        self._row_independent = row_independent
        # of each layer so far, [cold runs] bool
        self._found_finite: list[torch.Tensor] = []
        self._cos, self._sin = _angles(rotary, table.positions, angle_dtype)
        if table.placement is not None:
            place_gaps(table.placement, memory, rotary, angle_dtype)
        if table.joined is not None:
            self._joined_angles = _angles(rotary, table.joined.positions, angle_dtype)

    @property
    def positions(self) -> torch.Tensor:
        """[L] int64."""
        return self._table.positions

    @property
    def row_count(self) -> torch.Tensor:
        """[1] int64: rows before the padding."""
        return self._table.row_count

    @property
    def row_independent(self) -> bool:
        """Whether a row's bits must not depend on the other rows."""
        return self._row_independent

    @property
    def cold_finite(self) -> torch.Tensor:
        """[cold runs] bool: whether all that was written so far is finite.

        On the device: a look at it waits for all layers before.
        """
        if not self._found_finite:
            count, device = len(self._table.cold_runs), self._table.ids.device
            return torch.ones(count, dtype=torch.bool, device=device)
        return torch.stack(self._found_finite).all(0)

    @property
    def table(self) -> RunTable:
        """What this forward runs; read by measurements, never by layers."""
        return self._table

    @property
    def states(self) -> torch.Tensor:
        """[S, J, H, K, V], where items load and save; read by measurements, never by layers."""
        return self._memory.slabs.states

    def show_attention(self, runs: tuple[AttentionRun, ...]) -> None:
        """Let live rows see these slots instead: a control hides keys so."""
        self._table = replace(self._table, attention_runs=runs)

    def short_conv(
        self,
        layer: int,
        inputs_LC: torch.Tensor,
        weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None,
        *,
        activation: str | None,
    ) -> torch.Tensor:
        """See ForwardContext."""
        live = self._table.live
        return short_conv(
            inputs_LC,
            weight_CW,
            bias_C,
            activation=activation,
            items=self._table.items if live is None else live.conv,
            cold_runs=self._table.cold_runs,
            tails_SWC=self._memory.linear.conv_tails[layer],
            work_tails_XWC=self._memory.work.conv_tails[layer],
        )

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        """See ForwardContext."""
        table, slabs, work = self._table, self._memory.linear, self._memory.work
        inputs = recurrence.scan_inputs()
        if table.cold_runs:  # whose scan takes no logits: then live rows need none either
            inputs = inputs.written_out()
        out_LHV = self._output(recurrence.value)
        if table.cold_runs:  # first: a gap may read what they write
            found = segment_scan(
                inputs,
                table.cold_runs,
                slabs.states[layer],
                slabs.transitions[layer],
                work.states[layer],
                work.transitions[layer],
                work.heads[layer],
                out_LHV=out_LHV,
            )
            self._found_finite.append(found)
        return live_scan(
            inputs,
            table.items if table.live is None else table.live.scan,
            slabs.states[layer],
            slabs.transitions[layer],
            key_rotation=recurrence.key_rotation,
            use_transition=self._mode.transition,
            rotate_gap=self._mode.rotate,
            out_LHV=out_LHV,
        )

    def full_attention(
        self,
        layer: int,
        query_LQE: torch.Tensor,
        key_LGE: torch.Tensor,
        value_LGE: torch.Tensor,
        *,
        norms: HeadNorms | None,
        rotary: RotarySpec | None,
        scale: float,
    ) -> torch.Tensor:
        """See ForwardContext."""
        assert rotary == self._rotary, "angles were computed for another rotary embedding"
        table = self._table
        keys, values = self._memory.keys[layer], self._memory.values[layer]
        is_cold = bool(table.whole_runs or table.cold_attention)
        turned_LGE = key_LGE.new_empty(key_LGE.shape) if is_cold else None
        query_LQE = attention_inputs(
            query_LQE,
            key_LGE,
            value_LGE,
            table.kv_slots,
            keys,
            values,
            norms=norms,
            cos=self._cos,
            sin=self._sin,
            interleaved=rotary is not None and rotary.interleaved,
            entry_slots_L=table.entry_slots,
            turned_LGE=turned_LGE,
        )
        if table.joined is not None:
            self._place_joined(layer, table.joined, rotary)
        runs = table.attention_runs if table.live is None else table.live.attention
        out_LQE = live_attention(
            query_LQE, runs, keys, values, scale=scale, out_LQE=self._output(query_LQE)
        )
        if turned_LGE is not None:
            self._cold_attention(layer, query_LQE, turned_LGE, value_LGE, out_LQE, scale=scale)
        return out_LQE

    def _place_joined(self, layer: int, placement: GapPlacement, rotary: RotarySpec | None) -> None:
        """Splice in one layer what it has just written of cold segments."""
        cos, sin = self._joined_angles
        place_entries(
            self._memory.slabs.keys[layer : layer + 1],
            self._memory.slabs.values[layer : layer + 1],
            placement.source_slots,
            placement.target_slots,
            cos=cos,
            sin=sin,
            interleaved=rotary is not None and rotary.interleaved,
        )

    def _output(self, like: torch.Tensor) -> torch.Tensor:
        """An output whose rows are all written but for those of padding.

        Those are nobody's in a graph; an eager forward has zeros there.
        """
        out, table = torch.empty_like(like, memory_format=torch.contiguous_format), self._table
        if table.live is None and table.num_rows < like.shape[0]:
            out[table.num_rows :].zero_()
        return out

    def _cold_attention(
        self,
        layer: int,
        query_LQE: torch.Tensor,
        turned_LGE: torch.Tensor,
        value_LGE: torch.Tensor,
        out_LQE: torch.Tensor,
        *,
        scale: float,
    ) -> None:
        """Whole segments over the rows of this forward; other chunks over memory of their own."""
        table = self._table
        if table.whole_runs:
            live_attention(
                query_LQE, table.whole_runs, turned_LGE, value_LGE, scale=scale, out_LQE=out_LQE
            )
        for cold in table.cold_attention:
            start, stop, first = cold.row_start, cold.row_stop, cold.first_position
            keys, values = cold.memory.keys[layer], cold.memory.values[layer]
            keys[first : first + stop - start] = turned_LGE[start:stop]
            values[first : first + stop - start] = value_LGE[start:stop]
            live_attention(
                query_LQE[start:stop],
                cold.runs,
                keys,
                values,
                scale=scale,
                out_LQE=out_LQE[start:stop],
            )
