"""The narrow waist: every linear attention here is decay, erase, write (style 3.1; HYPIC Table 1).

Per state head, with S in R^{K x V}:

    S <- D S;   S <- S + b k (v - S^T k)^T   (with erase)   or   S <- S + k v^T   (without)
    o = scale * S^T q

so a token's transition is D, or (I - b k k^T) D with erase.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.algebra.segment_state import SegmentState, scan_segment_state
from hypic_sdk.algebra.transition import Transition
from hypic_sdk.kernels.delta_gates.op import GateLogits
from hypic_sdk.kernels.scan_inputs import ScanInputs


@dataclass(frozen=True, slots=True, eq=False)
class Recurrence:
    """Inputs of one linear-attention layer for L packed tokens.

    The kind of transition follows from what is present: dense with `erase` or `gate_logits`; else
    diagonal with `log_decay` [L, H, K] or with `rates`; else scalar.
    """

    query: torch.Tensor  # [L, Hk, K]
    # [L, Hk, K]; H is a multiple of Hk, state head h reads key head h // (H / Hk)
    key: torch.Tensor
    value: torch.Tensor  # [L, H, V]
    log_decay: torch.Tensor | None = None  # [L, H] or [L, H, K], at most 0, fp32 or fp64
    erase: torch.Tensor | None = None  # [L, H], the strength b
    scale: float = 1.0
    unit_keys: bool = False  # query and key are to be L2-normalised (eps 1e-6 inside the root)
    constant_log_decay: torch.Tensor | None = None  # [H]: the same decay each token, none stored
    # Mamba-1: decay of a token is exp(steps[h] * rates[h, k]); never written out as [L, H, K]
    steps: torch.Tensor | None = None  # [L, H]
    rates: torch.Tensor | None = None  # [H, K], negative
    # set when query and key were already rotated by their positions: a gap's state must be turned
    key_rotation: RotarySpec | None = None
    # from which `log_decay` and `erase` are still to be made (the gated delta rule)
    gate_logits: GateLogits | None = None

    @property
    def num_tokens(self) -> int:
        """L."""
        return self.value.shape[0]

    def scan_inputs(self) -> ScanInputs:
        """The same tensors, as the scan ops take them."""
        return ScanInputs(
            self.query,
            self.key,
            self.value,
            self.log_decay,
            self.erase,
            self.scale,
            self.unit_keys,
            self.constant_log_decay,
            self.steps,
            self.rates,
            self.gate_logits,
        )

    def written_out(self) -> Recurrence:
        """The same with `log_decay` and `erase` instead of logits."""
        if self.gate_logits is None:
            return self
        inputs = self.scan_inputs().written_out()
        return replace(self, log_decay=inputs.log_decay, erase=inputs.erase, gate_logits=None)

    def split(self, cut: int) -> tuple[Recurrence, Recurrence]:
        """The first `cut` tokens and the rest; either may be empty.

        Query and key stay as they are, so with `key_rotation` both parts keep their positions.
        """
        return self.rows(0, cut), self.rows(cut, self.num_tokens)

    def rows(self, start: int, stop: int) -> Recurrence:
        """Tokens [start, stop), as views."""
        inputs = self.scan_inputs().rows(start, stop)
        return Recurrence(
            inputs.query,
            inputs.key,
            inputs.value,
            inputs.log_decay,
            inputs.erase,
            self.scale,
            self.unit_keys,
            self.constant_log_decay,
            inputs.steps,
            self.rates,
            self.key_rotation,
            inputs.gate_logits,
        )

    def segment_state(self) -> SegmentState[Transition]:
        """The pair (transition, end state from zero) of all tokens, by the definition."""
        return scan_segment_state(self.scan_inputs().written_out())


@dataclass(frozen=True, slots=True)
class LinearFamily:
    """A family: its name and how to draw random natural inputs as a Recurrence (laws, benches)."""

    name: str
    # (generator, L, H, K, V, dtype) -> Recurrence
    sample: Callable[[torch.Generator, int, int, int, int, torch.dtype], Recurrence]
