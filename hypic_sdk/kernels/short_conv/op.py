"""Causal depthwise conv of width W from a carried tail, with its activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.items import ColdRun, Item, check_items
from hypic_sdk.kernels.short_conv import reference
from hypic_sdk.kernels.short_conv.table import ConvTable


def short_conv(
    inputs_LC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    *,
    activation: str | None,
    items: Sequence[Item] | ConvTable,
    cold_runs: Sequence[ColdRun],
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run cold segments, then live sequences, through one conv layer.

    A history is the W-1 inputs before a stretch.  Cold runs: zeros before token 0, else row
    `work_slot` of the work slab; the interior's last W-1 inputs go to `tails[state_slot]` when it
    ends (it has that many), and the run's last W-1 to the work slab while the segment goes on.
    Items: LOAD takes a tail (NO_SLOT: zeros), GAP replaces the history by the segment's tail, RUN
    computes rows, SAVE writes the last W-1 inputs, older history included after a short run.

    Args:
        inputs_LC: [L, C] any float dtype.
        weight_CW: the last column multiplies the token itself.
        activation: "silu" or none.
        items: or, where the kernel runs, the tables that it makes of them, for rows of the inputs'
            number; there are no cold runs then, and nothing is checked.
        tails_SWC: [S, W-1, C], one layer's view of the tail slab; work_tails_XWC likewise.
    Returns:
        [L, C] in the inputs' dtype, a new tensor; zeros in rows that nobody runs.
    Raises:
        ValueError: shapes, rows or slots do not fit, or an unknown activation.
    Error:
        accumulates in fp32 (fp64 for fp64 inputs).
    """
    if activation not in (None, "silu"):
        raise ValueError(f"activation is silu or none, got {activation!r}")
    _check_shapes(inputs_LC, weight_CW, tails_SWC, work_tails_XWC)
    if not isinstance(items, ConvTable):
        _check_plan(items, cold_runs, len(inputs_LC), tails_SWC, work_tails_XWC)
    out_LC = torch.empty_like(inputs_LC, memory_format=torch.contiguous_format)
    definition: Callable[..., None] = reference.short_conv
    run_op = backend.select("short_conv", definition, _short_conv_kernel, device=inputs_LC.device)
    run_op(
        inputs_LC,
        weight_CW,
        bias_C,
        activation,
        items,
        cold_runs,
        tails_SWC,
        work_tails_XWC,
        out_LC,
    )
    return out_LC


def _short_conv_kernel() -> Callable[..., None]:
    from hypic_sdk.kernels.short_conv import kernel

    return kernel.short_conv


def _check_shapes(
    inputs_LC: torch.Tensor,
    weight_CW: torch.Tensor,
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None,
) -> None:
    num_channels, width = weight_CW.shape
    if inputs_LC.ndim != 2 or inputs_LC.shape[1] != num_channels:
        raise ValueError(f"inputs {tuple(inputs_LC.shape)} do not fit {num_channels} channels")
    for name, tails in (("tails", tails_SWC), ("work_tails", work_tails_XWC)):
        if tails is not None and tails.shape[1:] != (width - 1, num_channels):
            raise ValueError(
                f"{name} {tuple(tails.shape)} do not fit width {width}, {num_channels} channels"
            )


def _check_plan(
    items: Sequence[Item],
    cold_runs: Sequence[ColdRun],
    num_rows: int,
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None,
) -> None:
    check_items(items, num_rows, len(tails_SWC))
    num_work = 0 if work_tails_XWC is None else len(work_tails_XWC)
    for run in cold_runs:
        run.check(num_rows)
        if not 0 <= run.state_slot < len(tails_SWC):
            raise ValueError(f"slot {run.state_slot} of {len(tails_SWC)} for a cold segment")
        if run.row_stop - run.row_start < run.num_tokens and not 0 <= run.work_slot < num_work:
            raise ValueError(
                f"a part of {run.num_tokens} tokens, and row {run.work_slot} of {num_work} of "
                "work slabs"
            )
