"""A reply's text as it grows: incremental decoding, and an exact cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from hypic_sdk.prompt.incremental import Decoder, IncrementalDecoder


@final
class StopStrings:
    """Cuts text at the first stop string, however the text is cut into deltas.

    The stop string that is complete first ends the reply (of two that end together, the longer);
    it is not part of the text.  What could still become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._num_skipped = 0  # characters of the held text within which no stop string ends
        self.stopped = False

    def push(self, text: str, *, looks: bool = True) -> str:
        """Take more text; the part of it that is safe to hand out.  Nothing after a stop.

        Args:
            looks: whether a stop string may end in this text; one that begins in it always may.
        """
        if self.stopped:
            return ""
        self._held += text
        if not looks:
            self._num_skipped = len(self._held)
        cut = self._first_stop()
        if cut is not None:
            self.stopped = True
            safe, self._held = self._held[:cut], ""
            return safe
        sure = len(self._held) - self._num_unsure()
        safe, self._held = self._held[:sure], self._held[sure:]
        self._num_skipped = max(0, self._num_skipped - sure)
        return safe

    def finish(self) -> str:
        """The text held back: the reply ended before it became a stop string."""
        rest, self._held = self._held, ""
        return rest

    def _first_stop(self) -> int | None:
        """Where the text is cut: start of the stop string that is complete first."""
        found = [
            (start + len(stop), start)
            for stop in self._stops
            if (start := self._held.find(stop, max(0, self._num_skipped + 1 - len(stop)))) >= 0
        ]
        return min(found)[1] if found else None

    def _num_unsure(self) -> int:
        """Length of the longest end of the text that a stop string starts with."""
        longest = min(self._longest - 1, len(self._held))
        return next(
            (
                size
                for size in range(longest, 0, -1)
                if any(
                    len(stop) > size and stop.startswith(self._held[-size:]) for stop in self._stops
                )
            ),
            0,
        )


@final
class ReplyText:
    """Token ids in, text deltas out; knows when a stop string has ended the reply."""

    def __init__(
        self, tokenizer: Decoder, stops: Sequence[str] = (), *, min_tokens: int = 0
    ) -> None:
        """`min_tokens`: a stop string that these first tokens complete does not end the reply."""
        self._decoder = IncrementalDecoder(tokenizer)
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self.num_decoded = 0  # characters that the ids so far have given, also those held back

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: no more text will come."""
        return self._stops.stopped

    def push(self, token_ids: Sequence[int]) -> str:
        """Take more ids; the text that can be handed out now."""
        text = self._decoder.push(token_ids)
        self._num_tokens += len(token_ids)
        self.num_decoded += len(text)
        return self._stops.push(text, looks=self._num_tokens > self._min_tokens)

    def finish(self) -> str:
        """The text still held back at the end of the reply."""
        looks = self._num_tokens > self._min_tokens
        return self._stops.push(self._decoder.finish(), looks=looks) + self._stops.finish()
