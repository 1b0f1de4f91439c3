"""Norms of the heads of an attention layer, before their rotation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypic_sdk.kernels.norm.op import rms_norm


@dataclass(frozen=True, slots=True, eq=False)
class HeadNorms:
    """Root-mean-square norms over the head size: one weight for all query heads, one for keys."""

    query_E: torch.Tensor
    key_E: torch.Tensor
    eps: float
    zero_centred: bool  # the factors are 1 + weight

    def apply(
        self, query_LQE: torch.Tensor, key_LGE: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both after their norms, new tensors of the same shapes and dtypes."""
        eps, zero_centred = self.eps, self.zero_centred
        return (
            rms_norm(query_LQE, self.query_E, eps=eps, zero_centred=zero_centred),
            rms_norm(key_LGE, self.key_E, eps=eps, zero_centred=zero_centred),
        )
