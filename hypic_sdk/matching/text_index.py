"""An index of texts by their first characters: built once, then only read."""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, final

import ahocorasick

ANCHOR_CHARS = 16
"""By its first characters a text is looked for; with the rest it is compared.  More of them make
the automaton larger and slower, fewer give more places where nothing begins after all."""


@dataclass(frozen=True, slots=True)
class AlikeTexts:
    """Texts that share their anchor, sorted."""

    texts: tuple[str, ...]
    longest_chars: int


@final
class TextIndex:
    """Finds where texts may begin, in one pass of an Aho-Corasick automaton over the anchors.

    Only anchors are in the automaton: with whole texts in it, each character of them would take
    memory, and each new text the time to build all of it again.
    """

    def __init__(self, texts: Sequence[str], automaton: ahocorasick.Automaton) -> None:
        self.texts = texts
        self._automaton = automaton

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Of some texts, each at least `ANCHOR_CHARS` long."""
        held = sorted(set(texts))
        groups: dict[str, list[str]] = {}
        for text in held:
            groups.setdefault(text[:ANCHOR_CHARS], []).append(text)
        automaton = ahocorasick.Automaton()
        for anchor, alike in groups.items():
            automaton.add_word(anchor, AlikeTexts(tuple(alike), max(map(len, alike))))
        automaton.make_automaton()
        return cls(held, automaton)

    def places(self, prompt: str) -> Iterator[tuple[int, AlikeTexts]]:
        """Where in a prompt one of these texts may begin, rising, and which."""
        # an automaton without words can not be asked
        for last, alike in self._automaton.iter(prompt) if self.texts else ():
            yield last - ANCHOR_CHARS + 1, alike


def longest_beginning(
    prompt: str, texts: Sequence[str], is_known: Callable[[str], bool]
) -> str | None:
    """The longest of sorted texts that is known still and with which a prompt begins.

    What sorts between such a text and the prompt begins with that text too.  So the last one that
    is not behind the prompt is it; or else it is no longer than what the two have in common.
    """
    while texts:
        place = bisect(texts, prompt)
        if place == 0:
            return None
        last, texts = texts[place - 1], texts[: place - 1]
        if not prompt.startswith(last):
            prompt = prompt[: _num_common(prompt, last)]
        elif is_known(last):
            return last
    return None


def _num_common(one: str, other: str) -> int:
    """How many first characters two texts have in common."""
    lengths = range(1, min(len(one), len(other)) + 1)
    return bisect_left(lengths, True, key=lambda length: not one.startswith(other[:length]))
