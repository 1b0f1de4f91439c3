"""From a message to a request: every check of what a caller may ask for, made once."""

from __future__ import annotations

import secrets
import struct
from typing import final

import numpy as np

from hypic_sdk.engine.grammars import Compilation, GrammarBook
from hypic_sdk.engine.plan import layout_prompt
from hypic_sdk.engine.request import Request
from hypic_sdk.engine.sampling_limits import check_replies, check_sampling
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.errors import PromptTooLong, RequestError, UnsupportedOption
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import EngineRequest, Grammar, WarmRequest

REUSE_SWITCHED_OFF = "reuse_switched_off"
"""In a report: the request would have reused, and live checks had switched that off."""


@final
class Door:
    """Checks messages against one engine's limits."""

    def __init__(
        self,
        settings: EngineSettings,
        vocab_size: int,
        *,
        max_replies: int,
        grammars: GrammarBook | None = None,
    ) -> None:
        """
        Args:
            max_replies: replies that one request may have.
            grammars: none: requests with a grammar are refused.
        """
        self._grammars = grammars
        self._settings = settings
        self._vocab_size = vocab_size
        self._max_replies = max_replies

    def request(
        self, message: EngineRequest, *, now_s: float, stamp: int = 0, reuse_is_off: bool = False
    ) -> Request:
        """The request to be queued.

        Args:
            reuse_is_off: the engine reuses nothing now; a request that would is told so.
        Raises:
            PromptTooLong: the prompt leaves no room for a single token of an answer.
            InvalidGrammar: a grammar that is none, at first sight.
            UnsupportedOption: what this engine does not offer together.
            RequestError: token ids or sampling values that can not be served.
        """
        self._check(message)
        settings, sampling, prompt = self._settings, message.sampling, message.prompt
        mode, limit = settings.reuse.mode, settings.max_context_tokens
        reuses = message.reuse and not reuse_is_off
        layout = layout_prompt(
            prompt,
            settings.reuse,
            conv_width=settings.conv_width,
            namespace=settings.cache_namespace(message.namespace),
            chunk_tokens=settings.chunk_tokens,
            with_segments=reuses,
        )
        return Request(
            message,
            layout,
            uses_segments=reuses and mode.segments,
            uses_chains=reuses and mode.chains,
            degraded=REUSE_SWITCHED_OFF if message.reuse and reuse_is_off else None,
            max_tokens=min(sampling.max_tokens, limit - prompt.num_tokens),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            now_s=now_s,
            stamp=stamp,
            compilation=self._compilation(sampling.grammar),
        )

    def _check(self, message: EngineRequest) -> None:
        sampling, prompt, mode = message.sampling, message.prompt, self._settings.reuse.mode
        check_sampling(sampling, self._vocab_size)
        self._check_tokens(prompt)
        check_replies(message, max_replies=self._max_replies)
        reuses = message.reuse and (mode.segments or mode.chains)
        if sampling.prompt_logprobs is not None and reuses:
            raise UnsupportedOption(
                "prompt_logprobs need every token of the prompt to go through the model: ask with "
                'reuse off (mode "off")',
                param="prompt_logprobs",
            )
        limit = self._settings.max_context_tokens
        if prompt.num_tokens + min(1, sampling.max_tokens) > limit:
            raise PromptTooLong(
                f"the prompt has {prompt.num_tokens} tokens, the context holds {limit} "
                "with the answer: shorten it, or raise max_context_tokens if the model allows",
                num_tokens=prompt.num_tokens,
                limit_tokens=limit,
            )

    def _compilation(self, grammar: Grammar | None) -> Compilation | None:
        if grammar is None:
            return None
        if self._grammars is None:
            raise UnsupportedOption(
                "grammars need the model's tokenizer, which this engine was not given",
                param="grammar",
            )
        return self._grammars.begin(grammar)

    def check_warm(self, message: WarmRequest) -> None:
        """Raises RequestError for what can not be kept."""
        limit = self._settings.max_context_tokens
        for part in message.segments:
            if part.role is not Role.INNER or part.segment_id is None or not part.token_ids:
                raise RequestError("a segment to warm is an inner part with an id and tokens")
            if len(part.token_ids) > limit:
                raise PromptTooLong(
                    f"the segment has {len(part.token_ids)} tokens, the context holds {limit}: "
                    "register it in pieces",
                    num_tokens=len(part.token_ids),
                    limit_tokens=limit,
                )
            self._check_tokens(part)

    def _check_tokens(self, tokens: SegmentedPrompt | PromptPart) -> None:
        try:
            ids = np.frombuffer(tokens.packed, "<i4")
            first, last = int(ids.min()), int(ids.max())
        except struct.error:  # not even four bytes hold them
            first, last = min(tokens.token_ids), max(tokens.token_ids)
        if first < 0 or last >= self._vocab_size:
            raise RequestError(
                f"token ids run from {first} to {last}, the vocabulary from 0 "
                f"to {self._vocab_size - 1}",
                vocab_size=self._vocab_size,
            )
