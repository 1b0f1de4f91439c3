"""Which tokens of segments to run live: by a fixed seam, by attention, by chance, by the answer."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SEAM_TOKENS = 8  # the default seam, on which every choice builds
EDGE_TOKENS = 32  # behind that seam: what is seen of a segment by its edge
BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """What a choice may look at."""

    num_tokens: int  # N, of the prompt
    segments: tuple[tuple[int, int], ...]  # [start, stop) of those that are kept
    mass_N: torch.Tensor  # of the trailing part's attention under default seams
    gold: tuple[int, ...]  # which segments hold the answer; a user does not know
    seed: str

    def rng(self) -> random.Random:
        """The same one each time it is asked for."""
        return random.Random(self.seed)

    def live(self, widths: Sequence[int]) -> torch.Tensor:
        """[N] bool: all but interiors, under a head seam for each segment."""
        live_N = torch.ones(self.num_tokens, dtype=torch.bool)
        for (start, stop), width in zip(self.segments, widths, strict=True):
            live_N[start + width : stop] = False
        return live_N

    def base(self) -> torch.Tensor:
        """[N] bool: default seams."""
        return self.live([SEAM_TOKENS] * len(self.segments))


Choice = Callable[[Scene], torch.Tensor]
"""[N] bool: the live tokens."""

Share = Callable[[Scene], list[float]]
"""How much of what there is to spend each segment gets; not negative."""


def fixed(width: int) -> Choice:
    """One head seam for all."""
    return lambda scene: scene.live([width] * len(scene.segments))


def by_mass(scene: Scene) -> list[float]:
    """By the attention that its interior gets."""
    return [float(scene.mass_N[start + SEAM_TOKENS : stop].sum()) for start, stop in scene.segments]


def by_edge(scene: Scene) -> list[float]:
    """By the attention that the beginning of its interior gets."""
    return [
        float(scene.mass_N[start + SEAM_TOKENS : start + SEAM_TOKENS + EDGE_TOKENS].sum())
        for start, _ in scene.segments
    ]


def by_chance(scene: Scene) -> list[float]:
    """The shares of `by_mass`, dealt to the segments at random."""
    shares = by_mass(scene)
    return scene.rng().sample(shares, len(shares))


def by_answer(scene: Scene) -> list[float]:
    """All to the segments that hold the answer."""
    return [float(at in scene.gold) for at in range(len(scene.segments))]


def widened(mean_width: int, share: Share) -> Choice:
    """Head seams of at least the default, whose mean over segments is `mean_width`."""

    def choose(scene: Scene) -> torch.Tensor:
        rooms = [stop - start - SEAM_TOKENS for start, stop in scene.segments]
        extra = spread((mean_width - SEAM_TOKENS) * len(rooms), share(scene), rooms)
        return scene.live([SEAM_TOKENS + one for one in extra])

    return choose


def spread(total: int, shares: Sequence[float], rooms: Sequence[int]) -> list[int]:
    """`total` in whole numbers by shares, none more than its room; what is over goes to the others.

    The sum is `total`, or all the room there is.
    """
    given = [0] * len(rooms)
    order = sorted(range(len(rooms)), key=lambda at: -shares[at])
    left = min(total, sum(rooms))
    while left:
        open_ = [at for at in order if given[at] < rooms[at]]
        whole = sum(shares[at] for at in open_)
        before = left
        for at in open_:
            wanted = int(before * shares[at] / whole) if whole > 0.0 else before // len(open_)
            more = min(wanted, rooms[at] - given[at], left)
            given[at] += more
            left -= more
        if left == before:  # each part is less than one
            for at in open_[:left]:
                given[at] += 1
                left -= 1
    return given


def refreshed_blocks(count: int, *, picked: bool) -> Choice:
    """Blocks of an interior besides the default seams: those attended to most, or random ones."""

    def choose(scene: Scene) -> torch.Tensor:
        starts = [
            at
            for start, stop in scene.segments
            for at in range(start + SEAM_TOKENS, stop - BLOCK_TOKENS + 1, BLOCK_TOKENS)
        ]
        sizes = [float(scene.mass_N[at : at + BLOCK_TOKENS].sum()) for at in starts]
        live_N = scene.base()
        for which in _pick(scene, sizes, count, picked=picked):
            live_N[starts[which] : starts[which] + BLOCK_TOKENS] = True
        return live_N

    return choose


def refreshed_tokens(count: int, *, picked: bool) -> Choice:
    """Single tokens of interiors besides the default seams."""

    def choose(scene: Scene) -> torch.Tensor:
        live_N = scene.base()
        inside = (~live_N).nonzero()[:, 0]
        sizes = scene.mass_N[inside].tolist()
        live_N[inside[_pick(scene, sizes, count, picked=picked)]] = True
        return live_N

    return choose


def refreshed_segments(share: Share, count: int = 1) -> Choice:
    """Whole segments, those of the largest share, besides the default seams of the others."""

    def choose(scene: Scene) -> torch.Tensor:
        live_N, shares = scene.base(), share(scene)
        for which in sorted(range(len(shares)), key=lambda at: -shares[at])[:count]:
            live_N[slice(*scene.segments[which])] = True
        return live_N

    return choose


def _pick(scene: Scene, sizes: Sequence[float], count: int, *, picked: bool) -> list[int]:
    """`count` of them, the largest or any."""
    if picked:
        return sorted(range(len(sizes)), key=lambda at: -sizes[at])[:count]
    return scene.rng().sample(range(len(sizes)), min(count, len(sizes)))
