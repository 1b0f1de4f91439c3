"""A reply's text sorted as it grows: reasoning, text for the caller, calls of tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

from hypic_sdk.prompt.call_reader import CallPiece, CallReader
from hypic_sdk.prompt.tool_calls import OPEN, CallArguments, CallBegun

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"

_BREAKS, _WHITE = "\n", " \t\r\n"  # what templates write around tags


@dataclass(frozen=True, slots=True)
class SaidText:
    """More text for the caller."""

    text: str


@dataclass(frozen=True, slots=True)
class SaidReasoning:
    """More of the reasoning."""

    text: str


Said = SaidText | SaidReasoning | CallPiece


@dataclass(frozen=True, slots=True)
class ReplyRules:
    """What to look for in a reply.

    `reasons`: the template knows reasoning.  `begins_reasoning`: the prompt has opened it already.
    `tools`: the schemas that were shown; none: no call is looked for.  `max_calls`: the calls
    behind so many are dropped.
    """

    reasons: bool = False
    begins_reasoning: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    max_calls: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a reply is nothing but text."""
        return not self.reasons and self.tools is None


PLAIN = ReplyRules()
"""A reply that is nothing but text."""


class _State(Enum):
    START = "start"  # nothing but white space yet: reasoning may begin
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@final
class ReplyReader:
    """Feeds on text deltas; what it hands out is the same however the text is cut.

    A call is handed out as it grows, from its name on.  What looks like one and never comes so far
    stays text, tags and all.  White space between the text and a call, and between calls, is
    dropped.
    """

    def __init__(self, rules: ReplyRules) -> None:
        self._rules = rules
        self._held = ""
        self._state = _State.TEXT
        if rules.reasons:
            self._state = _State.REASONING if rules.begins_reasoning else _State.START
        # characters that are not handed out while they stand in front
        self._trims = _BREAKS if rules.begins_reasoning else ""
        self._dropped = ""  # white space between the last text and the call that is being read
        self._call = CallReader(())
        self._num_calls = 0

    def push(self, text: str) -> list[Said]:
        """Take more text; what is sure now."""
        if self._rules.is_plain:
            return [SaidText(text)] if text else []
        self._held += text
        return self._joined(self._read(at_end=False))

    def finish(self) -> list[Said]:
        """What was held back: the reply has ended."""
        return self._joined(self._read(at_end=True))

    def _read(self, *, at_end: bool) -> Iterator[Said]:
        before: tuple[_State, int] | None = None
        while before != (self._state, len(self._held)):
            before = (self._state, len(self._held))
            if self._state is _State.START:
                yield from self._start(at_end=at_end)
            elif self._state is _State.REASONING:
                yield from self._reasoning(at_end=at_end)
            elif self._state is _State.TEXT:
                yield from self._text(at_end=at_end)
            else:
                yield from self._read_call(at_end=at_end)

    def _start(self, *, at_end: bool) -> Iterator[Said]:
        bare = self._held.lstrip(_WHITE)
        if bare.startswith(OPEN_THINKING):
            self._held = bare.removeprefix(OPEN_THINKING)
            self._state, self._trims = _State.REASONING, _BREAKS
        elif at_end or not OPEN_THINKING.startswith(bare):
            self._state = _State.TEXT
        yield from ()

    def _reasoning(self, *, at_end: bool) -> Iterator[Said]:
        self._trim()
        reasoning, tag, rest = self._held.partition(CLOSE_THINKING)
        if tag:
            yield SaidReasoning(reasoning.rstrip(_BREAKS))
            self._held, self._state, self._trims = rest, _State.TEXT, _BREAKS
            return
        # line breaks before the closing tag are the template's
        sure = len(self._held) if at_end else _sure(self._held, CLOSE_THINKING, _BREAKS)
        yield SaidReasoning(self._held[:sure])
        self._held = self._held[sure:]

    def _text(self, *, at_end: bool) -> Iterator[Said]:
        self._trim()
        if self._rules.tools is None:
            yield SaidText(self._held)
            self._held = ""
            return
        text, tag, rest = self._held.partition(OPEN)
        if tag:
            bare = text.rstrip(_WHITE)
            yield SaidText(bare)
            self._begin_call(rest, text[len(bare) :])
            return
        if self._num_calls and at_end:
            self._held = self._held.rstrip(_WHITE)
        sure = len(self._held) if at_end else _sure(self._held, OPEN, _WHITE)
        yield SaidText(self._held[:sure])
        self._held = self._held[sure:]

    def _begin_call(self, rest: str, dropped: str) -> None:
        self._held, self._dropped, self._state = rest, dropped, _State.CALL
        self._call = CallReader(self._rules.tools or ())

    def _read_call(self, *, at_end: bool) -> Iterator[Said]:
        had_begun = self._call.has_begun
        pieces = self._call.read(self._held, at_end=at_end)
        self._held = ""
        self._num_calls += self._call.has_begun and not had_begun
        limit = self._rules.max_calls
        if limit is None or self._num_calls <= limit:
            yield from pieces
        if self._call.is_over:
            self._state, self._held = _State.TEXT, self._call.left
            if self._call.has_begun:
                self._trims = _WHITE
            else:
                yield from self._none()

    def _none(self) -> Iterator[Said]:
        """What was held is no call: it is text, up to the first closing tag if there is one."""
        body, close, rest = self._call.split()
        # a call may have begun anew inside of one that was broken off
        broken, tag, again = body.rpartition(OPEN) if close else (body, "", "")
        yield SaidText(self._dropped + OPEN + (broken if tag else body + close))
        self._held = rest
        if tag:
            self._begin_call(f"{again}{close}{rest}", "")

    def _trim(self) -> None:
        self._held = self._held.lstrip(self._trims)
        if self._held:
            self._trims = ""

    @staticmethod
    def _joined(said: Iterator[Said]) -> list[Said]:
        """Neighbouring texts in one, empty ones left out."""
        joined: list[Said] = []
        for one in said:
            last = joined[-1] if joined else None
            if isinstance(one, CallBegun):
                joined.append(one)
            elif isinstance(one, CallArguments) and isinstance(last, CallArguments):
                joined[-1] = CallArguments(last.text + one.text)
            elif isinstance(one, SaidText) and isinstance(last, SaidText):
                joined[-1] = SaidText(last.text + one.text)
            elif isinstance(one, SaidReasoning) and isinstance(last, SaidReasoning):
                joined[-1] = SaidReasoning(last.text + one.text)
            elif one.text:
                joined.append(one)
        return joined


def _sure(text: str, tag: str, white: str) -> int:
    """How much of a text is neither a beginning of `tag` nor white space before one."""
    sizes = range(min(len(tag) - 1, len(text)), 0, -1)
    begun = next((size for size in sizes if tag.startswith(text[-size:])), 0)
    return len(text[: len(text) - begun].rstrip(white))
