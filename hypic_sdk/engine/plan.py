"""Hypic Assembler, first half: which tokens are live, where each run is cut, what lies between.

`PromptLayout` holds what follows from the prompt and the settings alone: its items (live stretches
and gaps), the cut points, the chain digests.  `PromptLayout.plan` drops what a chain covers.

Cut points (design 3.9).  A live run goes through scan and attention in pieces, cut

1. at every part border, at every border at which a chain may be kept, and at gaps;
2. between two such cuts on the chunk grid, counted from the earlier one.

Cuts are a function of the prompt, never of what was cached: a run that resumes from a chain goes
on with the cuts of the run that had none.  So a chain kept at a border by a prompt with the same
items and borders before it gives the very bits of the cold run (law 4).  A chain that ends
elsewhere (the end of a reply, which was decoded token by token) only shortens the piece it ends in;
there cold and resumed runs differ by rounding, as decode and prefill do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from hypic_sdk.config import ReuseConfig, SeamWidths
from hypic_sdk.engine.chain_digest import ChainDigest
from hypic_sdk.prompt.segment import (
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    SegmentKey,
    packed_key,
    token_bytes,
)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Live tokens [start, stop) of the prompt: one scan, one attention call, never cut further."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Gap:
    """The cached interior of the segment that stands at `segment_start`.

    Its entry is that of anchor and segment taken as one, with the anchor as a part of the head
    seam: computed, and not kept.
    """

    key: SegmentKey
    part_index: int
    segment_start: int
    num_tokens: int  # of the segment
    seam: SeamWidths
    anchor: tuple[int, ...] = ()  # tokens that the segment was computed behind

    @property
    def entry_tokens(self) -> int:
        """Tokens that the entry is computed from."""
        return len(self.anchor) + self.num_tokens

    @property
    def entry_seam(self) -> SeamWidths:
        """Of these, what is not kept at each edge."""
        return _anchored_seam(self.seam, self.anchor)

    @property
    def entry_start(self) -> int:
        """Global position of the first of them, if the anchor stood right before the segment."""
        return self.segment_start - len(self.anchor)

    @property
    def start(self) -> int:
        """Global position of the interior's first token."""
        return self.segment_start + self.seam.head_tokens

    @property
    def stop(self) -> int:
        """Global position behind the interior's last token."""
        return self.segment_start + self.num_tokens - self.seam.tail_tokens


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Keep a chain entry here."""

    position: int
    kind: BorderKind
    digest: bytes


Unit = LiveRun | Gap | Snapshot


@dataclass(frozen=True, slots=True)
class AssemblyPlan:
    """What is left of a prompt after the chain, in prompt order; the last unit is a run."""

    chain_tokens: int
    units: tuple[Unit, ...]

    @property
    def live_tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(unit.stop - unit.start for unit in self.units if isinstance(unit, LiveRun))

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The interiors that are taken from entries, in prompt order."""
        return tuple(unit for unit in self.units if isinstance(unit, Gap))

    @property
    def num_snapshots(self) -> int:
        """State rows that the chain entries of this plan need."""
        return sum(isinstance(unit, Snapshot) for unit in self.units)


@dataclass(frozen=True)
class PromptLayout:
    """The items of a prompt, whatever is cached."""

    prompt: SegmentedPrompt
    gaps: tuple[Gap, ...]  # in prompt order
    chunk_tokens: int
    namespace: str

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where pieces of live runs start or stop, gaps' edges included; 0 and the end too."""
        prompt = self.prompt
        edges = {0, prompt.num_tokens, *prompt.starts}
        edges.update(border.position for border in prompt.borders)
        edges.update(edge for gap in self.gaps for edge in (gap.start, gap.stop))
        hidden = {gap.start for gap in self.gaps}
        cuts: list[int] = []
        for start, stop in pairwise(sorted(edges)):
            step = stop - start if start in hidden else self.chunk_tokens
            cuts.extend(range(start, stop, step))
        return (*cuts, prompt.num_tokens)

    def chain_positions(self, wanted: Iterable[int] | None = None) -> list[int]:
        """Where a chain may end, rising: outside of interiors, with a live token left to run.

        Args:
            wanted: only these; none: every such position.
        """
        last = self.prompt.num_tokens - 1
        edges = [0, *(edge for gap in self.gaps for edge in (gap.start, gap.stop)), last]
        live = list(zip(edges[::2], edges[1::2], strict=True))  # both ends included
        if wanted is None:
            # neighbouring gaps share an edge, hence the set
            return sorted({p for a, b in live for p in range(max(a, 1), min(b, last) + 1)})
        return [
            p for p in sorted(set(wanted)) if 0 < p <= last and any(a <= p <= b for a, b in live)
        ]

    @cached_property
    def gap_tokens(self) -> dict[SegmentKey, bytes]:
        """The tokens of every segment with a gap, as the store compares them."""
        return {gap.key: self.entry_part(gap).packed for gap in self.gaps}

    def entry_part(self, gap: Gap) -> PromptPart:
        """What a gap's entry is computed from."""
        return entry_part(self.prompt.parts[gap.part_index], gap)

    @cached_property
    def _known_digests(self) -> dict[int, bytes]:
        """Digests that were asked for: a request that waits asks again and again."""
        return {}

    def digests(self, positions: Sequence[int]) -> dict[int, bytes]:
        """Chain digest at each position; `positions` rise and lie outside of interiors."""
        known = self._known_digests
        if any(position not in known for position in positions):
            # those of borders are asked for later: one walk over the tokens finds all
            borders = (border.position for border in self.prompt.borders)
            known.update(self._new_digests(sorted({*positions, *borders})))
        return {position: known[position] for position in positions}

    def _new_digests(self, positions: Sequence[int]) -> dict[int, bytes]:
        digests: dict[int, bytes] = {}
        rolling, done = ChainDigest(self.namespace), 0
        gaps = iter((*self.gaps, None))
        gap = next(gaps)
        for position in positions:
            while gap is not None and gap.stop <= position:
                self._feed(rolling, done, gap)
                done, gap = gap.stop, next(gaps)
            assert gap is None or position <= gap.start, "a chain cannot end inside an interior"
            rolling.feed_live(self.prompt.span(done, position))
            done = max(done, position)
            digests[position] = rolling.digest()
        return digests

    @cached_property
    def end_digest(self) -> ChainDigest:
        """The rolling digest of the whole prompt; copy it to go on with a reply."""
        rolling, done = ChainDigest(self.namespace), 0
        for gap in self.gaps:
            self._feed(rolling, done, gap)
            done = gap.stop
        rolling.feed_live(self.prompt.span(done, self.prompt.num_tokens))
        return rolling

    def _feed(self, rolling: ChainDigest, done: int, gap: Gap) -> None:
        """Feed the live tokens from `done` up to the gap, then its interior."""
        rolling.feed_live(self.prompt.span(done, gap.start))
        interior = self.prompt.span(gap.start, gap.stop)
        rolling.feed_interior(gap.key, gap.seam.head_tokens, interior)

    def exact_until(self, position: int) -> bool:
        """Whether no interior before `position` stands after tokens that it was computed without.
        """  # fmt: skip
        return all(gap.entry_start == 0 for gap in self.gaps if gap.stop <= position)

    def keys_until(self, position: int) -> frozenset[SegmentKey]:
        """Keys of the segments whose interiors end at or before `position`."""
        return frozenset(gap.key for gap in self.gaps if gap.stop <= position)

    def plan(
        self, chain_tokens: int = 0, snapshots: Mapping[int, Snapshot] | None = None
    ) -> AssemblyPlan:
        """Units behind the first `chain_tokens` tokens, with the snapshots wanted at cut points."""
        snapshots = snapshots or {}
        gaps = {gap.start: gap for gap in self.gaps}
        units: list[Unit] = []
        for start, stop in pairwise(self.cuts):
            if stop <= chain_tokens:
                continue
            gap = gaps.get(start)
            assert gap is None or start >= chain_tokens, "a chain cannot end inside an interior"
            units.append(LiveRun(max(start, chain_tokens), stop) if gap is None else gap)
            if stop in snapshots:
                units.append(snapshots[stop])
        return AssemblyPlan(chain_tokens, tuple(units))


def gap_of(
    part: PromptPart, index: int, start: int, reuse: ReuseConfig, conv_width: int, namespace: str
) -> Gap | None:
    """The interior that the settings take from the store for this part; none if all is live."""
    num_tokens = len(part.token_ids)
    keeps = reuse.mode.segments and reuse.keeps(num_tokens, conv_width)
    if part.role is not Role.INNER or not keeps:
        return None
    seam = reuse.seam_widths(num_tokens, conv_width)
    anchor = part.anchor if reuse.anchored else ()
    packed = token_bytes(anchor) + part.packed if anchor else part.packed
    key = packed_key(packed, _anchored_seam(seam, anchor), namespace)
    return Gap(key, index, start, num_tokens, seam, anchor)


def _anchored_seam(seam: SeamWidths, anchor: Sequence[int]) -> SeamWidths:
    return SeamWidths(seam.head_tokens + len(anchor), seam.tail_tokens)


def entry_part(part: PromptPart, gap: Gap) -> PromptPart:
    """What the entry of this part's gap is computed from: the part, behind its anchor if any."""
    return replace(part, token_ids=(*gap.anchor, *part.token_ids)) if gap.anchor else part


def layout_prompt(
    prompt: SegmentedPrompt,
    reuse: ReuseConfig,
    *,
    conv_width: int,
    namespace: str,
    chunk_tokens: int,
    with_segments: bool = True,
) -> PromptLayout:
    """Items of `prompt` under these settings; every token live without `with_segments`."""
    gaps = []
    first = prompt.parts[0]
    anchor = first.token_ids if first.role is Role.LEADING else ()
    if with_segments:
        for index, (part, start) in enumerate(zip(prompt.parts, prompt.starts, strict=True)):
            if reuse.anchored:
                part = replace(part, anchor=anchor)
            gap = gap_of(part, index, start, reuse, conv_width, namespace)
            if gap is not None:
                gaps.append(gap)
    return PromptLayout(prompt, tuple(gaps), chunk_tokens, namespace)
