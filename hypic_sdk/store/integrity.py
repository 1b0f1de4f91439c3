"""Recount the books of a store from what its entries, leases and fillings say they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from hypic_sdk.store.arena import Holding
from hypic_sdk.store.entries import ChainRef
from hypic_sdk.store.memory import Memory
from hypic_sdk.store.residents import AnyResident
from hypic_sdk.store.slot_pool import SlotPool
from hypic_sdk.store.slot_ranges import count


def check(memory: Memory) -> None:
    """Compare counts per slot, counts by state, pins, the policy's list and the indexes.

    Costs a few passes over the slabs' books: for tests, and for an engine with nothing to do.

    Raises:
        AssertionError: where two books disagree.
    """
    residents = _all_residents(memory)
    _check_pins(memory, residents)
    _check_policy(memory, residents)
    _check_indexes(memory)
    held = [resident.holding for resident in residents]
    pinned = [resident.holding for resident in residents if resident.pins]
    for lease in memory.leases:
        for holding in (lease.own, lease.chain_kv):
            held.append(holding)
            pinned.append(holding)
    reserved = [lease.reserved for lease in memory.leases]
    filling = [item.holding for item in memory.segments.fillings]
    for index, pool in enumerate(memory.arena):
        _check_pool(pool, *(_part(group, index) for group in (held, pinned, reserved, filling)))
    total = sum(pool.byte_states.total for pool in memory.arena)
    assert total == memory.sizes.budget_bytes, f"{total} bytes of {memory.sizes.budget_bytes}"


def _part(holdings: Iterable[Holding], index: int) -> list[range]:
    """All slots of one kind, one after the other."""
    return [span for holding in holdings for span in tuple(holding)[index]]


def _all_residents(memory: Memory) -> list[AnyResident]:
    """Findable entries, and those that live on in leases alone; each once."""
    everyone: dict[AnyResident, None] = {}
    everyone.update(dict.fromkeys(memory.segments.held.values()))
    everyone.update(dict.fromkeys(memory.chains.held.values()))
    for lease in memory.leases:
        everyone.update(dict.fromkeys(lease.residents()))
    return list(everyone)


def _check_pins(memory: Memory, residents: list[AnyResident]) -> None:
    pins = Counter(resident for lease in memory.leases for resident in lease.residents())
    for resident in residents:
        assert resident.pins == pins[resident], f"{resident.pins} pins, {pins[resident]} leases"
        assert resident.pins or resident.findable, "a deleted entry outlived its last pin"


def _check_policy(memory: Memory, residents: list[AnyResident]) -> None:
    known = list(memory.policy.order())
    idle = {resident for resident in residents if not resident.pins}
    assert len(known) == len(set(known)), "the policy lists an entry twice"
    assert set(known) == idle, f"the policy knows {len(known)} entries, {len(idle)} are idle"


def _check_indexes(memory: Memory) -> None:
    for key, segment in memory.segments.held.items():
        assert segment.entry.key == key, "index of segments is wrong"
        assert segment.findable, "index of segments names a deleted one"
        assert not memory.segments.is_filling(key), "a held entry is in filling"
    for ref, chain in memory.chains.held.items():
        found = ChainRef(chain.namespace, chain.entry.digest)
        assert found == ref, "index of chain entries is wrong"
        assert chain.findable, "index of chain entries names a deleted one"
    memory.chains.check_indexes()


def _check_pool(
    pool: SlotPool,
    held: list[range],
    pinned: list[range],
    reserved: list[range],
    filling: list[range],
) -> None:
    holders, pins = _times_named(held, pool), _times_named(pinned, pool)
    assert torch.equal(holders, pool.holders.tensor()), f"{pool.name}: holders are wrong"
    assert torch.equal(pins, pool.pins.tensor()), f"{pool.name}: pins are wrong"
    # each slot once: claimed for one, or free, or held
    owners = _times_named([*reserved, *filling, *pool.free.ranges], pool)
    owners += holders > 0
    assert bool((owners == 1).all()), f"{pool.name}: a slot has two owners or none"
    num_pinned = int(pins.count_nonzero())
    counts = {
        "free": count(pool.free.ranges),
        "reserved": count(tuple(reserved)),
        "filling": count(tuple(filling)),
        "idle": int(holders.count_nonzero()) - num_pinned,
        "pinned": num_pinned,
    }
    assert counts["free"] == pool.num_free, f"{pool.name}: {pool.num_free} free slots booked"
    states = pool.byte_states
    for name, number in counts.items():
        booked = getattr(states, name)
        assert booked == number * pool.slot_bytes, f"{pool.name}: {booked} {name} bytes, {counts}"


def _times_named(spans: list[range], pool: SlotPool) -> torch.Tensor:
    """[num_slots] int32: in how many of the ranges each slot is."""
    times = torch.zeros(pool.num_slots, dtype=torch.int32)
    for span in spans:
        times[span.start : span.stop] += 1
    return times
