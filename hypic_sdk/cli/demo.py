"""`hypic demo`: documents cached once, asked about in several orders, beside full recompute."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.prompt import Prompt
from rich.rule import Rule
from rich.table import Table

from hypic_sdk.cli import picture
from hypic_sdk.cli.opening import open_local, warm
from hypic_sdk.config import EngineConfig
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import HypicError
from hypic_sdk.wire.replies import ChatCompletion
from hypic_sdk.wire.report import CacheReport
from hypic_sdk.wire.segments import SegmentObject

if TYPE_CHECKING:
    from rich.console import Console

    from hypic_sdk.offline import LocalHypic

NUM_SHOWN_QUESTIONS = 3
ORDER_SEED = 7

INTRODUCTION = """\
hypic demo: a small trained model, shipped inside this package, reads documents of an \
invented town. Each document is cached once, alone. Afterwards every question starts from the \
cached documents, in whatever order they stand: nothing but the seams, the glue and the question \
goes through the model. "full recompute" is the same engine with reuse off."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """The documents of the demo, as they are registered."""

    titles: tuple[str, ...]
    segments: tuple[SegmentObject, ...]

    def shuffled(self, rng: random.Random) -> Shelf:
        """The same documents in another order."""
        order = rng.sample(range(len(self.titles)), len(self.titles))
        return Shelf(tuple(self.titles[i] for i in order), tuple(self.segments[i] for i in order))


def run_demo(console: Console, *, questions: tuple[str, ...], interactive: bool | None) -> None:
    """Load, cache the library, ask the library's questions (or these), then the visitor's own.

    Args:
        console: one that takes no markup: texts of documents and visitors are printed on it.
        interactive: whether to go on with a prompt; none: if this is a terminal and no question
            was given.
    """
    console.print(INTRODUCTION)
    if interactive is None:
        interactive = not questions and sys.stdin.isatty() and console.is_terminal
    with open_local(console, None, EngineConfig()) as local:
        shelf = fill_shelf(console, local)
        rng = random.Random(ORDER_SEED)
        for question, expected in questions_to_ask(questions):
            console.print(Rule())
            console.print(question, style="bold", end="")
            console.print(f"   (expected: {expected})" if expected else "")
            ask_in_two_orders(console, local, shelf, rng, question)
        show_what_can_be_asked(console)
        if interactive:
            converse(console, local, shelf, rng)


def fill_shelf(console: Console, local: LocalHypic) -> Shelf:
    """Register and cache the library; say what it took."""
    segments = local.segments.create_many(
        {"text": text, "title": title} for title, text in DOCUMENTS.items()
    )
    job = warm(console, local, segments)
    num_tokens = sum(segment.tokens for segment in segments)
    console.print(
        f"cached {len(segments)} documents, {num_tokens} tokens, in {job.cold_ms / 1000:.1f} s "
        "of computing: each alone, once, for every order to come"
    )
    return Shelf(tuple(DOCUMENTS), segments)


def questions_to_ask(given: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """The caller's questions, else the first of the library with their answers."""
    if given:
        yield from ((question, None) for question in given)
    else:
        yield from ((q.text, q.answer) for q in QUESTIONS[:NUM_SHOWN_QUESTIONS])


def ask(
    local: LocalHypic, question: str, segments: Sequence[SegmentObject], *, mode: str = "pic"
) -> ChatCompletion:
    """One question over documents in this order."""
    return local.chat.completions.create(
        messages=[{"role": "user", "content": question}],
        documents=segments,
        max_tokens=48,
        hypic={"mode": mode},
    )


def ask_in_two_orders(
    console: Console, local: LocalHypic, shelf: Shelf, rng: random.Random, question: str
) -> None:
    """The same question before and after reordering, with full recompute beside both."""
    for label, order in (("first order", shelf.shuffled(rng)), ("reordered", shelf.shuffled(rng))):
        reply = ask(local, question, order.segments)
        full = ask(local, question, order.segments, mode="off")
        assert reply.cache is not None
        assert full.cache is not None
        console.print(f"\n{label}: " + ", ".join(order.titles), style="dim")
        console.print(picture.bar(reply.cache, console.width - 2))
        console.print(picture.summary(reply.cache), highlight=False)
        show_comparison(console, reply, full)
    console.print(picture.legend())


def show_comparison(console: Console, reply: ChatCompletion, full: ChatCompletion) -> None:
    """Answers and times of both arms, and their ratio."""
    table = Table(
        "arm", "answer", "tokens through the model", "first token", box=None, pad_edge=False
    )
    arms = (("from segments", reply), ("full recompute", full))
    for name, arm in arms:
        report = required_report(arm)
        computed = report.live_tokens + report.cold_tokens
        answer = arm.choices[0].message.content
        table.add_row(name, answer, str(computed), f"{report.timing_ms.ttft:.0f} ms")
    console.print(table)
    ratio = required_report(full).timing_ms.ttft / required_report(reply).timing_ms.ttft
    console.print(f"from segments is {ratio:.1f}x as fast to the first token", highlight=False)


def required_report(reply: ChatCompletion) -> CacheReport:
    """The reply's report; the demo always asks for one."""
    assert reply.cache is not None
    return reply.cache


def show_what_can_be_asked(console: Console) -> None:
    """Example sentences and questions of the relations the model was trained on."""
    from hypic_sdk.demo.relations import RELATIONS

    table = Table(
        "it reads sentences like", "and answers questions like", title="What can be asked"
    )
    for relation in RELATIONS.values():
        table.add_row(relation.example_statement, relation.example_question)
    console.print(table)


def show_untaught_words(console: Console, question: str) -> None:
    """Name what the model was never taught: it can only guess at such words."""
    from hypic_sdk.demo.relations import untaught_words

    words = untaught_words(question)
    if words:
        console.print(f"the model was never taught: {', '.join(words)}", style="yellow")


def converse(console: Console, local: LocalHypic, shelf: Shelf, rng: random.Random) -> None:
    """Questions, and new documents, until the visitor has enough."""
    console.print(
        "Ask about the documents, or write a document of your own as: + some sentences. "
        "An empty line ends the demo."
    )
    while True:
        try:
            line = Prompt.ask("[bold]>[/bold]", console=console, default="", show_default=False)
        except (EOFError, KeyboardInterrupt):
            return
        if not line.strip():
            return
        try:
            if line.startswith("+"):
                shelf = with_document(console, local, shelf, line[1:].strip())
            else:
                show_untaught_words(console, line)
                ask_in_two_orders(console, local, shelf, rng, line.strip())
        except HypicError as error:  # the visitor's next line is welcome all the same
            console.print(f"{error.code}: {error.message}", style="red")


def with_document(console: Console, local: LocalHypic, shelf: Shelf, text: str) -> Shelf:
    """The shelf with one more document, cached now."""
    if not text:
        return shelf
    title = f"yours {len(shelf.titles) - len(DOCUMENTS) + 1}"
    segments = local.segments.create_many([{"text": text, "title": title}])
    warm(console, local, segments)
    return Shelf((*shelf.titles, title), (*shelf.segments, *segments))
