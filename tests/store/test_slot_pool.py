"""Books of one slab against a plain list of holders and pins."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hypic_sdk.store.slot_pool import Claim, SlotPool
from hypic_sdk.store.slot_ranges import split, union

SLOT_BYTES = 7


def listed(slots):
    return [slot for span in slots for slot in span]


class PoolMachine(RuleBasedStateMachine):
    """Holders are the machine's own: their slots, and whether they pin them."""

    @initialize(num_slots=st.integers(0, 23))
    def begin(self, num_slots):
        self.pool = SlotPool("kv_slots", num_slots, SLOT_BYTES)
        self.claims = []
        self.holders = []

    @rule(data=st.data(), claim=st.sampled_from(Claim))
    def claim(self, data, claim):
        num_slots = data.draw(st.integers(0, self.pool.num_free))
        self.claims.append((claim, self.pool.claim(num_slots, claim)))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), settles=st.booleans())
    def end_claim(self, data, settles):
        claim, slots = self.claims.pop(data.draw(st.integers(0, len(self.claims) - 1)))
        if settles:
            self.pool.settle(slots, claim)
            self.holders.append((slots, False))
        else:
            self.pool.unclaim(slots, claim)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def share(self, data):
        slots, _ = self.holders[data.draw(st.integers(0, len(self.holders) - 1))]
        some, _ = split(slots, data.draw(st.integers(0, len(listed(slots)))))
        self.pool.hold(some)
        self.holders.append((some, False))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def pin_unpin_or_drop(self, data):
        slots, pinned = self.holders.pop(data.draw(st.integers(0, len(self.holders) - 1)))
        if pinned:
            self.pool.unpin(slots)
            self.holders.append((slots, False))
        elif data.draw(st.booleans()):
            self.pool.pin(slots)
            self.holders.append((slots, True))
        else:
            self.pool.drop(slots)

    @invariant()
    def counts_are_those_of_the_holders(self):
        held = {slot for slots, _ in self.holders for slot in listed(slots)}
        pinned = {slot for slots, pins in self.holders if pins for slot in listed(slots)}
        claimed = [slot for _, slots in self.claims for slot in listed(slots)]
        assert len(claimed) == len(set(claimed))
        assert held.isdisjoint(claimed)
        states = self.pool.byte_states
        assert states.pinned == len(pinned) * SLOT_BYTES
        assert states.idle == len(held - pinned) * SLOT_BYTES
        assert states.total == self.pool.num_slots * SLOT_BYTES
        for claim, booked in ((Claim.RESERVED, states.reserved), (Claim.FILLING, states.filling)):
            num_slots = sum(len(listed(slots)) for kind, slots in self.claims if kind is claim)
            assert booked == num_slots * SLOT_BYTES

    @invariant()
    def questions_are_answered_by_the_holders(self):
        pinned = {slot for slots, pins in self.holders if pins for slot in listed(slots)}
        for index, (slots, _) in enumerate(self.holders):
            idle = set(listed(slots)) - pinned
            others = [*self.holders[:index], *self.holders[index + 1 :]]
            shared = {slot for other, _ in others for slot in listed(other)}
            assert self.pool.num_unpinned(slots) == len(idle)
            assert self.pool.frees(slots) == bool(idle - shared)
        groups = [slots for slots, _ in self.holders]
        held = set(listed(union(groups)))
        assert self.pool.needed_and_idle(groups) == (len(held), len(held - pinned))


PoolMachine.TestCase.settings = hypothesis.settings(max_examples=40, stateful_step_count=30)
TestSlotPool = PoolMachine.TestCase
