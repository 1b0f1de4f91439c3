"""What a scan op takes for the tokens of one layer: decay, erase, write on plain tensors.

Per state head, with S in R^{K x V}:

    S <- D S;   S <- S + b k (v - S^T k)^T   (with erase)   or   S <- S + k v^T   (without)
    o = scale * S^T q
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hypic_sdk.kernels.delta_gates.op import GateLogits
from hypic_sdk.kernels.int8_pairs import Int8Pairs

UNIT_EPS = 1e-6  # inside the root of the L2 norm of queries and keys

# exp of it is zero in fp64 too, and sums of it stay exact enough for a weak decay beside it
MIN_LOG_DECAY = -1000.0


@dataclass(frozen=True, slots=True, eq=False)
class ScanInputs:
    """Inputs of one linear-attention layer for L packed tokens (fields as in `Recurrence`).

    At most one of `log_decay`, `constant_log_decay`, `rates` (with `steps`) and `gate_logits` is
    set, the last without `erase` too: `live_scan` takes logits as they are, all others take what
    `written_out` makes of them.  The transition is dense with `erase` or `gate_logits`; else
    diagonal with `log_decay` [L, H, K] or with `rates`; else scalar.
    """

    query: torch.Tensor  # [L, Hk, K]
    key: torch.Tensor  # [L, Hk, K]; state head h reads key head h // (H / Hk)
    value: torch.Tensor  # [L, H, V]
    log_decay: torch.Tensor | None = None  # [L, H] or [L, H, K], at most 0, fp32 or fp64
    erase: torch.Tensor | None = None  # [L, H]
    scale: float = 1.0
    unit_keys: bool = False
    constant_log_decay: torch.Tensor | None = None  # [H]
    steps: torch.Tensor | None = None  # [L, H]
    rates: torch.Tensor | None = None  # [H, K]
    gate_logits: GateLogits | None = None

    @property
    def num_tokens(self) -> int:
        """L."""
        return self.value.shape[0]

    @property
    def num_heads(self) -> int:
        """H."""
        return self.value.shape[1]

    @property
    def key_size(self) -> int:
        """K."""
        return self.key.shape[2]

    @property
    def is_dense(self) -> bool:
        """Whether a token's transition mixes key rows."""
        return self.erase is not None or self.gate_logits is not None

    @property
    def suits_fp16(self) -> bool:
        """Whether products with fp16 operands serve this recurrence on a GPU.

        They are no match for fp32 values, and have the range for unit keys alone; tiles know a
        decay of a head, or none.
        """
        decay = self.log_decay
        scalar = self.constant_log_decay is None and (decay is None or decay.ndim == 2)
        is_short = self.value.dtype in (torch.bfloat16, torch.float16)
        return self.is_dense and self.unit_keys and scalar and is_short

    @property
    def work_dtype(self) -> torch.dtype:
        """What states are computed in: fp64 for fp64 values, else fp32."""
        return torch.float64 if self.value.dtype == torch.float64 else torch.float32

    def written_out(self) -> ScanInputs:
        """The same with `log_decay` and `erase` instead of logits, in the work dtype."""
        if self.gate_logits is None:
            return self
        log_decay, erase = self.gate_logits.gates(self.work_dtype)
        return replace(self, log_decay=log_decay, erase=erase, gate_logits=None)

    def rows(self, start: int, stop: int) -> ScanInputs:
        """The same for tokens [start, stop): views, nothing is copied."""
        if start == 0 and stop == self.value.shape[0]:
            return self
        log_decay, erase, steps = self.log_decay, self.erase, self.steps
        logits = self.gate_logits
        return ScanInputs(
            self.query[start:stop],
            self.key[start:stop],
            self.value[start:stop],
            None if log_decay is None else log_decay[start:stop],
            None if erase is None else erase[start:stop],
            self.scale,
            self.unit_keys,
            self.constant_log_decay,
            None if steps is None else steps[start:stop],
            self.rates,
            None if logits is None else logits.rows(start, stop),
        )

    def check(self) -> None:
        """Raise ValueError where the shapes do not fit each other."""
        shape, key_shape = self.value.shape, self.key.shape
        if self.query.shape != key_shape or key_shape[0] != shape[0]:
            raise ValueError(
                f"query {tuple(self.query.shape)}, key {tuple(key_shape)} and "
                f"value {tuple(shape)} do not fit"
            )
        if shape[1] % key_shape[1]:
            raise ValueError(f"{shape[1]} state heads are no multiple of {key_shape[1]}")
        if (self.steps is None) != (self.rates is None):
            raise ValueError("steps and rates come together")
        forms = (self.log_decay, self.constant_log_decay, self.rates, self.gate_logits)
        if sum(form is not None for form in forms) > 1:
            raise ValueError("one form of decay at most")
        logits = self.gate_logits
        if logits is not None:
            logits.check()
            if self.erase is not None:
                raise ValueError("a strength is given or follows from logits, not both")
        fields = (
            ("log_decay", self.log_decay),
            ("erase", self.erase),
            ("steps", self.steps),
            ("logits", None if logits is None else logits.strength_LH),
        )
        for name, field in fields:
            if field is not None and field.shape[:2] != shape[:2]:
                raise ValueError(f"{name} {tuple(field.shape)} does not fit value {tuple(shape)}")

    def check_slabs(
        self, states_SHKV: torch.Tensor, transitions: torch.Tensor | Int8Pairs | None
    ) -> None:
        """Raise ValueError where a layer's slabs do not fit these inputs."""
        _, num_heads, value_size = self.value.shape
        state_shape = (num_heads, self.key.shape[2], value_size)
        if states_SHKV.shape[1:] != state_shape or states_SHKV.dtype != self.work_dtype:
            raise ValueError(
                f"state slab {tuple(states_SHKV.shape)} {states_SHKV.dtype} does not fit "
                f"{state_shape} {self.work_dtype}"
            )
        if isinstance(transitions, Int8Pairs):
            if transitions.states.shape[1:] != state_shape:
                raise ValueError(
                    f"pairs {tuple(transitions.states.shape)} in 8 bits do not fit {state_shape}"
                )
            transitions = transitions.transitions
        wanted = self.transition_shapes()
        got = None if transitions is None else tuple(transitions.shape[1:])
        if got not in wanted:
            raise ValueError(f"transition slab {got} does not fit, want one of {wanted}")

    def transition_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Row shapes in which this transition may be stored (none: nothing is stored)."""
        scalar, diagonal = (self.num_heads,), (self.num_heads, self.key_size)
        if self.is_dense:
            return ((*diagonal, self.key_size),)
        if self.constant_log_decay is not None:
            return (None,)
        if self.rates is not None:
            return (scalar, diagonal)  # the sum of the step sizes, or the log-decay written out
        if self.log_decay is None:
            raise ValueError("a recurrence with neither decay nor erase stores no transition")
        return (tuple(self.log_decay.shape[1:]),)


def to_unit(x: torch.Tensor) -> torch.Tensor:
    """`x`, fp32 or fp64, L2-normalised along the last axis."""
    return x * x.square().sum(-1, keepdim=True).add_(UNIT_EPS).rsqrt_()


def token_log_decay(inputs: ScanInputs) -> torch.Tensor | None:
    """The log-decay of each token: [L, H], [L, H, K], [H] if it is constant, none without decay."""
    assert inputs.gate_logits is None, "logits are written out first"
    if inputs.rates is not None:
        assert inputs.steps is not None, "steps and rates come together"
        return inputs.steps[:, :, None] * inputs.rates
    if inputs.constant_log_decay is not None:
        return inputs.constant_log_decay
    return inputs.log_decay
