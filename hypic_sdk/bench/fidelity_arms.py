"""Ways to answer the same prompt: modes, planted faults, and prompts that lack what they need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import final

import torch

from hypic_sdk.bench import faults
from hypic_sdk.bench.fidelity_cases import Case
from hypic_sdk.bench.probe import Forced, Probe
from hypic_sdk.bench.scores import exact_match, rouge_l, token_f1
from hypic_sdk.bench.subject import Subject
from hypic_sdk.config import PAIRS, SeamRule
from hypic_sdk.engine.divergence import divergence_rows
from hypic_sdk.prompt.segment import SegmentedPrompt

MAX_TOKENS = 24
FULL = "full_recompute"
DEFAULT = "transition_rope_recompute"

Setting = tuple[str, str, str, bool]
"""What makes an arm's engine: mode, seam, stored precision, whether segments are anchored."""

Plant = Callable[[Probe, SegmentedPrompt], AbstractContextManager[int]]


@contextmanager
def nothing(probe: Probe, prompt: SegmentedPrompt) -> Iterator[int]:
    """No fault."""
    yield -1


@dataclass(frozen=True, slots=True)
class Arm:
    """A mode, what is spoilt in it, and what is done to the case first."""

    name: str
    mode: str = DEFAULT
    seam: SeamRule = SeamRule()
    pair: str = PAIRS[0]  # in which precision pairs are kept
    anchored: bool = False
    plant: Plant = nothing
    change: Callable[[Case], Case] = lambda case: case
    needs_gold: bool = False  # only cases whose gold documents can be taken out
    with_borders: bool = False  # prefixes may be kept


def _planted(fault: faults.Fault) -> Plant:
    return partial(faults.planted, fault=fault)


MODE_ARMS = (
    Arm(DEFAULT),
    Arm("transition_rope", "transition_rope"),
    Arm("transition", "transition"),
    Arm("addition", "addition"),
    Arm("prefix_cache", "prefix_cache", with_borders=True),
)
"""The modes of the engine that are compared with full recompute."""

CONTROL_ARMS = (
    Arm("state zeroed", plant=_planted(faults.zero_states)),
    Arm("interior keys removed", plant=faults.hidden_keys),
    Arm("wrong offset", plant=_planted(faults.shift_keys)),
    Arm("swapped transitions", plant=_planted(faults.swap_transitions)),
    Arm("closed book", FULL, change=Case.closed_book, needs_gold=True),
    Arm("gold removed", FULL, change=Case.without_gold, needs_gold=True),
)
"""What must do worse than the default mode; `addition` and `transition_rope` (no seam) as well."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case in one arm, beside full recompute."""

    arm: str
    case: int  # which prompt: pairs arms
    stratum: str
    world: str
    num_documents: int
    em: float
    f1: float
    rouge_l: float
    kl: float  # mean over the reply of full recompute, nats a token
    kl_max: float
    top1: float  # share of the reply's tokens (its end included) that this arm finds best
    same_reply: bool
    prompt_tokens: int
    live_tokens: int
    num_entries: int  # segments that a fault could meet; -1 without one


@dataclass(frozen=True, slots=True, eq=False)
class FullReply:
    """What full recompute says to a case, and its distributions."""

    number: int  # of the case
    case: Case
    token_ids: tuple[int, ...]
    forced: Forced


@final
@dataclass(slots=True)
class Bench:
    """Probes over one subject, made as they are asked for."""

    subject: Subject
    min_segment_tokens: int = 64
    _probes: dict[tuple[Setting, bool], Probe] = field(default_factory=dict)

    def probe(self, arm: Arm, *, attends: bool = True) -> Probe:
        """The engine of an arm; arms of one mode share it."""
        key = (self._setting(arm), attends)
        if key not in self._probes:
            self._probes[key] = self.subject.probe(
                arm.mode, arm.seam, pair=arm.pair,
                min_segment_tokens=self.min_segment_tokens, attends=attends,
                anchored=arm.anchored,
            )  # fmt: skip
        return self._probes[key]

    def drop(self, arm: Arm) -> None:
        """Give the arm's engines back."""
        for key in [key for key in self._probes if key[0] == self._setting(arm)]:
            del self._probes[key]

    @staticmethod
    def _setting(arm: Arm) -> Setting:
        return arm.mode, str(arm.seam), arm.pair, arm.anchored

    def full(self, case: Case, number: int = 0) -> FullReply:
        """Full recompute's greedy reply, and its distributions along it.

        A good model says the right answer; where its best tokens along that are that answer and its
        end, the answer is the greedy reply, and one forward has given both.
        """
        probe, prompt = self.probe(Arm(FULL, FULL)), case.prompt(self.subject)
        guess = self.subject.tokenizer.encode_text(case.answer)[:MAX_TOKENS]
        forced = probe.force(prompt, guess)
        best = forced.logits_NV.argmax(-1).tolist()
        is_end = len(guess) == MAX_TOKENS or best[-1] in self.subject.model.spec.eos_token_ids
        if not (is_end and tuple(best[:-1]) == tuple(guess)):
            guess = probe.read(prompt, MAX_TOKENS).token_ids
            forced = probe.force(prompt, guess)
        return FullReply(number, case, tuple(guess), forced)

    def forced(self, arm: Arm, full: FullReply) -> tuple[Forced, int]:
        """The arm along the reply of full recompute, and how many entries its fault met."""
        probe = self.probe(arm)
        prompt = arm.change(full.case).prompt(self.subject, with_borders=arm.with_borders)
        with arm.plant(probe, prompt) as num_entries:
            return probe.force(prompt, full.token_ids), num_entries

    def row(self, arm: Arm, full: FullReply) -> Row:
        """One case in one arm."""
        forced, num_entries = self.forced(arm, full)
        is_same = bool(agreement(full, forced.logits_NV).all())
        said = full.token_ids if is_same else self._reply(arm, full.case)
        num_said = len(full.token_ids)
        return compared(
            self.subject, arm.name, full, forced.logits_NV, said,
            prompt_tokens=forced.report.prompt_tokens - num_said,
            live_tokens=forced.report.live_tokens - num_said,
            num_entries=num_entries,
        )  # fmt: skip

    def _reply(self, arm: Arm, case: Case) -> tuple[int, ...]:
        probe = self.probe(arm)
        prompt = arm.change(case).prompt(self.subject, with_borders=arm.with_borders)
        with arm.plant(probe, prompt):
            return probe.read(prompt, MAX_TOKENS).token_ids


def agreement(full: FullReply, logits_NV: torch.Tensor) -> torch.Tensor:
    """Whether each row's best token is that of full recompute.

    Where all are, the greedy reply is full recompute's, and need not be run.
    """
    return logits_NV.argmax(-1) == full.forced.logits_NV.argmax(-1)


def compared(
    subject: Subject,
    name: str,
    full: FullReply,
    logits_NV: torch.Tensor,
    said: tuple[int, ...],
    *,
    prompt_tokens: int,
    live_tokens: int,
    num_entries: int = -1,
) -> Row:
    """What an arm said, and its distributions along full recompute's reply, as a row."""
    text, wanted = subject.tokenizer.decode(said), full.case.answer
    kl = divergence_rows(full.forced.logits_NV, logits_NV)
    return Row(
        name,
        full.number,
        full.case.stratum,
        full.case.world,
        len(full.case.documents),
        exact_match(text, wanted),
        token_f1(text, wanted),
        rouge_l(text, wanted),
        float(kl.mean()),
        float(kl.max()),
        float(agreement(full, logits_NV).double().mean()),
        said == full.token_ids,
        prompt_tokens,
        live_tokens,
        num_entries,
    )


def usable(arm: Arm, case: Case) -> bool:
    """Whether the arm means anything for the case."""
    return not arm.needs_gold or (bool(case.gold) and len(case.gold) < len(case.documents))


def full_row(subject: Subject, full: FullReply) -> Row:
    """Full recompute beside itself."""
    tokens = full.forced.report.prompt_tokens - len(full.token_ids)
    logits = full.forced.logits_NV
    return compared(
        subject, FULL, full, logits, full.token_ids, prompt_tokens=tokens, live_tokens=tokens
    )
