"""The composition law on random inputs of a model's family and shapes (design 3.7; ladder L0)."""

from __future__ import annotations

from dataclasses import replace

import torch

from hypic_sdk.algebra.segment_state import SegmentState, fold
from hypic_sdk.algebra.transition import DenseTransition, Transition
from hypic_sdk.doctor.report import LawCheck
from hypic_sdk.families.recurrence import LinearFamily, Recurrence
from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels.int8_pairs import LARGEST, Int8Pairs
from hypic_sdk.kernels.items import ColdRun
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.store.layout import StoreLayout

# a prefix and two stretches, none of them a multiple of a tile
_LENGTHS = (33, 71, 24)
_HEAD_TOKENS, _TAIL_TOKENS = 8, 5
# heads are independent: more of them prove nothing and cost seconds
_MOST_HEADS = 16
# design 3.7: between our own paths
_BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5}
# fp16 entries below 6e-5 are rounded to steps of 6e-8
_LEAST_STEP = {torch.float16: 6e-8}


def check_laws(
    family: str,
    layout: StoreLayout,
    *,
    device: torch.device,
    seed: int = 0,
) -> tuple[LawCheck, ...]:
    """Composition in fp64, the op on the device, and the error that a stored transition costs.

    Args:
        layout: shapes and stored precisions; of many heads the first 16 are tried.
    """
    rng = torch.Generator().manual_seed(seed)
    tokens = _draw(FAMILIES[family], layout, rng)
    return (
        LawCheck("composition: cuts, folds and orders agree", _composition_error(tokens), 1e-10),
        LawCheck(
            "segment_scan on this device gives the pair of the recurrence",
            _scan_error(tokens, layout, device),
            _BOUNDS[layout.state_dtype],
        ),
        _stored_in_int8(tokens) if layout.has_int8_pairs else _stored_transition(tokens, layout),
    )


def _draw(family: LinearFamily, layout: StoreLayout, rng: torch.Generator) -> Recurrence:
    """Tokens of the model's shapes, in fp64 on the CPU."""
    heads = min(layout.num_heads, _MOST_HEADS)
    sizes = (heads, layout.key_size, layout.value_size)
    return family.sample(rng, sum(_LENGTHS), *sizes, torch.float64)


def _stretches(tokens: Recurrence) -> list[SegmentState[Transition]]:
    a, b = _LENGTHS[0], _LENGTHS[0] + _LENGTHS[1]
    cuts = ((0, a), (a, b), (b, tokens.num_tokens))
    return [tokens.rows(*cut).segment_state() for cut in cuts]


def _composition_error(tokens: Recurrence) -> float:
    """Both ways to fold three stretches, against all tokens in one go."""
    first, second, third = _stretches(tokens)
    whole = tokens.segment_state()
    key_size = tokens.key.shape[2]
    errors = []
    for folded in (fold([first, second, third]), first.then(second.then(third))):
        errors.append(_relative(folded.end_state, whole.end_state))
        errors.append(
            _relative(
                folded.transition.to_dense(key_size),
                whole.transition.to_dense(key_size),
                floor=1.0,
            )
        )
    return max(errors)


def _scan_error(tokens: Recurrence, layout: StoreLayout, device: torch.device) -> float:
    """The pair of the interior, as the op writes it."""
    inputs, num_tokens = _on_device(tokens, layout.state_dtype, device), tokens.num_tokens
    out = torch.zeros_like(inputs.value)
    shape, axes = (out.shape[1], layout.key_size, layout.value_size), layout.transition_axes
    states = out.new_zeros(1, *shape)
    slab = None if axes is None else out.new_zeros(1, out.shape[1], *axes[1:])
    run = ColdRun(0, num_tokens, 0, num_tokens, _HEAD_TOKENS, _TAIL_TOKENS, 0, 0)
    segment_scan(inputs.scan_inputs(), [run], states, slab, out_LHV=out)
    want = tokens.rows(_HEAD_TOKENS, num_tokens - _TAIL_TOKENS).segment_state()
    errors = [_relative(states[0].double().cpu(), want.end_state)]
    if slab is not None and isinstance(want.transition, DenseTransition):
        errors.append(_relative(slab[0].double().cpu(), want.transition.matrix, floor=1.0))
    return max(errors)


def _on_device(tokens: Recurrence, dtype: torch.dtype, device: torch.device) -> Recurrence:
    moved = {
        name: value.to(device, dtype)
        for name in (
            "query", "key", "value", "log_decay", "erase", "constant_log_decay", "steps", "rates"
        )
        if (value := getattr(tokens, name)) is not None
    }  # fmt: skip
    return replace(tokens, **moved)


def _stored_transition(tokens: Recurrence, layout: StoreLayout) -> LawCheck:
    """Law 3: a gap's transition rounded to its stored precision, against the sequential state.

    At most u |T| |S_before| / |S_after| with u half a unit of the stored precision (5e-4 in fp16),
    here of the worst head.  Log-decays are kept in the state's dtype.
    """
    state_dtype, transition_dtype = layout.state_dtype, layout.transition_dtype
    before, gap, _ = _stretches(tokens)
    start = before.end_state
    want = gap.apply(start)
    stored = gap.transition
    if isinstance(stored, DenseTransition):
        stored = DenseTransition(stored.matrix.to(transition_dtype))
    else:
        transition_dtype = state_dtype
        stored = _rounded(stored, state_dtype)
    got = SegmentState(stored, gap.end_state).apply(start)
    matrix = gap.transition.to_dense(tokens.key.shape[2])
    unit = torch.finfo(transition_dtype).eps / 2
    least = _LEAST_STEP.get(transition_dtype, 0.0) * tokens.key.shape[2]
    if not isinstance(gap.transition, DenseTransition):
        # a rounded log-decay g is off by |g| units
        unit *= 1.0 + float(_log_decay(gap.transition).abs().max())
    sizes = want.flatten(1).norm(dim=1)
    errors = (got - want).flatten(1).norm(dim=1) / sizes
    norms, starts = matrix.flatten(1).norm(dim=1), start.flatten(1).norm(dim=1)
    bounds = (unit * norms + least) * starts / sizes + 1e-14
    worst = int((errors / bounds).argmax())
    name = str(transition_dtype).removeprefix("torch.")
    return LawCheck(
        f"law 3: state after a gap with its transition kept in {name}",
        float(errors[worst]),
        float(bounds[worst]),
    )


def _stored_in_int8(tokens: Recurrence) -> LawCheck:
    """Law 3 of pairs in 8 bits: half a scale in each element of both, as `to_int8` says.

    The bound is of the worst head: what all elements could be off by, in norm.
    """
    before, gap, _ = _stretches(tokens)
    start, (heads, key_size, value_size) = before.end_state, gap.end_state.shape
    want, transition = gap.apply(start), gap.transition
    is_dense = isinstance(transition, DenseTransition)
    kept = transition.to_dense(key_size) if is_dense else _log_decay(transition)
    rows = Int8Pairs.allocate(
        (1,), (heads, key_size, value_size), tuple(kept.shape), kept.dtype, kept.device
    )
    rows.write([0], kept[None], gap.end_state[None])
    read = rows.read_transition(0, kept.dtype)
    stored: Transition = type(transition)(read)  # type: ignore[call-arg]
    got = SegmentState(stored, rows.read_state(0, kept.dtype)).apply(start)
    bounds = _half_scales(gap.end_state)
    if is_dense:
        diagonal = kept.diagonal(dim1=-2, dim2=-1)
        of_fp16 = diagonal.abs() * 2.0**-11 + _LEAST_STEP[torch.float16]
        bounds += (_half_scales(kept) + of_fp16.norm(dim=1)) * start.flatten(1).norm(dim=1)
    sizes = want.flatten(1).norm(dim=1)
    errors = (got - want).flatten(1).norm(dim=1) / sizes
    worst = int((errors / (bounds / sizes)).argmax())
    return LawCheck(
        "law 3: state after a gap with its pair kept in int8",
        float(errors[worst]),
        float(bounds[worst] / sizes[worst]),
    )


def _half_scales(x: torch.Tensor) -> torch.Tensor:
    """[H]: the norm of what rows [H, R, C] may be off by; scales are rounded by at most 0.4 %."""
    halves = 1.004 * x.abs().amax(-1) / (2 * LARGEST)
    return halves.norm(dim=1) * x.shape[-1] ** 0.5


def _log_decay(transition: Transition) -> torch.Tensor:
    log_decay: torch.Tensor = transition.log_decay  # type: ignore[attr-defined]
    return log_decay


def _rounded(transition: Transition, dtype: torch.dtype) -> Transition:
    rounded: Transition = type(transition)(_log_decay(transition).to(dtype).double())  # type: ignore[call-arg]
    return rounded


def _relative(got: torch.Tensor, want: torch.Tensor, *, floor: float = 0.0) -> float:
    """Relative RMS; `floor`: sizes below it (in RMS a head) count as it, for what may vanish."""
    size = max(float(want.pow(2).mean().sqrt()), floor * want.shape[-1] ** -0.5)
    return float((got - want).pow(2).mean().sqrt()) / max(size, 1e-300)
