"""Which sentences training never sees: decided by a checksum, not by taste.

A sentence is held out if the hash of its seed, kind, relation and words falls under a share. The
seed was fixed after the last phrasing was written. Standard library only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence

SEED = "reader held-out sentences, of november 2026"
OWN_SHARE, FRAME_SHARE, CELL_SHARE = 0.12, 0.15, 0.12
LEAST_STATEMENTS, LEAST_QUESTIONS = 2, 1
#: words that `roughen` may add after a verb, and words that it may drop
SMALL_WORDS = ("also", "now", "still", "really", "indeed", "of course", "surely", "always", "again")
DROPPABLE = frozenset(("the", "a", "an", "is", "of", "that", "its", "was", "it"))
_STOPS = str.maketrans(".,:;?!", "      ")
ROUGHENED_WORDS = DROPPABLE | {word for words in SMALL_WORDS for word in words.split()}
ROUGHENED_VERBS = (" is ", " was ", " has ")


def place(kind: str, relation: str, template: str) -> float:
    """Return where a sentence falls in [0, 1)."""
    text = "|".join((SEED, kind, relation, template))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def held_out(
    kind: str, relation: str, pool: Sequence[str], share: float, least: int
) -> tuple[str, ...]:
    """Return the held-out part of a pool: all under `share`, and the lowest up to `least`."""
    placed = sorted((place(kind, relation, template), template) for template in pool)
    under = sum(at < share for at, _ in placed)
    return tuple(template for _, template in placed[: max(least, under)])


def bare(template: str) -> str:
    """Return a template as it reads once filled with a name: one form a subject, plain case."""
    text = template.replace("{o}", "{s}").replace("{p}", "{s}'s").replace("{a}", "a {v}")
    return " ".join(text.lower().translate(_STOPS).split())


def words_of(template: str) -> frozenset[str]:
    """Return the words of a template, its slots left out."""
    plain = re.sub(r"\{\w\}('s)?", " ", template.lower())
    return frozenset(re.findall(r"[a-z]+", plain))


def core(text: str) -> str:
    """Return a bare template without any word that roughening may add or drop."""
    return " ".join(word for word in text.split(" ") if word not in ROUGHENED_WORDS)


def roughened(template: str) -> set[str]:
    """Return all that roughening can make of a template, bare."""
    found = {bare(template)}
    for verb in ROUGHENED_VERBS:
        if verb in template:
            for word in SMALL_WORDS:
                found.add(bare(template.replace(verb, f"{verb}{word} ", 1)))
    words = template.split(" ")
    for at, word in enumerate(words):
        if word in DROPPABLE:
            found.add(bare(" ".join(words[:at] + words[at + 1 :])))
    return found


def apart(training: Iterable[str], held: Iterable[str]) -> tuple[str, ...]:
    """Leave out of `training` what could come out as a held-out sentence."""
    kept_out = {bare(template) for template in held}
    cores = {core(template) for template in kept_out}

    def clashes(template: str) -> bool:
        # the core is a cheap first look: most templates end there
        return core(bare(template)) in cores and bool(roughened(template) & kept_out)

    return tuple(t for t in dict.fromkeys(training) if not clashes(t))
