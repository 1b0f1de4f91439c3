"""What goes into attention, in plain torch: norms, then rotation, then slots."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.norm.reference import rms_norm
from hypic_sdk.kernels.place_entries.reference import place_rows
from hypic_sdk.kernels.rotation import rotate


def attention_inputs(
    query_LQE: torch.Tensor,
    key_LGE: torch.Tensor,
    value_LGE: torch.Tensor,
    slots_L: torch.Tensor,
    keys_PGE: torch.Tensor,
    values_PGE: torch.Tensor,
    *,
    norms: HeadNorms | None,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    interleaved: bool,
    entry_slots_L: torch.Tensor | None,
    turned_LGE: torch.Tensor | None,
) -> torch.Tensor:
    """One step after the other; each rounds what it gives to the dtype of the rows."""
    if norms is not None:
        eps, zero_centred = norms.eps, norms.zero_centred
        query_LQE = rms_norm(query_LQE, norms.query_E, eps=eps, zero_centred=zero_centred)
        key_LGE = rms_norm(key_LGE, norms.key_E, eps=eps, zero_centred=zero_centred)
    if entry_slots_L is not None:
        place_rows(key_LGE, value_LGE, entry_slots_L, keys_PGE, values_PGE)
    if cos is not None and sin is not None:
        query_LQE = rotate(query_LQE, cos, sin, interleaved)
        key_LGE = rotate(key_LGE, cos, sin, interleaved)
    place_rows(key_LGE, value_LGE, slots_L, keys_PGE, values_PGE)
    if turned_LGE is not None:
        turned_LGE.copy_(key_LGE)
    return query_LQE
