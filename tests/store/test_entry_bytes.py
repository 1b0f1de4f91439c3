"""An entry that travels is the same entry, whatever the layout and wherever its slots lie."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import TransferFailed
from hypic_sdk.store import entry_bytes
from hypic_sdk.store.entries import Need, SegmentEntry
from hypic_sdk.store.entry_bytes import (
    PIECE_BYTES,
    entry_num_bytes,
    pack_entry,
    payload_digest,
    unpack_entry,
    words_digest,
)
from hypic_sdk.store.layout import NO_SLOT
from hypic_sdk.store.store import Store
from tests.store.small_store import LAYOUTS, granted, key_of, small_store, spec_of


def store_with(layout: str, interior: int, before: int) -> tuple[Store, SegmentEntry]:
    """A store whose entry lies behind others, so that its slots are not the first ones."""
    store = small_store(state_rows=8, transition_rows=8, kv_slots=64, layout=LAYOUTS[layout])
    specs = tuple(spec_of(i, 3) for i in range(before))
    lease = granted(store, Need(new_entries=(*specs, spec_of("it", interior))))
    for spec in specs:
        store.commit(lease.detach(spec.key))
    return store, store.commit(lease.detach(key_of("it")))


def randomize(store: Store, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    slabs = store.slabs
    all_slabs = [slabs.states, slabs.conv_tails, slabs.transitions, slabs.keys, slabs.values]
    all_slabs += [] if slabs.pairs is None else slabs.pairs.tensors()
    for slab in all_slabs:
        if slab is not None:
            slab.copy_(40 * torch.randn(slab.shape, generator=generator))


def contents(store: Store, entry: SegmentEntry) -> list[torch.Tensor]:
    slabs = store.slabs
    read = [slabs.conv_tails[entry.state_slot]]
    if slabs.pairs is not None:
        read += [slab[entry.transition_slot] for slab in slabs.pairs.tensors()]
    else:
        read.append(slabs.states[entry.state_slot])
    if slabs.transitions is not None:
        assert entry.transition_slot != NO_SLOT
        read.append(slabs.transitions[entry.transition_slot])
    return [*read, slabs.keys[:, entry.kv_slots], slabs.values[:, entry.kv_slots]]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@given(interior=st.integers(1, 20), here=st.integers(0, 3), there=st.integers(0, 3))
def test_an_entry_arrives_as_it_was_and_touches_nothing_else(
    layout: str, interior: int, here: int, there: int
) -> None:
    source, sent = store_with(layout, interior, here)
    target, received = store_with(layout, interior, there)
    randomize(source, 1)
    randomize(target, 2)
    payload = pack_entry(source.slabs, sent)
    assert payload.numel() == entry_num_bytes(source.slabs, sent)
    assert payload.numel() % PIECE_BYTES == 0
    untouched = [contents(target, resident) for resident in others(target, there)]
    unpack_entry(target.slabs, received, payload)
    for ours, theirs in zip(contents(target, received), contents(source, sent), strict=True):
        assert torch.equal(ours, theirs)
    for before, resident in zip(untouched, others(target, there), strict=True):
        for ours, theirs in zip(contents(target, resident), before, strict=True):
            assert torch.equal(ours, theirs)
    assert torch.equal(pack_entry(target.slabs, received), payload)


def others(store: Store, count: int) -> list[SegmentEntry]:
    lease = granted(store, Need(entries=tuple(key_of(i) for i in range(count))))
    with lease:
        return [lease.entries[key_of(i)] for i in range(count)]


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_bytes_of_another_shape_are_refused_and_nothing_is_written(layout: str) -> None:
    source, sent = store_with(layout, 5, 0)
    target, received = store_with(layout, 6, 0)
    randomize(source, 1)
    randomize(target, 2)
    before = contents(target, received)
    good = pack_entry(target.slabs, received)
    wrong = [good[:-1], torch.cat((good, good[:1])), good.view(torch.int32)]
    if LAYOUTS[layout].keeps_kv:
        wrong.append(pack_entry(source.slabs, sent))
    for payload in wrong:
        if payload.dtype == torch.uint8 and payload.numel() == good.numel():
            continue  # padding made them alike: the digest of the token list tells them apart
        with pytest.raises(TransferFailed):
            unpack_entry(target.slabs, received, payload)
    for ours, theirs in zip(contents(target, received), before, strict=True):
        assert torch.equal(ours, theirs)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_changes_the_digest(place: int, bit: int) -> None:
    source, sent = store_with("dense", 5, 0)
    randomize(source, 1)
    payload = pack_entry(source.slabs, sent)
    digest = payload_digest(payload)
    payload[place % payload.numel()] ^= 1 << bit
    assert payload_digest(payload) != digest


def changed(payload: torch.Tensor, kind: str, at: int) -> torch.Tensor:
    """Bytes that are not the payload's, and differ from them as transfers may."""
    if kind == "bit":
        other = payload.clone()
        other[at % len(payload)] ^= 1 << (at % 8)
        return other
    if kind == "shorter":
        return payload[:-1]
    if kind == "longer":
        return torch.cat((payload, torch.zeros(1, dtype=torch.uint8)))
    words = payload[: len(payload) // 8 * 8].view(-1, 8).clone()
    shift = 1 + at % (len(words) - 1)
    return torch.cat((words.roll(shift, 0).reshape(-1), payload[len(payload) // 8 * 8 :]))


@given(
    num_bytes=st.integers(17, 500),
    kind=st.sampled_from(["bit", "shorter", "longer", "out of place"]),
    at=st.integers(0, 2**20),
    seed=st.integers(0, 2**31),
)
def test_a_digest_tells_of_whatever_changed(num_bytes: int, kind: str, at: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    payload = torch.randint(0, 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    other = changed(payload, kind, at)
    for digest in (words_digest, payload_digest):
        assert digest(payload) == digest(payload.clone())
        assert torch.equal(other, payload) or digest(other) != digest(payload)


def test_a_digest_of_words_is_the_same_however_many_are_summed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payload = torch.arange(1000, dtype=torch.int64).view(torch.uint8)
    expected = words_digest(payload)
    for at_once in (1, 7, 999, 1000, 4096):
        monkeypatch.setattr(entry_bytes, "_WORDS_AT_ONCE", at_once)
        assert words_digest(payload) == expected
