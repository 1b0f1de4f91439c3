"""One reply's events to text deltas.  No I/O: whoever drives it feeds events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

from hypic_sdk.errors import WorkerError, from_payload
from hypic_sdk.prompt.incremental import Decoder
from hypic_sdk.prompt.reply_reader import (
    PLAIN,
    ReplyReader,
    ReplyRules,
    Said,
    SaidReasoning,
    SaidText,
)
from hypic_sdk.prompt.reply_text import ReplyText
from hypic_sdk.prompt.tool_calls import SaidCall, calls_of
from hypic_sdk.transport.messages import EngineReport, FinishReason, TokenEvent, TokenLogprobs

FinishText = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ReplyDelta:
    """Text that is sure, the log-probabilities of its tokens, and at the end why and at what cost.

    `said` is the text sorted into reasoning, text and calls; what may still become one of the
    others comes later.  A reply's last delta has `finish_reason` set.  `is_last`: of all replies;
    its `report` is none only if the request was stopped before its prompt was done.
    """

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishText | None = None
    report: EngineReport | None = None
    said: tuple[Said, ...] = ()
    reply_index: int = 0
    is_last: bool = False


@final
class ReplyAssembler:
    """Feeds on the events of one reply until its last one.

    A stop string ends the text at once; the reply itself must then be finished by whoever drives
    this (`wants_finish`), and its last event still be fed.
    """

    def __init__(
        self,
        tokenizer: Decoder,
        stops: Sequence[str] = (),
        rules: ReplyRules = PLAIN,
        *,
        min_tokens: int = 0,
    ) -> None:
        """`min_tokens`: no stop string is looked for in these first tokens."""
        self._text = ReplyText(tokenizer, stops, min_tokens=min_tokens)
        self._can_stop = bool(stops)
        self._reader = ReplyReader(rules)
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._num_said = 0
        # log-probabilities whose tokens are not handed out yet, with where their text starts
        self._waiting: list[tuple[int, TokenLogprobs]] = []
        self.said: list[Said] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishText | None = None
        self.is_over = False

    @property
    def wants_finish(self) -> bool:
        """A stop string was found and the reply still runs."""
        return self._text.stopped and not self.is_over

    @property
    def was_cut(self) -> bool:
        """Whether the text ends before a stop string, so that it is not that of the token ids."""
        return self._text.stopped

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids so far, at a stop string up to the one that completed it.

        What the engine draws until it hears of the stop is nobody's: how much that is is chance.
        """
        return tuple(self._token_ids)

    @property
    def text(self) -> str:
        """All text handed out so far, as the model wrote it."""
        return "".join(self._texts)

    @property
    def content(self) -> str:
        """The text for the caller so far, without reasoning and calls."""
        return "".join(one.text for one in self.said if isinstance(one, SaidText))

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(one.text for one in self.said if isinstance(one, SaidReasoning))

    @property
    def calls(self) -> list[SaidCall]:
        """The calls of tools so far."""
        return calls_of(self.said)

    def feed(self, event: TokenEvent) -> ReplyDelta | None:
        """Take the next event; none if there is nothing to say yet.

        Raises:
            HypicError: the one that ended the request.
        """
        assert not self.is_over, "no event follows the last one"
        if event.finish_reason is FinishReason.ERROR and not self._text.stopped:
            self.is_over = True
            raise _error_of(event)
        text = self._take_tokens(event)
        if event.finish_reason is None:
            delta = self._delta(text, event)
            return delta if delta.text or delta.logprobs else None
        self.is_over = True
        text += self._say(self._text.finish())
        return self._delta(text, event)

    def _delta(self, text: str, event: TokenEvent) -> ReplyDelta:
        said = self._reader.push(text)
        if self.is_over:
            said += self._reader.finish()
        self.said += said
        logprobs = self._release()
        self.logprobs += logprobs
        if self.is_over:
            self.finish_reason = self._finish_text(event)
        return ReplyDelta(
            text,
            logprobs,
            self.finish_reason,
            report=event.report,
            said=tuple(said),
            reply_index=event.reply_index,
        )

    def _finish_text(self, event: TokenEvent) -> FinishText:
        if event.finish_reason is FinishReason.LENGTH and not self._text.stopped:
            return "length"
        return "tool_calls" if self.calls else "stop"

    def _take_tokens(self, event: TokenEvent) -> str:
        if not event.logprobs and not self._can_stop:
            self._token_ids.extend(event.token_ids)
            return self._say(self._text.push(event.token_ids))
        said = []
        for number, token_id in enumerate(event.token_ids):
            if self._text.stopped:
                break
            if number < len(event.logprobs):
                self._waiting.append((self._text.num_decoded, event.logprobs[number]))
            self._token_ids.append(token_id)
            said.append(self._text.push([token_id]))
        return self._say("".join(said))

    def _say(self, text: str) -> str:
        self._texts.append(text)
        self._num_said += len(text)
        return text

    def _release(self) -> tuple[TokenLogprobs, ...]:
        """Log-probabilities of the tokens whose text has begun to be handed out; at the end all."""
        ended = self.is_over or self._text.stopped
        released = [one for start, one in self._waiting if ended or start < self._num_said]
        self._waiting = self._waiting[len(released) :]
        return tuple(released)


def _error_of(event: TokenEvent) -> Exception:
    if event.error is None:
        return WorkerError("the request failed without saying why", request_id=event.request_id)
    return from_payload(event.error)
