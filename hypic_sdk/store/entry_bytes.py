"""A segment entry as one stretch of bytes, to be sent to another worker, and back again."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import torch

from hypic_sdk.errors import TransferFailed
from hypic_sdk.kernels.upload import upload
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.store.layout import NO_SLOT
from hypic_sdk.store.slab import Slabs

PIECE_BYTES = 64
"""Every tensor begins at a multiple of this, so that its elements are aligned."""


def pack_entry(slabs: Slabs, entry: SegmentEntry) -> torch.Tensor:
    """Copy an entry out of the slabs.

    Returns:
        [num_bytes] uint8 on the slabs' device: the tensors of `entry_tensors` in their order, each
        padded with zeros to `PIECE_BYTES`.  Keys are not rotated.
    """
    pieces = [
        piece.contiguous().view(-1).view(torch.uint8) for piece in entry_tensors(slabs, entry)
    ]
    payload = torch.zeros(sum(map(_padded, pieces)), dtype=torch.uint8, device=slabs.states.device)
    start = 0
    for piece in pieces:
        payload[start : start + piece.numel()] = piece
        start += _padded(piece)
    return payload


def unpack_entry(slabs: Slabs, entry: SegmentEntry, payload: torch.Tensor) -> None:
    """Write an entry's slots from what `pack_entry` gave for the same segment.

    Args:
        payload: [num_bytes] uint8, on any device.
    Raises:
        TransferFailed: not the bytes of an entry of this shape; nothing was written.
    """
    shapes = list(entry_tensors(slabs, entry))
    expected = sum(_padded(piece.view(-1), piece.dtype.itemsize) for piece in shapes)
    if payload.dtype != torch.uint8 or payload.numel() != expected:
        raise TransferFailed(
            f"an entry of {entry.num_tokens} tokens takes {expected} bytes here, "
            f"{payload.numel()} came",
            expected_bytes=expected,
            num_bytes=payload.numel(),
        )
    payload = payload.to(slabs.states.device)
    values, start = [], 0
    for piece in shapes:
        stop = start + piece.numel() * piece.dtype.itemsize
        values.append(payload[start:stop].view(piece.dtype).view(piece.shape))
        start += _padded(piece.view(-1), piece.dtype.itemsize)
    _write(slabs, entry, iter(values))


def entry_num_bytes(slabs: Slabs, entry: SegmentEntry) -> int:
    """The length of what `pack_entry` gives."""
    return sum(
        _padded(piece.view(-1), piece.dtype.itemsize) for piece in entry_tensors(slabs, entry)
    )


def payload_digest(payload: torch.Tensor) -> bytes:
    """What both ends of a transfer compare: of one kind of device, where the payload lies.

    Args:
        payload: [num_bytes] uint8.
    Returns:
        BLAKE2b on a CPU (16 bytes), `words_digest` elsewhere: a copy to the host would take longer
        than the transfer.
    """
    if payload.device.type != "cpu":
        return words_digest(payload)
    return hashlib.blake2b(payload.numpy().data, digest_size=16).digest()


def words_digest(payload: torch.Tensor) -> bytes:
    """Two sums, modulo 2^64, over mixed pairs of a word and its place (24 bytes with the length).

    Against bytes that are lost, stale, torn or out of place; nothing against who means harm.
    Error: none: whole numbers, the same in any order of summing and on any device.
    """
    num_bytes = payload.numel()
    words = torch.nn.functional.pad(payload, (0, -num_bytes % 8)).view(torch.int64)
    sums = torch.zeros(2, dtype=torch.int64, device=payload.device)
    for start in range(0, words.numel(), _WORDS_AT_ONCE):
        piece = words[start : start + _WORDS_AT_ONCE]
        place = torch.arange(start + 1, start + 1 + piece.numel(), device=payload.device)
        sums[0] += _mixed(piece + place * _ODD[0]).sum()
        sums[1] += _mixed(piece ^ (place * _ODD[1])).sum()
    return struct.pack("<qqq", num_bytes, *sums.tolist())


_WORDS_AT_ONCE = 1 << 22  # so that what lies between stays small
_ODD = (-7046029254386353131, -4417276706812531889)  # 2^64 / golden ratio; of xxHash64


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """A bijection of 64 bits in which each bit of a word moves about half of the others.

    Source: D. Stafford's mix 13, as in SplitMix64 (Steele, Lea, Flood 2014).
    """
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * -4658895280553007687
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * -7723592293110705685
    return words ^ ((words >> 31) & ((1 << 33) - 1))


def _padded(piece: torch.Tensor, itemsize: int = 1) -> int:
    return -(-piece.numel() * itemsize // PIECE_BYTES) * PIECE_BYTES


def entry_tensors(slabs: Slabs, entry: SegmentEntry) -> Iterator[torch.Tensor]:
    """All that an entry keeps, always in one order: pair and conv tail, keys, values."""
    yield from _rows(slabs, entry)
    slots = upload(entry.kv_slots, slabs.keys.device)
    yield slabs.keys[:, slots]
    yield slabs.values[:, slots]


def _write(slabs: Slabs, entry: SegmentEntry, values: Iterator[torch.Tensor]) -> None:
    for row in _rows(slabs, entry):
        row.copy_(next(values))
    slots = upload(entry.kv_slots, slabs.keys.device)
    slabs.keys[:, slots] = next(values)
    slabs.values[:, slots] = next(values)


def _rows(slabs: Slabs, entry: SegmentEntry) -> Iterator[torch.Tensor]:
    """Views: state, conv tail, transition; or conv tail and the tensors of a pair in 8 bits."""
    if slabs.pairs is None:
        yield slabs.states[entry.state_slot]
    yield slabs.conv_tails[entry.state_slot]
    if slabs.pairs is not None:
        yield from (slab[entry.transition_slot] for slab in slabs.pairs.tensors())
    elif entry.transition_slot != NO_SLOT:
        assert slabs.transitions is not None, "an entry with a transition row, a store without"
        yield slabs.transitions[entry.transition_slot]
