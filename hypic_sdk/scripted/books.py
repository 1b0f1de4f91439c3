"""Which segments and chains are held, without their bytes: what a real store would report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine.plan import AssemblyPlan, Gap, PromptLayout, gap_of, layout_prompt
from hypic_sdk.errors import PinBudgetExhausted
from hypic_sdk.prompt.segment import BorderKind, PromptPart, SegmentKey, token_bytes
from hypic_sdk.transport.control import EntryLook, Held
from hypic_sdk.transport.messages import EngineRequest, MissReason

TOKEN_BYTES = 1024  # that a token of an entry counts as
_MAX_CHAINS = 4096
_MAX_REMEMBERED = 65536  # keys of evicted entries
_INNER_CHAINS = 2  # kept inside one prompt besides the leading part's, as the engine does
_CHUNK_TOKENS = 256
_PIN_SHARE = 0.5  # of the budget, what pins may take
_USUAL_PRIORITY = 50


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment that is held."""

    num_tokens: int
    namespace: str


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain that is held."""

    position: int
    keys: frozenset[SegmentKey]


@dataclass(frozen=True, slots=True)
class Opened:
    """A request's prompt as it was found: what was held, what was made for it."""

    layout: PromptLayout
    plan: AssemblyPlan
    uses_segments: bool
    uses_chains: bool
    misses: dict[SegmentKey, MissReason]


@final
class Books:
    """Least recently used go first.  Single-threaded."""

    def __init__(self, config: EngineConfig, conv_width: int) -> None:
        self._reuse = config.reuse
        self._conv_width = conv_width
        self.budget_tokens = config.store.budget_bytes // TOKEN_BYTES
        self._entries: OrderedDict[SegmentKey, Entry] = OrderedDict()
        self._evicted: OrderedDict[SegmentKey, None] = OrderedDict()
        self._chains: OrderedDict[tuple[str, bytes], Chain] = OrderedDict()
        self._pins: dict[SegmentKey, Entry] = {}
        self._priorities: dict[SegmentKey, int] = {}
        self._limits: dict[str, int] = {}
        self._num_evicted = 0

    def open(self, message: EngineRequest) -> Opened:
        """Look a prompt up, and hold from now on what an engine would have made for it."""
        mode = self._reuse.mode
        uses_segments = message.reuse and mode.segments
        uses_chains = message.reuse and mode.chains
        layout = layout_prompt(
            message.prompt,
            self._reuse,
            conv_width=self._conv_width,
            namespace=self._namespace(message.namespace),
            chunk_tokens=_CHUNK_TOKENS,
            with_segments=message.reuse,
        )
        covered = self._longest(layout, message.namespace) if uses_chains else 0
        plan = layout.plan(covered)
        misses: dict[SegmentKey, MissReason] = {}
        for gap in {gap.key: gap for gap in plan.gaps}.values():
            if gap.key in self._entries:
                self._entries.move_to_end(gap.key)
                continue
            evicted = gap.key in self._evicted
            misses[gap.key] = MissReason.EVICTED if evicted else MissReason.NEVER_WARMED
            self._put(gap, message.namespace)
        if uses_chains:
            self._keep_chains(layout, covered, message.namespace)
        return Opened(layout, plan, uses_segments, uses_chains, misses)

    def keep_reply(self, message: EngineRequest, opened: Opened, reply: Sequence[int]) -> None:
        """Hold the chain at the end of a session's reply; its last token was never fed."""
        if message.session_id is None or not opened.uses_chains:
            return
        rolling = opened.layout.end_digest.copy()
        rolling.feed_live(token_bytes(reply))
        position = message.prompt.num_tokens + len(reply)
        self._put_chain(
            message.namespace, rolling.digest(), position, opened.layout.keys_until(position)
        )

    def warm(self, part: PromptPart, namespace: str) -> bool | None:
        """Hold a segment: whether it was held before; none if it is not kept at all."""
        gap = self._gap(part, namespace)
        if gap is None:
            return None
        if gap.key in self._entries:
            self._entries.move_to_end(gap.key)
            return True
        self._put(gap, namespace)
        return False

    def holds(self, part: PromptPart, namespace: str) -> bool:
        """Whether a segment is held; ages nothing."""
        gap = self._gap(part, namespace)
        return gap is not None and gap.key in self._entries

    def delete(self, parts: Iterable[PromptPart], namespace: str) -> None:
        """Drop segments, and every chain that contains one."""
        keys = {gap.key for gap in self._gaps(parts, namespace)}
        for key in keys:
            for kept in (self._entries, self._pins, self._priorities):
                kept.pop(key, None)
        for name, chain in list(self._chains.items()):
            if keys & chain.keys:
                del self._chains[name]

    def usage(self) -> dict[str, Any]:
        """As a store's `Usage`, with the nominal size of a token."""
        held = self.held_tokens()
        none = dict.fromkeys(("free", "reserved", "filling", "idle", "pinned"), 0)
        budget = self.budget_tokens * TOKEN_BYTES
        return {
            "budget_bytes": budget,
            "unused_bytes": 0,
            "state_rows": none,
            "transition_rows": none,
            "kv_slots": {**none, "free": budget - held * TOKEN_BYTES, "idle": held * TOKEN_BYTES},
            "num_segments": len(self._entries),
            "num_chains": len(self._chains),
            "num_filling": 0,
            "num_leases": 0,
            "num_evicted": self._num_evicted,
        }

    def _namespace(self, tenant: str) -> str:
        return f"scripted\0{self._reuse.mode.name}\0{tenant}"

    def _gap(self, part: PromptPart, namespace: str) -> Gap | None:
        return gap_of(part, 0, 0, self._reuse, self._conv_width, self._namespace(namespace))

    def _put(self, gap: Gap, namespace: str) -> None:
        self._entries[gap.key] = Entry(gap.num_tokens, namespace)
        self._evicted.pop(gap.key, None)
        self._trim(None, self.budget_tokens, newest=gap.key)
        if namespace in self._limits:
            self._trim(namespace, self._limits[namespace] // TOKEN_BYTES, newest=gap.key)

    def _trim(self, namespace: str | None, limit_tokens: int, newest: SegmentKey | None) -> None:
        """Evict the least worth keeping, the newest last, until the rest fits."""
        while self.held_tokens(namespace) > limit_tokens:
            going = [
                key
                for key, entry in self._entries.items()
                if namespace in (None, entry.namespace) and key not in self._pins
            ]
            if not going:
                return
            key = min(going, key=lambda key: (key == newest, self._priority(key)))
            del self._entries[key]
            self._num_evicted += 1
            self._evicted[key] = None
            while len(self._evicted) > _MAX_REMEMBERED:
                self._evicted.popitem(last=False)

    def _priority(self, key: SegmentKey) -> int:
        return self._priorities.get(key, _USUAL_PRIORITY)

    def held_tokens(self, namespace: str | None = None) -> int:
        """Tokens of all entries, or of a tenant's."""
        entries = self._entries.values()
        return sum(one.num_tokens for one in entries if namespace in (None, one.namespace))

    # -- what callers want kept

    def look(self, parts: Iterable[PromptPart], namespace: str) -> list[EntryLook]:
        """What there is of each segment; ages nothing."""
        return [self._look(self._gap(part, namespace)) for part in parts]

    def _look(self, gap: Gap | None) -> EntryLook:
        if gap is None:
            return EntryLook(Held.NOT_KEPT)
        held = Held.EVICTED if gap.key in self._evicted else Held.COLD
        held = Held.WARM if gap.key in self._entries else held
        return EntryLook(held, gap.num_tokens * TOKEN_BYTES, gap.key in self._pins)

    def pin(self, parts: Iterable[PromptPart], namespace: str) -> None:
        """Keep these; raises PinBudgetExhausted, and then keeps none of them."""
        pins = {
            gap.key: Entry(gap.num_tokens, namespace) for gap in self._gaps(parts, namespace)
        } | self._pins
        needed = sum(entry.num_tokens for entry in pins.values()) * TOKEN_BYTES
        limit = int(_PIN_SHARE * self.budget_tokens * TOKEN_BYTES)
        if needed > limit:
            raise PinBudgetExhausted(
                f"pins would take {needed} bytes, they may take {limit}: unpin other segments",
                needed_bytes=needed,
                limit_bytes=limit,
            )
        self._pins = pins

    def unpin(self, parts: Iterable[PromptPart], namespace: str) -> None:
        """These may be evicted again."""
        for gap in self._gaps(parts, namespace):
            self._pins.pop(gap.key, None)

    def set_priority(self, parts: Iterable[PromptPart], priority: int, namespace: str) -> None:
        """Lower ones are evicted first."""
        self._priorities |= {gap.key: priority for gap in self._gaps(parts, namespace)}

    def set_limit(self, namespace: str, limit_bytes: int) -> None:
        """Hold a tenant to so many bytes."""
        self._limits[namespace] = limit_bytes
        self._trim(namespace, limit_bytes // TOKEN_BYTES, newest=None)

    def holdings(self, namespace: str) -> dict[str, int]:
        """What a tenant holds."""
        entries = [entry for entry in self._entries.values() if entry.namespace == namespace]
        return {
            "num_segments": len(entries),
            "num_chains": sum(owner == namespace for owner, _ in self._chains),
            "num_bytes": self.held_tokens(namespace) * TOKEN_BYTES,
        }

    def clear(self, namespace: str) -> int:
        """Drop all that a tenant holds; how many went."""
        keys = [key for key, entry in self._entries.items() if entry.namespace == namespace]
        chains = [name for name in self._chains if name[0] == namespace]
        for key in keys:
            del self._entries[key]
        for name in chains:
            del self._chains[name]
        return len(keys) + len(chains)

    def _gaps(self, parts: Iterable[PromptPart], namespace: str) -> list[Gap]:
        gaps = (self._gap(part, namespace) for part in parts)
        return [gap for gap in gaps if gap is not None]

    def _longest(self, layout: PromptLayout, namespace: str) -> int:
        held = {chain.position for (owner, _), chain in self._chains.items() if owner == namespace}
        digests = layout.digests(layout.chain_positions(held))
        found = [
            position for position, digest in digests.items() if (namespace, digest) in self._chains
        ]
        for position in found:
            self._chains.move_to_end((namespace, digests[position]))
        return max(found, default=0)

    def _keep_chains(self, layout: PromptLayout, covered: int, namespace: str) -> None:
        later = [border for border in layout.prompt.borders if border.position > covered]
        leading = [one for one in later if one.kind is BorderKind.LEADING]
        others = [one for one in later if one.kind is not BorderKind.LEADING]
        wanted = sorted({one.position for one in (*leading, *others[-_INNER_CHAINS:])})
        for position, digest in layout.digests(wanted).items():
            self._put_chain(namespace, digest, position, layout.keys_until(position))

    def _put_chain(
        self, namespace: str, digest: bytes, position: int, keys: frozenset[SegmentKey]
    ) -> None:
        self._chains[namespace, digest] = Chain(position, keys)
        self._chains.move_to_end((namespace, digest))
        while len(self._chains) > _MAX_CHAINS:
            self._chains.popitem(last=False)
