"""Replies held to a grammar: one that fits is said as it is, else a short one that does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import final

import llguidance
from llguidance import LLMatcher

from hypic_sdk.errors import UnsupportedOption
from hypic_sdk.prompt.grammar import compilable, limits, on_deep_stack, refusal
from hypic_sdk.prompt.reply_reader import CLOSE_THINKING
from hypic_sdk.prompt.tokenizer import TOKENIZER_FILE, PromptTokenizer
from hypic_sdk.prompt.tool_calls import CLOSE
from hypic_sdk.transport.messages import Grammar

# what ends texts, lists and objects soonest, then what makes the shortest values
_CLOSERS, _PREFERRED = ('"', "}", "]"), ("{", "[", "0", "1", "a")
_TAGS = (CLOSE_THINKING, CLOSE)
_MAX_STEPS = 512
_WINDOW = 24  # tokens within which none is said twice, so that every repetition has an end


@final
class GrammarDesk:
    """Matchers over one tokenizer."""

    def __init__(
        self, folder: Path, tokenizer: PromptTokenizer, eos_token_ids: Sequence[int]
    ) -> None:
        self._tokenizer = llguidance.LLTokenizer(
            str(folder / TOKENIZER_FILE), eos_token=list(eos_token_ids)
        )
        self._eos = frozenset(eos_token_ids)
        tags = [tokenizer.encode_template(tag).token_ids[0] for tag in _TAGS]
        self._closers = [*tags, *(tokenizer.encode_text(text)[0] for text in _CLOSERS)]
        self._preferred = [tokenizer.encode_text(text)[0] for text in _PREFERRED]

    def reply(self, grammar: Grammar, candidates: Iterable[Sequence[int]]) -> tuple[int, ...]:
        """The first of the candidates that fits, else a short reply that does.

        Raises:
            InvalidGrammar: it can not be used.
            UnsupportedOption: nothing that fits was found.
        """
        for token_ids in candidates:
            if self._fits(grammar, token_ids):
                return tuple(token_ids)
        return self._shortest(grammar)

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        source = compilable(grammar)
        made = on_deep_stack(
            lambda: LLMatcher(self._tokenizer, source, log_level=0, limits=limits())
        ).result()
        if made.is_error():
            raise refusal(grammar, made.get_error())
        return made

    def _fits(self, grammar: Grammar, token_ids: Sequence[int]) -> bool:
        matcher = self._matcher(grammar)
        taken = matcher.try_consume_tokens(list(token_ids))
        return taken == len(token_ids) and matcher.is_accepting()

    def _shortest(self, grammar: Grammar) -> tuple[int, ...]:
        matcher = self._matcher(grammar)
        said: list[int] = []
        while len(said) < _MAX_STEPS:
            if matcher.is_accepting() or matcher.is_stopped():
                return tuple(said)
            # what can not be otherwise, else what is allowed and short
            more = matcher.compute_ff_tokens() or [
                self._chosen(matcher.compute_bitmask(), said[-_WINDOW:])
            ]
            if not matcher.consume_tokens(more):
                break
            said += [token_id for token_id in more if token_id not in self._eos]
        raise UnsupportedOption(
            f"no reply of {_MAX_STEPS} tokens that fits this grammar was found; a rule of the "
            "script may give one",
            limit_tokens=_MAX_STEPS,
        )

    def _chosen(self, mask: bytes, recent: Sequence[int]) -> int:
        """A token that the mask allows: one that closes something, else one not said of late."""
        allowed = [
            id_ for id_ in (*self._closers, *self._preferred) if mask[id_ // 8] >> id_ % 8 & 1
        ]
        closing = [id_ for id_ in allowed if id_ in self._closers and recent[-3:] != [id_] * 3]
        fresh = (id_ for id_ in (*allowed, *_bits(mask)) if id_ not in recent)
        chosen = next(iter(closing), None) or next(fresh, None) or next(_bits(mask), None)
        if chosen is None:
            raise UnsupportedOption("the grammar allows no token")
        return chosen


def _bits(mask: bytes) -> Iterator[int]:
    """The ids whose bits are set, rising."""
    for index, byte in enumerate(mask):
        for bit in range(8):
            if byte >> bit & 1:
                yield index * 8 + bit
