"""A plan as tables on a device: what the kernels of the conv read, for all layers alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hypic_sdk.kernels.items import ColdRun, Item
from hypic_sdk.kernels.short_conv.plan import NOTHING, ConvPlan, plan_conv
from hypic_sdk.kernels.upload import upload


@dataclass(frozen=True, eq=False, slots=True)
class ConvTable:
    """Where every tap of every row lies, and what becomes of the tails.

    The tables may be filled anew before each call, up to their sizes: a row of places that are all
    NOTHING is nobody's, a kept place that is NOTHING is zeros, a tail without a slot is not kept.
    """

    places: torch.Tensor  # [L, W] int64; NOTHING in the last column: nobody runs the row
    kept: torch.Tensor  # [tails, then work tails] * (W-1) int64 places
    tail_slots: torch.Tensor  # [tails] int64, or NO_SLOT
    work_slots: torch.Tensor  # [work tails] int64

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        cold_runs: Sequence[ColdRun],
        sizes: tuple[int, int, int],
        device: torch.device,
    ) -> ConvTable:
        """Plan a call, and bring the tables to the device.

        Args:
            sizes: rows, W, and rows of the tail slab.
        """
        num_rows, width, num_slots = sizes
        plan = plan_conv(items, cold_runs, width, num_slots)
        kept = [place for places in plan.tails.values() for place in places]
        kept += [place for places in plan.work_tails.values() for place in places]
        return cls(
            upload(places_of(plan, num_rows, width), device),
            upload(kept, device),
            upload(list(plan.tails), device),
            upload(list(plan.work_tails), device),
        )


def places_of(plan: ConvPlan, num_rows: int, width: int) -> torch.Tensor:
    """[num_rows, W] int64 on the host: the place of every tap.

    Raises:
        ValueError: a run reaches beyond the rows.
    """
    places = torch.arange(num_rows)[:, None] + torch.arange(1 - width, 1)
    nobody = torch.ones(num_rows, dtype=torch.bool)
    for start, stop in plan.spans:
        if not 0 <= start <= stop <= num_rows:
            raise ValueError(f"run [{start}, {stop}) of {num_rows} rows")
        nobody[start:stop] = False
    if plan.patches:
        rows, taps, values = torch.tensor(plan.patches).T
        places[rows, taps] = values
    places[nobody] = NOTHING
    return places
