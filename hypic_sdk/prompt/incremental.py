"""Token ids to text as they come: only finished characters are handed out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """What the incremental decoder asks of a tokenizer."""

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def ends_in_byte(self, token_ids: Sequence[int]) -> bool: ...


@final
class IncrementalDecoder:
    """Text deltas whose concatenation is exactly `decode` of all ids together.

    A character may take several tokens.  Text is held back while it ends in a replacement character
    (an unfinished or broken UTF-8 sequence: the next token may finish it) or in a byte token whose
    whole run decodes as one.  A window of the last tokens is decoded, not the whole reply; it
    starts at a finished character, and holds one delta's tokens before the new ones, for decoders
    that write the first token of a text differently.
    """

    def __init__(self, tokenizer: Decoder) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_said = 0  # tokens at the front of the window whose text was handed out

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids; the text that they finish."""
        self._window.extend(token_ids)
        if self._tokenizer.ends_in_byte(self._window):
            return ""
        text = self._tokenizer.decode(self._window)
        return "" if text.endswith(_REPLACEMENT) else self._hand_out(text)

    def finish(self) -> str:
        """The text still held back, broken sequences as replacement characters."""
        return self._hand_out(self._tokenizer.decode(self._window))

    def _hand_out(self, text: str) -> str:
        said = self._tokenizer.decode(self._window[: self._num_said])
        delta = text[len(said) :]
        if delta:
            del self._window[: self._num_said]
        self._num_said = len(self._window)
        return delta
