"""Batches for training, made by worker processes. No torch here."""

from __future__ import annotations

import json
import math
import multiprocessing as mp
import queue
import random
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic_sdk.config import keep_tokenizers_serial
from hypic_sdk.demo.naming import Lexicon
from hypic_sdk.demo.prompts import (
    Batch,
    Encoded,
    Hiding,
    PieceTokenizer,
    PromptEncoder,
    pack_stream,
)
from hypic_sdk.demo.questions import NOT_SAID, Example, Question, make_example
from hypic_sdk.demo.worlds import MIXES, Mix, WorldSpec

DOCUMENT_COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
QUESTION_TOKENS = 26  # a question with its answer and template, about
TOKENS_PER_QUESTION = (40, 48, 60, 90, 160)  # of a prompt; few, so that most statements are asked
MAX_QUESTIONS = 40
TOKENS_PER_WORD_SENTENCE = 1.25  # real tokens over the generator's estimate


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the growth of lengths and worlds."""

    until: float  # share of the training time
    rows: int
    length: int
    max_documents: int
    shortest: int = 90  # tokens of a prompt, about


def stages(
    tokens_per_step: int, longest: int = 4096, *, is_grown: bool = False
) -> tuple[Stage, ...]:
    """Return the growth used for the shipped reader: short prompts have most facts a second.

    Args:
        is_grown: training goes on from weights that know short prompts: long ones from the start.
    """
    growth = [(0.15, 512, 4), (0.52, 1024, 8), (0.87, 2048, 16), (1.0, longest, 16)]
    plan = [(0.4, 2048, 16), (1.0, longest, 16)] if is_grown else growth
    return tuple(
        Stage(until, max(1, tokens_per_step // length), length, documents, 300 if is_grown else 90)
        for until, length, documents in plan
    )


def make_lexicon(tokenizer: Path, prose: Sequence[str]) -> Lexicon:
    """Take pieces of names from the vocabulary, so that every token is learned as one to copy."""
    vocabulary = json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) < 10]
    starts = [word.capitalize() for word in words if word.istitle() or len(word) == 1]
    middles = [word for word in words if word.islower()]
    return Lexicon(tuple(prose), tuple(starts), tuple(middles))


def draw_spec(rng: random.Random, stage: Stage, mix: Mix = MIXES["reader"]) -> WorldSpec:
    """Draw the shape of one world; its prompt is mostly within the stage's length."""
    wanted = math.exp(rng.uniform(math.log(stage.shortest), math.log(0.97 * stage.length)))
    counts = [n for n in DOCUMENT_COUNTS if n <= stage.max_documents and n * 24 <= wanted]
    num_documents = rng.choice(counts or [1])
    asked_every = rng.choice(TOKENS_PER_QUESTION)
    num_questions = max(1, min(MAX_QUESTIONS, round(wanted / asked_every)))
    room = wanted - 20 - QUESTION_TOKENS * num_questions
    per_document = max(18.0, min(512.0, room / num_documents / TOKENS_PER_WORD_SENTENCE))
    return WorldSpec(
        num_documents=num_documents,
        document_tokens=round(per_document),
        num_questions=num_questions,
        part="wide",
        filler_share=rng.choice((0.0, 0.1, 0.25, 0.4)),
        updates=rng.choice(mix.updates) if wanted > 150 else rng.choice((0, 0, 0, 1)),
        events=rng.choice(mix.events),
        resets=rng.random() < 0.5,
        switches=rng.choice(mix.switches),
        # a mix without cuts draws as it always did
        cuts=rng.choice(mix.cuts) if any(mix.cuts) else 0,
        mix=mix,
    )


def without_documents(example: Example) -> Example:
    """Drop the documents; nothing can be answered then."""
    first = example.questions[0]
    asked = Question(first.text, NOT_SAID, "not_said", first.relation)
    return Example(example.system, (), (), (asked,))


def examples(
    encoder: PromptEncoder, stage: Stage, seed: int, lexicon: Lexicon, mix: Mix
) -> Iterator[Encoded]:
    """Yield training examples of a stage without end."""
    rng = random.Random(seed)
    while True:
        example = make_example(draw_spec(rng, stage, mix), rng.getrandbits(60), lexicon)
        if rng.random() < 0.01:
            example = without_documents(example)
        yield encoder.encode(example)


def _work(
    folder: str,
    plan: Sequence[Stage],
    lexicon: Lexicon,
    hiding: Hiding,
    mix: Mix,
    seed: int,
    current: Any,
    out: Any,
) -> None:
    """Fill the queue with batches of the current stage, until ended."""
    keep_tokenizers_serial()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    encoder = PromptEncoder(PieceTokenizer(Path(folder)))
    number = current.value
    rng = random.Random(seed + 1)
    while True:
        stage = plan[number]
        stream = examples(encoder, stage, seed + 7919 * number, lexicon, mix)
        for batch in pack_stream(stream, stage.rows, stage.length, rng, hiding):
            out.put((number, batch))
            if current.value != number:
                number = current.value
                break


class BatchSource:
    """Worker processes and the queue they fill. Use as a context manager."""

    def __init__(
        self,
        folder: Path,
        plan: Sequence[Stage],
        lexicon: Lexicon,
        hiding: Hiding,
        mix: Mix,
        workers: int,
        seed: int,
    ) -> None:
        context = mp.get_context("fork")
        self._current = context.Value("i", 0)
        self._queue: Any = context.Queue(maxsize=2 * workers)
        self._processes = [
            context.Process(
                target=_work,
                args=(
                    str(folder),
                    plan,
                    lexicon,
                    hiding,
                    mix,
                    seed + 100_003 * i,
                    self._current,
                    self._queue,
                ),
                daemon=True,
            )
            for i in range(workers)
        ]
        self.waits = 0

    def __enter__(self) -> BatchSource:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *unused: object) -> None:
        for process in self._processes:
            process.kill()

    def next(self, stage: int) -> Batch:
        """Return the next batch of a stage, dropping those of earlier stages."""
        self._current.value = stage
        while True:
            try:
                number, batch = self._queue.get_nowait()
            except queue.Empty:
                self.waits += 1
                number, batch = self._queue.get()
            if number == stage:
                assert isinstance(batch, Batch)
                return batch
