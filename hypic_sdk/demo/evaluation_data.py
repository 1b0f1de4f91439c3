"""The prompts that the reader is scored on. No torch here."""

from __future__ import annotations

import multiprocessing as mp
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hypic_sdk.config import keep_tokenizers_serial
from hypic_sdk.demo.prompts import Batch, Encoded, PieceTokenizer, PromptEncoder, pack_stream
from hypic_sdk.demo.questions import (
    NOT_SAID,
    Example,
    cut,
    make_questions,
    mentioned_first,
    not_said,
    one_hop,
    since,
    tally,
    turned,
    two_hop,
)
from hypic_sdk.demo.relations import Part
from hypic_sdk.demo.worlds import WorldSpec, make_world
from hypic_sdk.errors import ConfigError, NumericsError

SEED = 20_000_003


@dataclass(frozen=True, slots=True)
class Arm:
    """One set of prompts."""

    name: str
    held_names: bool = True
    held_templates: bool = True
    held_questions: bool | None = None  # as held_templates, where not said
    part: Part = "all"  # of the phrasings: a relation's own, framed ones, both, or its grid
    share: float = 0.4  # of the prompts asked for
    controls: bool = True  # whether the two controls are run
    kind: str = "one_hop"
    counts: tuple[int, ...] = (2, 4, 8, 16)
    document_tokens: tuple[int, ...] = (60, 100, 180)


ARMS = (
    Arm("one_hop, held names, held templates", share=1.0),
    Arm("one_hop, held names, held own templates", part="own", share=1.0, controls=False),
    Arm("one_hop, held names, held frames", part="framed", controls=False),
    Arm("one_hop, held names, held grid", part="grid", controls=False),
    Arm("one_hop, held names, held statements", held_questions=False, controls=False),
    Arm(
        "one_hop, held names, held questions",
        held_templates=False,
        held_questions=True,
        controls=False,
    ),
    Arm("one_hop, held names, seen templates", held_templates=False),
    Arm("one_hop, seen names, seen templates", held_names=False, held_templates=False),
    Arm("not_said, held names, held templates", kind="not_said"),
    Arm("closed_book, held names, held templates", kind="closed_book", counts=(2,)),
    Arm("closed_book, says that nothing is said", kind="closed_silent", counts=(2,)),
    Arm("latest, held names, seen templates", held_templates=False, kind="latest"),
    Arm("first, held names, seen templates", held_templates=False, kind="first"),
    Arm("tally, held names, seen templates", held_templates=False, kind="tally"),
    Arm("since, held names, seen templates", held_templates=False, kind="since"),
    Arm("turned, held names, seen templates", held_templates=False, kind="turned"),
    Arm("two_hop, held names, seen templates", held_templates=False, kind="two_hop"),
    Arm("cut, held names, seen templates", held_templates=False, kind="cut"),
)
MAKERS = {
    "not_said": not_said,
    "tally": tally,
    "since": since,
    "turned": turned,
    "two_hop": two_hop,
    "cut": cut,
}
QUICK = ("held templates", "seen templates")
ATTEMPTS = 7919  # seeds that one prompt may try


def quick_arms() -> tuple[Arm, ...]:
    """Return arms that a CPU scores in some minutes."""
    chosen = [arm for arm in ARMS if arm.held_names and arm.kind in ("one_hop", "not_said")]
    return tuple(
        replace(arm, counts=(2, 4), document_tokens=(60, 100), share=1.0)
        for arm in chosen
        if arm.name.endswith(QUICK)
    )


def arm_size(arm: Arm, per_count: int) -> int:
    """Return how many prompts of each number of documents an arm has."""
    return max(1, round(arm.share * per_count))


def make_prompt(arm: Arm, num_documents: int, index: int) -> Example:
    """Make one prompt of an arm, with one question; gold documents go round all places."""
    seed = SEED + 1_000_003 * num_documents + ATTEMPTS * index
    for attempt in range(ATTEMPTS):
        example = _one(arm, num_documents, index % num_documents, seed + attempt)
        if example is not None:
            return example
    raise ConfigError(
        f"no prompt of {arm.name!r} in {ATTEMPTS} worlds of {num_documents} documents"
    )


def _one(arm: Arm, num_documents: int, place: int, seed: int) -> Example | None:
    rng = random.Random(seed)
    spec = WorldSpec(
        num_documents=num_documents,
        document_tokens=rng.choice(arm.document_tokens),
        held_names=arm.held_names,
        held_statements=arm.held_templates,
        held_questions=arm.held_templates if arm.held_questions is None else arm.held_questions,
        part=arm.part,
        filler_share=rng.choice((0.1, 0.3)),
        updates=3 if arm.kind == "latest" else 0,
        events=2 if arm.kind in ("tally", "since") else 0,
        resets=arm.kind == "since",
        switches=2 if arm.kind == "turned" else 0,
        cuts=3 if arm.kind == "cut" else 0,
        one_hop_only=True,
    )
    world, documents = make_world(spec, seed)
    if arm.kind in ("one_hop", "closed_book", "closed_silent"):
        keys = [key for key, (_, gold) in world.truth.items() if gold == (place,)]
        question = one_hop(world, rng.choice(keys)) if keys else None
    elif arm.kind == "latest":
        question = one_hop(world, rng.choice(sorted(world.updated))) if world.updated else None
    elif arm.kind == "first":
        question = mentioned_first(world, documents)
    else:
        question = MAKERS[arm.kind](world)
    if question is None:
        return None
    if arm.kind == "closed_silent":
        question = replace(question, answer=NOT_SAID)
    if arm.kind.startswith("closed_"):
        return Example("Answer from the documents.", (), (), (question,))
    return Example("Answer from the documents.", documents, ("\n\n",) * num_documents, (question,))


def mixed_examples(count: int, num_documents: int, document_tokens: int) -> list[Example]:
    """A small mixture with several questions a prompt."""
    out = []
    for seed in range(SEED, SEED + count):
        spec = WorldSpec(
            num_documents,
            document_tokens,
            held_names=True,
            held_statements=True,
            held_questions=True,
            updates=1,
            events=1,
        )
        world, documents = make_world(spec, seed)
        questions = make_questions(world, documents)
        out.append(
            Example("Answer from the documents.", documents, ("\n\n",) * num_documents, questions)
        )
    return out


def pack_all(encoded: Sequence[Encoded], rows: int, length: int) -> list[Batch]:
    """Pack every prompt, in rows as long as the longest needs."""
    longest = max(len(one) for one in encoded)
    packed = list(pack_stream(iter(encoded), rows, max(length, -(-longest // 64) * 64)))
    got, wanted = sum(len(b.answers) for b in packed), sum(len(e.answers) for e in encoded)
    if got != wanted:
        raise NumericsError(f"packing kept {got} of {wanted} answers; none may be dropped")
    return packed


_encoders: dict[str, PromptEncoder] = {}


def _encode(task: tuple[str, Arm, int, int]) -> Encoded:
    """Make and encode one prompt; a process reads the tokenizer once."""
    folder, arm, num_documents, index = task
    if folder not in _encoders:
        keep_tokenizers_serial()
        _encoders[folder] = PromptEncoder(PieceTokenizer(Path(folder)))
    return _encoders[folder].encode(make_prompt(arm, num_documents, index))


def prepare(
    folder: Path, per_count: int, arms: Sequence[Arm] = ARMS, rows: int = 1, workers: int = 1
) -> dict[str, list[Batch]]:
    """Make, encode and pack the prompts of every arm; `folder` holds the tokenizer."""
    tasks = {
        arm.name: [
            (str(folder), arm, count, index)
            for count in arm.counts
            for index in range(arm_size(arm, per_count))
        ]
        for arm in arms
    }
    everything = [task for some in tasks.values() for task in some]
    if workers > 1:
        with mp.get_context("fork").Pool(workers) as pool:
            encoded = pool.map(_encode, everything, chunksize=8)
    else:
        encoded = [_encode(task) for task in everything]
    found = iter(encoded)
    return {name: pack_all([next(found) for _ in some], rows, 2048) for name, some in tasks.items()}
