"""Keys and values into slots, in plain torch."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.items import NO_SLOT
from hypic_sdk.kernels.rotation import rotate


def place_rows(
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
) -> None:
    """keys[slot] := key, values[slot] := value, for every row that has a slot."""
    placed = slots_L != NO_SLOT
    if not placed.all():
        slots_L, key_LGE, value_LGE = slots_L[placed], key_LGE[placed], value_LGE[placed]
    keys_PGE.index_copy_(0, slots_L, key_LGE.to(keys_PGE.dtype))
    values_PGE.index_copy_(0, slots_L, value_LGE.to(values_PGE.dtype))


def place_entries(
    keys_APGE: torch.Tensor,
    values_APGE: torch.Tensor,
    source_slots_L: torch.Tensor,
    target_slots_L: torch.Tensor,
    *,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
) -> None:
    """Layer by layer: what lies at the source slots goes to the target slots."""
    placed = target_slots_L != NO_SLOT
    source_slots_L = source_slots_L.where(placed, 0)  # of a row without a target: anybody's
    for keys_PGE, values_PGE in zip(keys_APGE, values_APGE, strict=True):
        key_LGE = keys_PGE.index_select(0, source_slots_L)
        if cos is not None and sin is not None:
            key_LGE = rotate(key_LGE, cos, sin, interleaved)
        value_LGE = values_PGE.index_select(0, source_slots_L)
        place_rows(key_LGE, value_LGE, target_slots_L, keys_PGE, values_PGE)
