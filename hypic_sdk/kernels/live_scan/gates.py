"""Decay and strength of a token as the kernel for decode rows takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypic_sdk.kernels.scan_inputs import ScanInputs


@dataclass(frozen=True, eq=False, slots=True)
class Gates:
    """[L, H] each, heads side by side: logits of both, or log-decays, if there are any, and erase.

    With logits a program makes both itself, by `gates_of`.
    """

    decay: torch.Tensor  # read with decay only, `A_log` and `bias` [H] with logits only
    erase: torch.Tensor
    A_log: torch.Tensor
    bias: torch.Tensor
    has_decay: bool
    are_logits: bool

    @classmethod
    def of(cls, inputs: ScanInputs) -> Gates:
        """Of a recurrence that erases, with a decay of a head or none."""
        logits = inputs.gate_logits
        if logits is not None:
            decay, erase = _rows(logits.decay_LH), _rows(logits.strength_LH)
            A_log, bias = logits.A_log_H.contiguous(), logits.bias_H.contiguous()
            return cls(decay, erase, A_log, bias, has_decay=True, are_logits=True)
        assert inputs.erase is not None, "steps are for recurrences that erase"
        erase, has_decay = _rows(inputs.erase), inputs.log_decay is not None
        decay = erase if inputs.log_decay is None else _rows(inputs.log_decay)
        return cls(decay, erase, erase, erase, has_decay=has_decay, are_logits=False)

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Arguments of a kernel: both, and what logits are computed with."""
        return self.decay, self.erase, self.A_log, self.bias

    @property
    def strides(self) -> tuple[int, int]:
        """From one token to the next, of both."""
        return self.decay.stride(0), self.erase.stride(0)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()
