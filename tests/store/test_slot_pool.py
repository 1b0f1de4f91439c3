"""Books of one slab against a plain list of holders and pins."""

from __future__ import annotations

import hypothesis
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hypic_sdk.store.slot_pool import Claim, SlotPool

SLOT_BYTES = 7


class PoolMachine(RuleBasedStateMachine):
    """Holders are the machine's own objects: a list of slots and whether it pins them."""

    @initialize(num_slots=st.integers(0, 23))
    def begin(self, num_slots):
        self.pool = SlotPool("kv_slots", num_slots, SLOT_BYTES)
        self.claims: list[tuple[Claim, torch.Tensor]] = []
        self.holders: list[tuple[torch.Tensor, bool]] = []

    @rule(data=st.data(), claim=st.sampled_from(Claim))
    def claim(self, data, claim):
        count = data.draw(st.integers(0, self.pool.num_free))
        self.claims.append((claim, self.pool.claim(count, claim)))

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
        some = slots[: data.draw(st.integers(0, slots.numel()))]
        self.pool.hold(some)
        self.holders.append((some, False))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def pin_unpin_or_drop(self, data):
        index = data.draw(st.integers(0, len(self.holders) - 1))
        slots, pinned = self.holders.pop(index)
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
        held = {slot for slots, _ in self.holders for slot in slots.tolist()}
        pinned = {slot for slots, pins in self.holders if pins for slot in slots.tolist()}
        claimed = [slot for _, slots in self.claims for slot in slots.tolist()]
        assert len(claimed) == len(set(claimed))
        assert held.isdisjoint(claimed)
        states = self.pool.byte_states
        assert states.pinned == len(pinned) * SLOT_BYTES
        assert states.idle == len(held - pinned) * SLOT_BYTES
        assert states.total == self.pool.num_slots * SLOT_BYTES
        for claim, booked in ((Claim.RESERVED, states.reserved), (Claim.FILLING, states.filling)):
            count = sum(slots.numel() for kind, slots in self.claims if kind is claim)
            assert booked == count * SLOT_BYTES

    @invariant()
    def questions_are_answered_by_the_holders(self):
        for slots, _ in self.holders:
            mine = slots.tolist()
            others = [h for h in self.holders if h[0] is not slots]
            shared = {slot for s, _ in others for slot in s.tolist()}
            pinned = {slot for s, pins in self.holders if pins for slot in s.tolist()}
            assert self.pool.has_idle(slots) == any(slot not in pinned for slot in mine)
            assert self.pool.all_pinned(slots) == all(slot in pinned for slot in mine)
            alone = [slot for slot in mine if slot not in pinned and slot not in shared]
            assert self.pool.frees(slots) == bool(alone)


PoolMachine.TestCase.settings = hypothesis.settings(max_examples=40, stateful_step_count=30)
TestSlotPool = PoolMachine.TestCase


def test_marks_name_each_slot_of_any_group():
    pool = SlotPool("kv_slots", 6, SLOT_BYTES)
    assert pool.mark([]).tolist() == [False] * 6
    marks = pool.mark([torch.tensor([1, 4]), torch.tensor([4, 5])])
    assert marks.nonzero().flatten().tolist() == [1, 4, 5]
