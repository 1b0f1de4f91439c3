"""Causal depthwise conv on plain torch, one stretch a call."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypic_sdk.kernels.items import NO_SLOT, ColdRun, Item, ItemKind


def conv_stretch(
    inputs_LC: torch.Tensor,
    history_WC: torch.Tensor,
    taps_WC: torch.Tensor,
    bias_C: torch.Tensor | None,
    activation: str | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition: token i is the sum over w of taps[w] times input i - (W-1) + w.

    Args:
        inputs_LC: one stretch.
        history_WC: the W-1 inputs before it.
        taps_WC: weights in fp32 (fp64), which is what is computed in.
    Returns:
        outputs [L, C] in the taps' dtype, and history and inputs as one [W-1+L, C].
    """
    # a fresh copy: alignment, and so every bit, is then a matter of the stretch alone
    window = torch.cat((history_WC, inputs_LC))
    wide = window.to(taps_WC.dtype)
    num_tokens = inputs_LC.shape[0]
    out = wide[:num_tokens] * taps_WC[0]
    for tap in range(1, taps_WC.shape[0]):
        out.addcmul_(wide[tap : tap + num_tokens], taps_WC[tap])
    if bias_C is not None:
        out.add_(bias_C)
    if activation == "silu":
        torch.nn.functional.silu(out, inplace=True)
    return out, window


def short_conv(
    inputs_LC: torch.Tensor,
    weight_CW: torch.Tensor,
    bias_C: torch.Tensor | None,
    activation: str | None,
    items: Sequence[Item],
    cold_runs: Sequence[ColdRun],
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None,
    out_LC: torch.Tensor,
) -> None:
    """As `op.short_conv`: cold runs first, then items in order.  Writes all of `out_LC`."""
    out_LC.zero_()
    dtype = torch.promote_types(inputs_LC.dtype, torch.float32)
    taps_WC = weight_CW.t().to(dtype, memory_format=torch.contiguous_format)
    bias_C = None if bias_C is None else bias_C.to(dtype)
    zeros = inputs_LC.new_zeros((taps_WC.shape[0] - 1, inputs_LC.shape[1]))

    def run(start: int, stop: int, history_WC: torch.Tensor) -> torch.Tensor:
        out, window = conv_stretch(inputs_LC[start:stop], history_WC, taps_WC, bias_C, activation)
        out_LC[start:stop] = out
        return window

    for cold_run in cold_runs:
        history = zeros
        if cold_run.offset:
            assert work_tails_XWC is not None, "a segment that goes on has a row of work slabs"
            history = work_tails_XWC[cold_run.work_slot]
        window = run(cold_run.row_start, cold_run.row_stop, history)
        _keep_tails(cold_run, window, tails_SWC, work_tails_XWC)
    history = zeros
    for item in items:
        if item.kind == ItemKind.RUN:
            if item.start < item.stop:
                history = run(item.start, item.stop, history)[item.stop - item.start :]
        elif item.kind == ItemKind.SAVE:
            if item.slot != NO_SLOT:
                tails_SWC[item.slot] = history
        else:
            history = zeros if item.slot == NO_SLOT else tails_SWC[item.slot]


def _keep_tails(
    run: ColdRun,
    window: torch.Tensor,
    tails_SWC: torch.Tensor,
    work_tails_XWC: torch.Tensor | None,
) -> None:
    tail_size = tails_SWC.shape[1]
    stop = run.offset + run.row_stop - run.row_start
    if run.closes_interior:
        first = run.num_tokens - run.tail_tokens - run.offset
        tails_SWC[run.state_slot] = window[first : first + tail_size]
    if stop < run.num_tokens:
        assert work_tails_XWC is not None, "an unfinished segment has a row of work slabs"
        work_tails_XWC[run.work_slot] = window[stop - run.offset :]
