"""One call of a tool as it grows: its name as soon as it is sure, its arguments as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, final

from hypic_sdk.prompt.tool_calls import (
    CLOSE,
    CallArguments,
    CallBegun,
    as_json,
    is_name,
    is_text,
    parameters_of,
    parse_call,
    types_of,
    value_of,
)

CallPiece = CallBegun | CallArguments

_OPEN_FUNCTION, _CLOSE_FUNCTION = "<function=", "</function>"
_OPEN_PARAMETER, _CLOSE_PARAMETER = "<parameter=", "</parameter>"
_TAGS_BEGIN = re.compile(
    rf"\s*{_OPEN_FUNCTION}([^<>\n]+)>(?=\s*(?:{_OPEN_PARAMETER}[^<>\n]+>|{_CLOSE_FUNCTION}))"
)
_PARAMETER = re.compile(rf"{_OPEN_PARAMETER}([^<>\n]+)>")
# the usual order; whatever stands in another one is read once it is whole
_JSON_BEGINS = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_WHITE = " \t\r\n"


class _State(Enum):
    OPEN = "open"  # it may be a call, or none
    ARGUMENTS = "arguments"  # JSON: within the object of the arguments
    OUTSIDE = "outside"  # JSON: behind it, within the call's own object
    PARAMETERS = "parameters"  # tags: a parameter, or the end, comes next
    VALUE = "value"  # tags: within a parameter
    TAIL = "tail"  # the closing tag comes next, or is missing
    CALL = "call"  # it is over
    NONE = "none"  # it is none


@final
class CallReader:
    """Feeds on the text behind an opening tag; says the same however that is cut.

    A call has begun once its name stands there and its arguments begin: that is not taken back.
    What breaks off then leaves arguments that are no whole JSON, so that nobody takes them for
    what was meant.  What never comes so far is none, and stays in `left`, with its closing tag.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """`tools`: the schemas that were shown; they say what a parameter in tags is."""
        self._tools = tools
        self._state = _State.OPEN
        self._searched = 0  # no closing tag that counts begins before
        self._depth = 0  # JSON: of the object that is read
        self._in_text = self._is_escaped = False
        self._schema: Mapping[str, Any] = {}
        self._types: frozenset[str] = frozenset()
        self._num_parameters = 0
        self._has_value_begun = False
        self.left = ""  # not read yet; in the end what stands behind the call, or was none

    @property
    def has_begun(self) -> bool:
        """Whether it is a call, though maybe not over."""
        return self._state not in (_State.OPEN, _State.NONE)

    @property
    def is_over(self) -> bool:
        """Whether nothing more belongs to it."""
        return self._state in (_State.CALL, _State.NONE)

    def read(self, text: str, *, at_end: bool) -> list[CallPiece]:
        """Take more text; what is sure now.  `at_end`: nothing follows."""
        self.left += text
        pieces: list[CallPiece] = []
        before: tuple[_State, int] | None = None
        while not self.is_over and before != (self._state, len(self.left)):
            before = (self._state, len(self.left))
            pieces += self._step(at_end=at_end)
        if at_end and not self.is_over:
            self._state = _State.CALL if self.has_begun else _State.NONE
        return [one for one in pieces if isinstance(one, CallBegun) or one.text]

    def split(self) -> tuple[str, str, str]:
        """Of what is none: what stands before the closing tag, that tag if it came, the rest."""
        stop = self.left.find(CLOSE, self._searched)
        if stop < 0:
            return self.left, "", ""
        return self.left[:stop], CLOSE, self.left[stop + len(CLOSE) :]

    def _step(self, *, at_end: bool) -> Iterator[CallPiece]:
        if self._state is _State.OPEN:
            yield from self._open(at_end=at_end)
        elif self._state in (_State.ARGUMENTS, _State.OUTSIDE):
            yield from self._json(at_end=at_end)
        elif self._state is _State.PARAMETERS:
            yield from self._parameters()
        elif self._state is _State.VALUE:
            yield from self._value(at_end=at_end)
        else:
            self._tail(at_end=at_end)

    def _open(self, *, at_end: bool) -> Iterator[CallPiece]:
        if self.left.lstrip().startswith(_OPEN_FUNCTION):
            yield from self._open_tags()
            return
        begins = _JSON_BEGINS.match(self.left)
        name = None if begins is None else _loaded(begins.group(1))
        if begins is not None and name is not None and is_name(name):
            yield CallBegun(name)
            self.left, self._state = self.left[begins.end() :], _State.ARGUMENTS
            return
        while (stop := self.left.find(CLOSE, self._searched)) >= 0:
            body = self.left[:stop]
            if not _is_within_text(body):
                yield from self._whole(body, stop + len(CLOSE))
                return
            self._searched = stop + 1
        if at_end:
            # models leave the last tag out, and some templates end the reply with it
            yield from self._whole(self.left, len(self.left))

    def _whole(self, body: str, end: int) -> Iterator[CallPiece]:
        call = parse_call(body)
        self._state = _State.NONE
        if call is not None:
            yield CallBegun(call.name)
            yield CallArguments(call.arguments)
            self.left, self._state = self.left[end:], _State.CALL

    def _open_tags(self) -> Iterator[CallPiece]:
        begins = _TAGS_BEGIN.match(self.left)
        name = "" if begins is None else begins.group(1).strip()
        if begins is not None and is_name(name):
            yield CallBegun(name)
            self._schema = parameters_of(self._tools, name)
            self.left, self._state = self.left[begins.end() :], _State.PARAMETERS
        elif begins is not None or CLOSE in self.left:
            self._state = _State.NONE

    # -- JSON

    def _json(self, *, at_end: bool) -> Iterator[CallPiece]:
        """Find the end of the object; of the arguments every character is sure."""
        begin = place = 0
        while place < len(self.left):
            character = self.left[place]
            if character == "<" and not self._in_text:
                rest = self.left[place:]
                if rest.startswith(CLOSE) or (CLOSE.startswith(rest) and not at_end):
                    break  # outside of texts that is no JSON: the call ends here, whole or not
            place += 1
            if self._closes(character):
                if self._state is _State.ARGUMENTS:
                    yield CallArguments(self.left[begin:place])
                    self._state, self._depth, begin = _State.OUTSIDE, 1, place
                else:
                    self.left, self._state = self.left[place:], _State.TAIL
                    return
        if self._state is _State.ARGUMENTS:
            yield CallArguments(self.left[begin:place])
        self.left = self.left[place:]
        if self.left.startswith(CLOSE):
            self._state = _State.TAIL

    def _closes(self, character: str) -> bool:
        """Whether the object that is read ends with this character."""
        if self._in_text:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_text = False
            return False
        if character == '"':
            self._in_text = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return self._depth == 0
        return False

    # -- tags

    def _parameters(self) -> Iterator[CallPiece]:
        bare = self.left.lstrip(_WHITE)
        opening = _PARAMETER.match(bare)
        if bare.startswith(_CLOSE_FUNCTION):
            yield CallArguments("}" if self._num_parameters else "{}")
            self.left, self._state = bare.removeprefix(_CLOSE_FUNCTION), _State.TAIL
        elif opening is not None:
            key = opening.group(1).strip()
            self._types = types_of(self._schema, key)
            quote = '"' if is_text(self._types) else ""
            yield CallArguments(f"{', ' if self._num_parameters else '{'}{as_json(key)}: {quote}")
            self.left, self._state = bare[opening.end() :], _State.VALUE
            self._num_parameters += 1
            self._has_value_begun = False
        elif not _may_become_tag(bare):
            self._state = _State.TAIL  # broken off

    def _value(self, *, at_end: bool) -> Iterator[CallPiece]:
        text, tag, rest = self.left.partition(_CLOSE_PARAMETER)
        if not is_text(self._types):
            if tag:
                yield CallArguments(as_json(value_of(_without_frame(text), self._types)))
                self.left, self._state = rest, _State.PARAMETERS
            elif at_end:
                self.left = ""
            return
        if not self._has_value_begun and self.left:
            # line breaks set a value apart from its tags
            text, self.left = text.removeprefix("\n"), self.left.removeprefix("\n")
            self._has_value_begun = True
        if tag:
            yield CallArguments(_escaped(text.removesuffix("\n")) + '"')
            self.left, self._state = rest, _State.PARAMETERS
            return
        sure = len(text) if at_end else _sure(text)
        yield CallArguments(_escaped(text[:sure]))
        self.left = text[sure:]

    # -- the end

    def _tail(self, *, at_end: bool) -> None:
        bare = self.left.lstrip(_WHITE)
        if bare.startswith(CLOSE):
            self.left, self._state = bare.removeprefix(CLOSE), _State.CALL
        elif not CLOSE.startswith(bare):
            self._state = _State.CALL
        elif at_end:
            self.left, self._state = "", _State.CALL


def _loaded(text: str) -> str | None:
    """The text that JSON says; none if it says it wrongly."""
    try:
        loaded = json.loads(text)
    except ValueError:
        return None
    return loaded if isinstance(loaded, str) else None


def _is_within_text(body: str) -> bool:
    """Whether a closing tag behind `body` may stand within a text of an unfinished call."""
    try:
        json.loads(body)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


def _may_become_tag(text: str) -> bool:
    tags = (_OPEN_PARAMETER, _CLOSE_FUNCTION)
    if any(tag.startswith(text) for tag in tags):
        return True
    return text.startswith(_OPEN_PARAMETER) and not set("<>\n") & set(text[1:])


def _without_frame(text: str) -> str:
    return text.removeprefix("\n").removesuffix("\n")


def _escaped(text: str) -> str:
    """As it stands between the quotes of JSON."""
    return as_json(text)[1:-1]


def _sure(text: str) -> int:
    """How much of a value is neither a beginning of its closing tag nor the line break before."""
    sizes = range(min(len(_CLOSE_PARAMETER) - 1, len(text)), 0, -1)
    begun = next((size for size in sizes if _CLOSE_PARAMETER.startswith(text[-size:])), 0)
    end = len(text) - begun
    return end - 1 if text[:end].endswith("\n") else end
