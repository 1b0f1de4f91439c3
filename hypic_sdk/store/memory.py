"""All books of one store, shared by its door and its leases; how room is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, final

from hypic_sdk.errors import PoolExhausted
from hypic_sdk.store.advice import Advice
from hypic_sdk.store.arena import Amount, Arena, Holding
from hypic_sdk.store.entries import Holdings, SegmentEntry
from hypic_sdk.store.eviction import EvictionPolicy
from hypic_sdk.store.layout import SlabSizes, StoreLayout
from hypic_sdk.store.private_pool import PrivatePool
from hypic_sdk.store.public_pool import PublicPool
from hypic_sdk.store.residents import AnyResident, Residents
from hypic_sdk.store.slot_pool import SlotPool
from hypic_sdk.store.slot_ranges import SlotRanges, count, union

if TYPE_CHECKING:
    from hypic_sdk.store.lease import Lease


@final
class Memory:
    """Arena, pools, policy and open leases of one store."""

    def __init__(
        self,
        layout: StoreLayout,
        sizes: SlabSizes,
        policy: EvictionPolicy[AnyResident],
        advice: Advice,
        *,
        max_chain_entries_per_session: int,
    ) -> None:
        self.layout = layout
        self.sizes = sizes
        self.arena = Arena(layout, sizes)
        self.policy = policy
        self.advice = advice
        self.residents = Residents(self.arena, policy)
        self.segments = PublicPool(self.residents)
        self.chains = PrivatePool(self.residents, max_chain_entries_per_session)
        self.leases: dict[Lease, None] = {}
        self.num_evicted = 0

    @property
    def budget_bytes(self) -> int:
        """The configured budget, with what no slab could use."""
        return self.sizes.budget_bytes + self.sizes.unused_bytes

    def refuse_if_never(self, wanted: Amount, pinned: Sequence[Holding]) -> None:
        """Raise PoolExhausted if even an empty store could not hold the wanted and the pinned."""
        needed = Amount(
            *(
                num_wanted + pool.needed_and_idle(slots)[0]
                for pool, num_wanted, slots in self._by_pool(wanted, pinned)
            )
        )
        for pool, num_needed in zip(self.arena, needed, strict=True):
            if num_needed > pool.num_slots:
                raise self._never_fits(pool, num_needed, needed)

    def _never_fits(self, pool: SlotPool, num_needed: int, needed: Amount) -> PoolExhausted:
        needed_bytes, limit_bytes = (num_needed * pool.slot_bytes, pool.num_slots * pool.slot_bytes)
        return self.advice.exhausted(
            f"the request needs {needed_bytes} bytes of {pool.name} ({num_needed} slots), the "
            f"store has {limit_bytes} ({pool.num_slots} slots)",
            needed,
            budget_bytes=self.budget_bytes,
            instead="ask for less (documents, prompt, max_tokens, n)",
            pool=pool.name,
            needed_bytes=needed_bytes,
            limit_bytes=limit_bytes,
            retryable=False,  # true of the class, but waiting can not help here
        )

    def no_room(
        self, what: str, wanted: Amount, pinned: Sequence[Holding], *, instead: str
    ) -> PoolExhausted:
        """What to say to who waited too long for room: what would have held it beside all else.

        Args:
            what, instead: as in `Advice.exhausted`, without the numbers.
        """
        pools = [
            (pool, num_wanted, pool.num_free + pool.num_idle - pool.needed_and_idle(slots)[1])
            for pool, num_wanted, slots in self._by_pool(wanted, pinned)
        ]
        # the slab that lacks most; none does where others wait in front
        pool, num_wanted, num_left = max(
            pools, key=lambda one: one[0].slot_bytes * (one[1] - one[2])
        )
        needed_bytes, available_bytes = num_wanted * pool.slot_bytes, num_left * pool.slot_bytes
        return self.advice.exhausted(
            f"{what}: it needs {needed_bytes} bytes of {pool.name}, {available_bytes} are not "
            "in use",
            Amount(*(one.num_slots - left + num for one, num, left in pools)),
            budget_bytes=self.budget_bytes,
            instead=instead,
            pool=pool.name,
            needed_bytes=needed_bytes,
            available_bytes=available_bytes,
        )

    def fits(self, wanted: Amount, pinned: Sequence[Holding]) -> bool:
        """Whether the wanted could be free once all idle entries but the pinned are evicted."""
        for pool, num_wanted, slots in self._by_pool(wanted, pinned):
            if num_wanted <= pool.num_free:
                continue
            _, spared = pool.needed_and_idle(slots)
            if num_wanted > pool.num_free + pool.num_idle - spared:
                return False
        return True

    def make_room(self, wanted: Amount, *, only_spare: bool = False) -> bool:
        """Evict idle entries until this much is free; returns whether it is.

        Entries that are not retained go first (no others with `only_spare`), then by the policy.
        An entry stays if nothing that is short would come of it.
        """
        if not self._short(wanted):
            return True
        victims = self.victims()
        if only_spare:
            victims = [resident for resident in victims if not resident.retained]
        # KV slots that idle entries share come free with the last of them only, so such entries
        # have their turn when the others did not suffice
        self._evict_some(wanted, victims, SlotPool.frees)
        self._evict_some(wanted, [v for v in victims if v.findable], SlotPool.num_unpinned)
        return not self._short(wanted)

    def victims(self) -> list[AnyResident]:
        """Idle entries in the order in which they go when room is needed."""
        # sorting is stable: the policy's order holds among equals
        return sorted(self.policy.order(), key=lambda one: (one.retained, one.priority))

    def holdings(self, namespace: str) -> Holdings:
        """What a namespace's findable entries hold."""
        segments = [one for one in self.segments.held.values() if one.namespace == namespace]
        chains = [one for one in self.chains.held.values() if one.namespace == namespace]
        held = [one.holding for one in segments] + [one.holding for one in chains]
        num_bytes = sum(
            count(union(slots)) * pool.slot_bytes
            for pool, _, slots in self._by_pool(Amount(), held)
        )
        return Holdings(len(segments), len(chains), num_bytes)

    def evict(self, victim: AnyResident) -> None:
        """Drop an idle entry."""
        self._evict(victim)

    def _evict_some(
        self,
        wanted: Amount,
        victims: Sequence[AnyResident],
        helps: Callable[[SlotPool, SlotRanges], int],
    ) -> None:
        """Evict those victims in turn whose slots help with what is short, while anything is."""
        for victim in victims:
            short = self._short(wanted)
            if not short:
                return
            held = dict(zip(self.arena, victim.holding, strict=True))
            if any(helps(pool, held[pool]) for pool in short):
                self._evict(victim)

    def _evict(self, victim: AnyResident) -> None:
        if isinstance(victim.entry, SegmentEntry):
            self.segments.forget(victim.entry.key, evicted=True)
        else:
            self.chains.forget(victim.namespace, victim.entry)
        gone = self.residents.remove(victim)
        assert gone, "a pinned entry was evicted"
        self.num_evicted += 1

    def _short(self, wanted: Amount) -> list[SlotPool]:
        """The slabs that have too little free."""
        return [
            pool for pool, count in zip(self.arena, wanted, strict=True) if pool.num_free < count
        ]

    def _by_pool(
        self, wanted: Amount, pinned: Sequence[Holding]
    ) -> Iterator[tuple[SlotPool, int, Sequence[SlotRanges]]]:
        """Per slab: itself, how many slots are wanted, which are to be pinned."""
        groups = zip(*pinned, strict=True) if pinned else ((), (), ())
        yield from zip(self.arena, wanted, groups, strict=True)
