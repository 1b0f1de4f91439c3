"""How a stretch of tokens goes through a recurrence on plain torch: by steps or in tiles."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.step import step_scan
from hypic_sdk.kernels.segment_scan.tiled import tiled_scan

STEP_TOKENS = 12  # up to here a loop over tokens is as quick as one tile


def scan_stretch(inputs: ScanInputs, state_HKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a live run or a seam from a start state, which is read only.

    The choice is a function of shapes and of the stretch's own length, never of its neighbours.

    Returns:
        outputs [L, H, V] and the state after the last token, in the work dtype.
    """
    if inputs.num_tokens <= STEP_TOKENS or steps_only(inputs):
        return step_scan(inputs, state_HKV)
    outputs_LHV, state_HKV, _ = tiled_scan(inputs, state_HKV)
    return outputs_LHV, state_HKV


def steps_only(inputs: ScanInputs) -> bool:
    """Whether tiles cannot pay: Mamba-1 proper has thousands of heads with one value each."""
    return inputs.rates is not None and inputs.value.shape[2] == 1
