"""Examples to token lists, piece by piece, and token lists to packed batches.

A piece is a stretch of template text or one caller's text. Template pieces parse added tokens;
caller pieces go through a second tokenizer from which every added token is removed. The token list
is the concatenation of the pieces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from hypic_sdk.demo.questions import Example

HEAD_TOKENS = 8  # recomputed in place at the start of every document
MIN_SEGMENT_TOKENS = 64  # a shorter document is live as a whole
ARRAYS = ("tokens", "targets", "target_class", "position", "stretch", "stretch_position")
LM, ANSWER = 1, 2  # classes of target tokens


class PieceTokenizer:
    """Tokenises template pieces and caller pieces."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text()
        self._template = Tokenizer.from_str(text)
        bare = json.loads(text)
        bare["added_tokens"] = []
        self._caller = Tokenizer.from_str(json.dumps(bare))

    def template(self, text: str) -> list[int]:
        """Tokenise template text; added tokens are parsed."""
        return list(self._template.encode(text, add_special_tokens=False).ids)

    def callers(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenise callers' texts, each a piece of its own; none can make an added token."""
        encoded = self._caller.encode_batch(list(texts), add_special_tokens=False)
        return [list(one.ids) for one in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, added tokens left out."""
        return str(self._template.decode(list(ids), skip_special_tokens=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """Where one answer stands in an encoded prompt."""

    start: int  # index of its first token
    stop: int  # one past its end-of-message token
    kind: str
    gold_place: int  # index of the last gold document, -1 without one
    known_words: bool = True  # as in the question


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of one example. All arrays are as long as the prompt."""

    tokens: np.ndarray
    documents: np.ndarray  # index of the document a token belongs to, or -1
    offsets: np.ndarray  # offset within its document
    targets: np.ndarray  # class of the token as a target: 0, LM or ANSWER
    answers: tuple[Answer, ...]
    num_documents: int

    def __len__(self) -> int:
        return len(self.tokens)


class PromptEncoder:
    """Lays examples out as prompts of the chat template."""

    def __init__(self, tokenizer: PieceTokenizer) -> None:
        self.tokenizer = tokenizer
        self._system = tokenizer.template("<|im_start|>system\n")
        self._user = tokenizer.template("<|im_start|>user\n")
        self._assistant = tokenizer.template("<|im_start|>assistant\n")
        self._end = tokenizer.template("<|im_end|>")
        self._end_line = tokenizer.template("<|im_end|>\n")
        self._after_end = self._end_line[len(self._end) :]

    def encode(self, example: Example) -> Encoded:
        """Tokenise one example with all its questions as turns of one chat."""
        texts = [example.system or "", *example.documents, *example.glue]
        texts += [text for q in example.questions for text in (q.text, q.answer)]
        ids = self.tokenizer.callers(texts)
        num_documents = len(example.documents)
        system, documents = ids[0], ids[1 : 1 + num_documents]
        glue = ids[1 + num_documents : 1 + 2 * num_documents]
        turns = ids[1 + 2 * num_documents :]
        parts: list[tuple[list[int], int, int]] = []  # tokens, document, target class
        if example.system is not None:
            parts.append((self._system + system + self._end_line, -1, 0))
        parts.append((self._user, -1, 0))
        for index, (document, joiner) in enumerate(zip(documents, glue, strict=True)):
            parts += [(document, index, LM), (joiner, -1, 0)]
        answers = []
        at = sum(len(part[0]) for part in parts)
        for index, question in enumerate(example.questions):
            before = self._user if index else []
            asked, said = turns[2 * index], turns[2 * index + 1]
            lead = [(before, -1, 0), (asked, -1, LM), (self._end_line + self._assistant, -1, 0)]
            start = at + sum(len(part[0]) for part in lead)
            stop = start + len(said) + len(self._end)
            place = question.gold[-1] if question.gold else -1
            answers.append(Answer(start, stop, question.kind, place, question.known_words))
            parts += [*lead, (said + self._end, -1, ANSWER), (self._after_end, -1, 0)]
            at = stop + len(self._after_end)
        return self._assemble(parts, tuple(answers), num_documents)

    @staticmethod
    def _assemble(
        parts: Sequence[tuple[list[int], int, int]], answers: tuple[Answer, ...], num_documents: int
    ) -> Encoded:
        lengths = [len(part[0]) for part in parts]
        return Encoded(
            tokens=np.array([token for part in parts for token in part[0]], np.int32),
            documents=np.repeat(np.array([part[1] for part in parts], np.int32), lengths),
            offsets=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
            targets=np.repeat(np.array([part[2] for part in parts], np.int32), lengths),
            answers=answers,
            num_documents=num_documents,
        )


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """An answer in a packed batch: targets [start, stop) of a row, one earlier than its tokens."""

    row: int
    start: int
    stop: int
    kind: str
    num_documents: int
    gold_place: int
    known_words: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of packed examples; arrays are [rows, length]."""

    tokens: np.ndarray  # int32
    targets: np.ndarray  # int32, the next token
    target_class: np.ndarray  # int32: 0, LM or ANSWER
    example: np.ndarray  # int32, example within the row; -1 is padding
    position: np.ndarray  # int32, within the example
    stretch: np.ndarray  # int32, number of the document or live stretch within the row
    stretch_position: np.ndarray  # int32, within that stretch
    interior: np.ndarray  # bool, kept by an isolated prefill
    hidden: (
        np.ndarray
    )  # bool, interior keys hidden in training, so that the state must carry the facts
    answers: tuple[PackedAnswer, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and their length."""
        rows, length = self.tokens.shape
        return rows, length


def interior_mask(
    encoded: Encoded, head: int = HEAD_TOKENS, least: int = MIN_SEGMENT_TOKENS
) -> np.ndarray:
    """Mark the tokens that an isolated prefill keeps: all but heads and short documents."""
    counts = np.bincount(encoded.documents + 1, minlength=encoded.num_documents + 1)
    long_enough = counts[encoded.documents + 1] >= least
    return (encoded.documents >= 0) & (encoded.offsets >= head) & long_enough


@dataclass(frozen=True, slots=True)
class Hiding:
    """How often training hides the keys of whole documents, so that the state must carry them."""

    prompts: float = 0.3  # share of prompts in which some documents are hidden
    documents: float = 0.6  # share of the documents of such a prompt
    most_tokens: int = 480  # of a prompt that are hidden


def hidden_documents(
    one: Encoded, kept: np.ndarray, rng: random.Random, hiding: Hiding
) -> np.ndarray:
    """Mark whole documents whose kept keys are hidden, as many as the state may have to carry."""
    hidden = np.zeros(len(one), bool)
    room = hiding.most_tokens
    for index in rng.sample(range(one.num_documents), one.num_documents):
        own = (one.documents == index) & kept
        if rng.random() < hiding.documents and own.sum() <= room:
            hidden |= own
            room -= int(own.sum())
    return hidden


def stretches(one: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Return, token by token, which document or live stretch it is of, and its place within."""
    starts = np.flatnonzero(np.diff(one.documents, prepend=-2) != 0)
    lengths = np.diff(np.append(starts, len(one)))
    return np.repeat(np.arange(len(starts)), lengths), np.arange(len(one)) - np.repeat(
        starts, lengths
    )


def pack(
    rows: Sequence[Sequence[Encoded]],
    length: int,
    rng: random.Random | None = None,
    hiding: Hiding | None = None,
) -> Batch:
    """Lay examples side by side in rows of one length; `rng` picks those whose keys are hidden."""
    hiding = hiding or Hiding()
    shape = (len(rows), length)
    arrays = {name: np.zeros(shape, np.int32) for name in ARRAYS}
    example = np.full(shape, -1, np.int32)
    interior, hidden = np.zeros(shape, bool), np.zeros(shape, bool)
    answers: list[PackedAnswer] = []
    for row, members in enumerate(rows):
        at = 0
        num_stretches = 0
        for index, one in enumerate(members):
            here = slice(at, at + len(one))
            arrays["tokens"][row, here] = one.tokens
            arrays["targets"][row, at : at + len(one) - 1] = one.tokens[1:]
            arrays["target_class"][row, at : at + len(one) - 1] = one.targets[1:]
            arrays["position"][row, here] = np.arange(len(one))
            example[row, here] = index
            interior[row, here] = kept = interior_mask(one)
            if rng is not None and rng.random() < hiding.prompts:
                hidden[row, here] = kept & hidden_documents(one, kept, rng, hiding)
            numbers, positions = stretches(one)
            arrays["stretch"][row, here] = num_stretches + numbers
            arrays["stretch_position"][row, here] = positions
            num_stretches += int(numbers[-1]) + 1
            for a in one.answers:
                where = (row, at + a.start - 1, at + a.stop - 1)
                answers.append(
                    PackedAnswer(*where, a.kind, one.num_documents, a.gold_place, a.known_words)
                )
            at += len(one)
        arrays["stretch"][row, at:] = num_stretches
    return Batch(
        **arrays, example=example, interior=interior, hidden=hidden, answers=tuple(answers)
    )


def pack_stream(
    examples: Iterator[Encoded],
    rows: int,
    length: int,
    rng: random.Random | None = None,
    hiding: Hiding | None = None,
) -> Iterator[Batch]:
    """Fill batches from a stream of examples, first fit; too long examples are skipped."""
    open_rows: list[list[Encoded]] = [[] for _ in range(rows)]
    room = [length] * rows
    waiting: list[Encoded] = []
    for one in examples:
        if len(one) > length:
            continue
        fitting = [i for i in range(rows) if room[i] >= len(one)]
        if fitting:
            tightest = min(fitting, key=lambda i: room[i])
            open_rows[tightest].append(one)
            room[tightest] -= len(one)
            continue
        waiting.append(one)
        if len(waiting) >= min(4, rows) or sum(room) < 0.03 * rows * length:
            yield pack(open_rows, length, rng, hiding)
            open_rows = [[late] for late in waiting] + [[] for _ in range(rows - len(waiting))]
            room = [length - sum(len(held) for held in row) for row in open_rows]
            waiting = []
    open_rows += [[late] for late in waiting]
    if any(open_rows):
        yield pack([row for row in open_rows if row], length, rng, hiding)
