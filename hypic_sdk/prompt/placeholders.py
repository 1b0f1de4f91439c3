"""Stand-ins for callers' texts while a chat template runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

from hypic_sdk.errors import ModelFileError, RequestError
from hypic_sdk.prompt.pieces import CallerText, Piece, TemplateText

_PLAIN_PLANE, _JSON_PLANE = 0xF0000, 0x100000
_PRIVATE_USE = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_NUM_PRIVATE = 0xFFF0  # the last few of a plane are left for other marks


def private_use(text: str) -> set[str]:
    """The private-use characters in a text that is rendered as it is."""
    return set(_PRIVATE_USE.findall(text))


@dataclass(frozen=True, slots=True)
class _Slot:
    text: CallerText
    required: bool  # the template must show it; others it may drop, as templates do with reasoning
    where: str  # for errors: "message 3 (tool)"


@final
class Placeholders:
    """One private-use character for each caller's text of one rendering.

    A single character can not be cut, trimmed or sliced in two, it is no white space and it starts
    no tag: whatever a template does, the character is there once, or it is missing, or doubled, and
    the last two are found.  Each text has a second character, put in its place by `tojson`: its
    text then stands within JSON quotes and is escaped.
    """

    def __init__(self, taken: set[str]) -> None:
        """`taken`: private-use characters that the rendering may show as they are."""
        self._free = self._free_numbers(taken)
        self._slots: dict[str, tuple[int, bool]] = {}  # character -> slot, within JSON
        self._texts: list[_Slot] = []
        self._json_forms: dict[int, str] = {}

    @staticmethod
    def _free_numbers(taken: set[str]) -> Iterator[int]:
        return (
            number
            for number in range(_NUM_PRIVATE)
            if chr(_PLAIN_PLANE + number) not in taken and chr(_JSON_PLANE + number) not in taken
        )

    @property
    def json_forms(self) -> Mapping[int, str]:
        """What `tojson` puts for each placeholder (a table for `str.translate`)."""
        return self._json_forms

    def add(self, text: CallerText, *, required: bool, where: str) -> str:
        """The character that stands for a text; nothing for an empty one."""
        if not text.text:
            return ""
        number = next(self._free, None)
        if number is None:
            raise RequestError(
                f"a prompt can hold {_NUM_PRIVATE} texts at most", limit_texts=_NUM_PRIVATE
            )
        plain, within_json = chr(_PLAIN_PLANE + number), chr(_JSON_PLANE + number)
        self._slots[plain] = (len(self._texts), False)
        self._slots[within_json] = (len(self._texts), True)
        self._json_forms[ord(plain)] = within_json
        self._texts.append(_Slot(text, required, where))
        return plain

    def cut(self, rendered: str) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
        """The pieces of a rendered text, and where each starts in it.

        Raises:
            RequestError: a text that must be shown is not.
            ModelFileError: a text is shown twice, or the texts of a message in another order.
        """
        pieces: list[Piece] = []
        starts: list[int] = []
        shown: list[int] = []
        position = 0
        for match in _PRIVATE_USE.finditer(rendered):
            if match.group() not in self._slots:
                continue
            if match.start() > position:
                pieces.append(TemplateText(rendered[position : match.start()]))
                starts.append(position)
            index, within_json = self._slots[match.group()]
            text = self._texts[index].text
            pieces.append(_as_json(text) if within_json else text)
            starts.append(match.start())
            shown.append(index)
            position = match.end()
        if position < len(rendered):
            pieces.append(TemplateText(rendered[position:]))
            starts.append(position)
        self._check(shown)
        return tuple(pieces), tuple(starts)

    def _check(self, shown: Sequence[int]) -> None:
        counts = Counter(shown)
        for index, slot in enumerate(self._texts):
            if not counts[index] and slot.required:
                raise RequestError(
                    f"{slot.where}: the chat template of this model does not show its text",
                    message_index=slot.text.message_index,
                )
            if counts[index] > 1:
                raise ModelFileError(
                    f"{slot.where}: the chat template shows its text {counts[index]} times",
                    message_index=slot.text.message_index,
                )
        last_of_message: dict[str, int] = {}
        for index in shown:
            slot = self._texts[index]
            if slot.required and last_of_message.get(slot.where, -1) > index:
                raise ModelFileError(
                    f"{slot.where}: the chat template shows its texts in another order",
                    message_index=slot.text.message_index,
                )
            if slot.required:
                last_of_message[slot.where] = index


def _as_json(text: CallerText) -> CallerText:
    """A plain text as it stands within JSON quotes; a segment keeps its exact text."""
    escaped = json.dumps(text.text, ensure_ascii=False)[1:-1]
    if text.segment_id is not None or escaped == text.text:
        return text
    return replace(text, text=escaped, token_ids=None)
