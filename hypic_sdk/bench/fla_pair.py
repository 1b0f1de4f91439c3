"""(T, S) through the public op of flash-linear-attention: way B of design 3.2.

Values and state are widened: `[v | 0]` from `[S_head | I]`.  The columns behind V have no writes,
so what they start as goes through the interior's transition and comes out as T.  The op computes
their outputs too, which nobody reads; that is what a state kernel of our own spares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch

from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.scan_inputs import ScanInputs

Scan = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class GatedDeltaOps(NamedTuple):
    """The library's scans of the gated delta rule: in chunks, and step by step."""

    chunk: Scan
    recurrent: Scan


def fla_ops(device: torch.device) -> GatedDeltaOps | str:
    """The ops, or why they can not run here."""
    try:
        from fla.ops.gated_delta_rule import (
            chunk_gated_delta_rule,
            fused_recurrent_gated_delta_rule,
        )
    except ImportError as error:
        return f"flash-linear-attention can not be imported: {error}"
    if device.type != "cuda":
        return f"kernels of flash-linear-attention do not run on {device.type}"
    return GatedDeltaOps(chunk_gated_delta_rule, fused_recurrent_gated_delta_rule)


@final
class FlaPair:
    """One layer of packed segments by the library; what depends on lengths alone is made once."""

    def __init__(self, ops: GatedDeltaOps, inputs: ScanInputs, runs: Sequence[ColdRun]) -> None:
        """
        Args:
            inputs: of a recurrence with `erase` and a decay of a head.
            runs: whole segments behind each other from row 0 on, with a head seam and no tail.
        Raises:
            ValueError: other inputs or runs.
        """
        if inputs.log_decay is None or inputs.erase is None or inputs.log_decay.ndim != 2:
            raise ValueError("the library's op takes the gated delta rule alone")
        if any(r.tail_tokens or not r.head_tokens for r in runs):
            raise ValueError("way B is written for segments with a head seam and no tail seam")
        if not runs or runs[0].row_start or runs[-1].row_stop != inputs.num_tokens:
            raise ValueError("segments are to cover all rows")
        self._ops = ops
        self._inputs = inputs
        stretches = [run.stretches() for run in runs]
        self._head = _Rows(inputs, [head for head, _, _ in stretches])
        self._interior = _Rows(inputs, [interior for _, interior, _ in stretches])
        lengths = [run.row_stop - run.row_start for run in runs]
        self._whole = _offsets(lengths, inputs.value.device)

    def plain(self) -> torch.Tensor:
        """Outputs [L, H, V] and nothing else: what the pair is an addition to."""
        value_LHV = self._inputs.value
        outputs, _ = self._scan(self._ops.chunk, None, value_LHV, None, self._whole)
        return outputs

    def pair(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs [L, H, V], T [N, H, K, K] and S [N, H, K, V] of each interior, in fp32."""
        value_LHV, V, K = self._inputs.value, self._inputs.value.shape[2], self._inputs.key_size
        out_LHV = torch.empty_like(value_LHV, memory_format=torch.contiguous_format)
        head, interior = self._head, self._interior
        outputs, heads_NHKV = self._scan(
            self._ops.recurrent, head.index, value_LHV[head.index], None, head.offsets
        )
        out_LHV[head.index] = outputs
        eye = torch.eye(K, dtype=heads_NHKV.dtype, device=heads_NHKV.device)
        start = torch.cat((heads_NHKV, eye.expand(*heads_NHKV.shape[:2], K, K)), dim=-1)
        value_LHX = torch.nn.functional.pad(value_LHV[interior.index], (0, K))
        outputs, ends = self._scan(
            self._ops.chunk, interior.index, value_LHX, start, interior.offsets
        )
        out_LHV[interior.index] = outputs[..., :V]
        transition, end = ends[..., V:], ends[..., :V]
        return out_LHV, transition, end - transition @ heads_NHKV

    def _scan(
        self,
        scan: Scan,
        rows: torch.Tensor | None,
        value_LHX: torch.Tensor,
        start: torch.Tensor | None,
        offsets: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = self._inputs
        query, key, decay, erase = (
            x if rows is None else x[rows]
            for x in (inputs.query, inputs.key, inputs.log_decay, inputs.erase)
            if x is not None
        )
        outputs, ends = scan(
            q=query[None],
            k=key[None],
            v=value_LHX[None],
            g=decay[None],
            beta=erase[None],
            scale=inputs.scale,
            initial_state=start,
            output_final_state=True,
            use_qk_l2norm_in_kernel=inputs.unit_keys,
            cu_seqlens=offsets,
        )
        return outputs[0], ends


class _Rows:
    """Stretches of rows, brought together."""

    def __init__(self, inputs: ScanInputs, stretches: Sequence[tuple[int, int]]) -> None:
        device = inputs.value.device
        index = [row for start, stop in stretches for row in range(start, stop)]
        self.index = torch.tensor(index, device=device)
        self.offsets = _offsets([stop - start for start, stop in stretches], device)


def _offsets(lengths: Sequence[int], device: torch.device) -> torch.Tensor:
    """[N + 1]: where each of the packed sequences starts, and the end."""
    counts = torch.tensor([0, *lengths], dtype=torch.int64)
    return counts.cumsum(0).to(device)
