"""The prompts of the fidelity ladder: worlds of the reader's evaluation, in several orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hypic_sdk.demo.evaluation_data import Arm, make_prompt
from hypic_sdk.demo.questions import Example
from hypic_sdk.errors import ConfigError

if TYPE_CHECKING:
    from hypic_sdk.bench.subject import Subject
    from hypic_sdk.prompt.segment import SegmentedPrompt

SEED = 30_000_001

# what the answer hangs on -> the evaluation's arm; worlds are other ones than its (another index)
STRATA: dict[str, Arm] = {
    "one document": Arm("one_hop"),
    "one document, trained sentences": Arm("one_hop, seen", held_templates=False),
    "two documents": Arm("two_hop", held_templates=False, kind="two_hop"),
    "latest wins": Arm("latest", held_templates=False, kind="latest"),
    "tally": Arm("tally", held_templates=False, kind="tally"),
    "mentioned first": Arm("first", held_templates=False, kind="first"),
    "turned last": Arm("turned", held_templates=False, kind="turned"),
    "not said": Arm("not_said", kind="not_said"),
}
CUT = "cut sentence"
# asked for by name: not every model was taught them (docs/experiments.md)
MORE_STRATA: dict[str, Arm] = {CUT: Arm("cut", held_templates=False, kind="cut")}
ALL_STRATA = {**STRATA, **MORE_STRATA}
LEAST_CUT_TOKENS = 100  # of a document, so that the one a cut value begins is kept as a segment
# the answer to these is the same in every order of the documents
ANY_ORDER = frozenset(
    ("one document", "one document, trained sentences", "two documents", "tally", "not said")
)
DUPLICATES = "duplicates"
FIRST_INDEX = 5_000


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt and its right answer; cases of one world share `world`."""

    stratum: str
    world: str
    system: str | None
    documents: tuple[str, ...]
    glue: tuple[str, ...]
    question: str
    answer: str
    gold: tuple[int, ...]  # places of the documents that hold the answer

    def prompt(self, subject: Subject, *, with_borders: bool = False) -> SegmentedPrompt:
        """As a model's template has it."""
        return subject.prompt(
            self.system, self.documents, self.glue, self.question, with_borders=with_borders
        )

    def ordered(self, order: Sequence[int]) -> Case:
        """The same documents in another order (or some of them again)."""
        places = tuple(at for at, which in enumerate(order) if which in self.gold)
        documents = tuple(self.documents[which] for which in order)
        return replace(self, documents=documents, glue=("\n\n",) * len(order), gold=places)

    def closed_book(self) -> Case:
        """The question alone."""
        return self.ordered(())

    def without_gold(self) -> Case:
        """The documents that hold the answer taken out."""
        return self.ordered([at for at in range(len(self.documents)) if at not in self.gold])


@dataclass(frozen=True, slots=True)
class CaseSizes:
    """How many prompts of which size."""

    per_count: int  # worlds of each stratum and number of documents, times orders if these matter
    counts: tuple[int, ...]  # of documents
    document_tokens: tuple[int, ...]
    num_orders: int  # of each world; where the order changes the answer, so many more worlds

    def __post_init__(self) -> None:
        assert self.per_count > 0 < self.num_orders
        assert min(self.counts) > 1


def with_more(strata: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
    """Strata of a plan, and those asked for besides, each once.

    Raises:
        ConfigError: a name that is no stratum's.
    """
    unknown = [name for name in more if name not in ALL_STRATA]
    if unknown:
        names = ", ".join(repr(name) for name in ALL_STRATA)
        raise ConfigError(f"no stratum is called {unknown[0]!r}: there are {names}")
    return tuple(dict.fromkeys((*strata, *more)))


def _arm(stratum: str, document_tokens: tuple[int, ...]) -> Arm:
    if stratum == CUT:
        document_tokens = tuple(max(LEAST_CUT_TOKENS, tokens) for tokens in document_tokens)
    return replace(ALL_STRATA[stratum], document_tokens=document_tokens)


def _case(stratum: str, example: Example, world: str) -> Case:
    question = example.questions[0]
    return Case(
        stratum, world, example.system, example.documents, example.glue, question.text,
        question.answer, question.gold,
    )  # fmt: skip


def _orders(case: Case, num_orders: int, rng: random.Random) -> list[Case]:
    if case.stratum not in ANY_ORDER:
        return [case]
    places = list(range(len(case.documents)))
    shuffled = [rng.sample(places, len(places)) for _ in range(num_orders - 1)]
    return [case, *(case.ordered(order) for order in shuffled)]


def make_cases(sizes: CaseSizes, strata: Sequence[str] = tuple(STRATA)) -> list[Case]:
    """The same cases for the same sizes, as many of each stratum.

    The duplicates are one-document cases besides, one text twice.
    """
    cases = []
    for stratum in strata:
        arm = _arm(stratum, sizes.document_tokens)
        for count in sizes.counts:
            worlds = sizes.per_count * (1 if stratum in ANY_ORDER else sizes.num_orders)
            for index in range(worlds):
                example = make_prompt(arm, count, FIRST_INDEX + index)
                world = f"{stratum}/{count}/{index}"
                rng = random.Random(f"{SEED}/{world}")
                case = _case(stratum, example, world)
                cases += _orders(case, sizes.num_orders, rng)
                if stratum == "one document, trained sentences":
                    cases.append(_with_duplicate(case, rng))
    return cases


def _with_duplicate(case: Case, rng: random.Random) -> Case:
    places = list(range(len(case.documents)))
    again = rng.choice(places)
    order = [*places, again] if rng.random() < 0.5 else [again, *places]
    return replace(case.ordered(order), stratum=DUPLICATES)


def long_texts(num_texts: int) -> list[str]:
    """Documents of at least some 300 tokens, for the norms of transitions."""
    arm = Arm("norms", counts=(4,), document_tokens=(180,))
    examples = (make_prompt(arm, 4, FIRST_INDEX + 1_000 + i) for i in range(num_texts))
    return ["\n".join(example.documents) for example in examples]
