"""ForwardContext: all that a layer may ask about the past of its rows."""

from __future__ import annotations

from typing import Protocol

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.head_norms import HeadNorms


class ForwardContext(Protocol):
    """Answers for one mixed forward of L packed rows (padding rows at the end included).

    Rows of one sequence are contiguous and in order; what came before them (cached states, conv
    tails, keys and values, gaps) is known to the context alone.
    """

    @property
    def positions(self) -> torch.Tensor:
        """[L] int64: each row's position (global, or local to a cold segment); 0 for padding."""
        ...

    @property
    def row_count(self) -> torch.Tensor:
        """[1] int64: rows before the padding; what is computed for the others is never read.

        On the rows' device, where alone it is looked at: a forward may run again with another.
        """
        ...

    @property
    def row_independent(self) -> bool:
        """Whether a row's bits must not depend on the other rows (design 3.9)."""
        ...

    def short_conv(
        self,
        layer: int,
        inputs_LC: torch.Tensor,
        weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None,
        *,
        activation: str | None,
    ) -> torch.Tensor:
        """Causal depthwise conv of linear layer `layer` (0-based among linear layers) -> [L, C].

        `activation` is "silu" or none.
        """
        ...

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        """Outputs [L, H, V] of linear layer `layer`, in the dtype of `recurrence.value`.

        Who reads `log_decay` or `erase` of a recurrence takes it `written_out`.
        """
        ...

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
        """Outputs [L, Q, E] of attention layer `layer` (0-based among attention layers).

        Query and key come as they were projected; the context applies their norms, then rotates.
        """
        ...
