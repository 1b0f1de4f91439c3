"""The recurrence token by token: the definition that every other implementation is held to."""

from __future__ import annotations

import torch

from hypic_sdk.kernels.scan_inputs import ScanInputs, to_unit, token_log_decay


def step_scan(inputs: ScanInputs, state_HKV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Run all tokens of `inputs`, one after the other, from a start state.

    Args:
        state_HKV: [H, K, V] in the work dtype; it is read only.
    Returns:
        outputs [L, H, V] and the state after the last token, both new tensors in the work dtype.
    """
    if not inputs.num_tokens:
        return state_HKV.new_empty(inputs.value.shape), state_HKV.clone()
    query_LHK, key_LHK = _expanded(inputs, state_HKV.dtype)
    value_LHV = inputs.value.to(state_HKV.dtype)
    decay = _token_decay(inputs, state_HKV.dtype)
    erase_LH = None if inputs.erase is None else inputs.erase.to(state_HKV.dtype)
    reads = []
    for token in range(inputs.num_tokens):
        # the first product makes the one copy of the state: the caller's tensor is never written
        if decay is None:
            state_HKV = state_HKV.clone() if token == 0 else state_HKV
        else:
            state_HKV = state_HKV * decay[min(token, len(decay) - 1)]
        key_HK, write_HV = key_LHK[token], value_LHV[token]
        if erase_LH is not None:
            kept_HV = torch.bmm(key_HK[:, None], state_HKV)[:, 0]
            write_HV = (write_HV - kept_HV).mul_(erase_LH[token][:, None])
        state_HKV.addcmul_(key_HK[:, :, None], write_HV[:, None])
        reads.append(torch.bmm(query_LHK[token][:, None], state_HKV))
    outputs_HLV = reads[0] if len(reads) == 1 else torch.cat(reads, dim=1)
    return outputs_HLV.transpose(0, 1), state_HKV


def _expanded(inputs: ScanInputs, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Query (normalised, scaled) and key (normalised), one row a state head: [L, H, K]."""
    # both in one tensor: a decode row is all launches, so half as many count
    both = torch.stack((inputs.query, inputs.key)).to(dtype)
    if inputs.unit_keys:
        both = to_unit(both)
    groups = inputs.num_heads // both.shape[2]
    if groups > 1:
        both = both[:, :, :, None].expand(-1, -1, -1, groups, -1).flatten(2, 3)
    query, key = both[0], both[1]
    return query if inputs.scale == 1.0 else query * inputs.scale, key


def _token_decay(inputs: ScanInputs, dtype: torch.dtype) -> torch.Tensor | None:
    """Factors that multiply the state: [L or 1, H, K or 1, 1]; none without decay."""
    log_decay = token_log_decay(inputs)
    if log_decay is None:
        return None
    if log_decay.ndim == 1:
        log_decay = log_decay[None]
    factor = log_decay.to(dtype).exp()
    return factor[..., None] if factor.ndim == 3 else factor[..., None, None]
