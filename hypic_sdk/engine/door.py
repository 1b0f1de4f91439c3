"""From a message to a request: every check of what a caller may ask for, made once."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import final

from hypic_sdk.engine.plan import layout_prompt
from hypic_sdk.engine.request import Request
from hypic_sdk.engine.settings import EngineSettings
from hypic_sdk.errors import PromptTooLong, RequestError
from hypic_sdk.prompt.segment import Role
from hypic_sdk.transport.messages import EngineRequest, SamplingParams, WarmRequest


@final
class Door:
    """Checks messages against one engine's limits."""

    def __init__(self, settings: EngineSettings, vocab_size: int) -> None:
        self._settings = settings
        self._vocab_size = vocab_size

    def request(self, message: EngineRequest, *, now_s: float, stamp: int = 0) -> Request:
        """The request to be queued.

        Raises:
            PromptTooLong: the prompt leaves no room for a single token of an answer.
            RequestError: token ids or sampling values that can not be served.
        """
        settings, sampling, prompt = self._settings, message.sampling, message.prompt
        _check_sampling(sampling)
        self._check_tokens(prompt.token_ids)
        limit = settings.max_context_tokens
        least = prompt.num_tokens + min(1, sampling.max_tokens)
        if least > limit:
            raise PromptTooLong(
                f"the prompt has {prompt.num_tokens} tokens, the context holds {limit} "
                "with the answer: shorten it, or raise max_context_tokens if the model allows",
                num_tokens=prompt.num_tokens,
                limit_tokens=limit,
            )
        mode = settings.reuse.mode
        layout = layout_prompt(
            prompt,
            settings.reuse,
            conv_width=settings.conv_width,
            namespace=settings.cache_namespace(message.namespace),
            chunk_tokens=settings.chunk_tokens,
            with_segments=message.reuse,
        )
        return Request(
            message,
            layout,
            uses_segments=message.reuse and mode.segments,
            uses_chains=message.reuse and mode.chains,
            max_tokens=min(sampling.max_tokens, limit - prompt.num_tokens),
            seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
            now_s=now_s,
            stamp=stamp,
        )

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
            self._check_tokens(part.token_ids)

    def _check_tokens(self, token_ids: Sequence[int]) -> None:
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            raise RequestError(
                f"token ids run from {min(token_ids)} to {max(token_ids)}, the vocabulary from 0 "
                f"to {self._vocab_size - 1}",
                vocab_size=self._vocab_size,
            )


def _check_sampling(sampling: SamplingParams) -> None:
    limits: Iterable[tuple[str, float, float, float]] = (
        ("max_tokens", sampling.max_tokens, 0, float("inf")),
        ("temperature", sampling.temperature, 0.0, float("inf")),
        ("top_k", sampling.top_k, 0, float("inf")),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("logprobs", sampling.logprobs or 0, 0, float("inf")),
        ("seed", sampling.seed or 0, -(2**63), 2**63 - 1),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise RequestError(f"{name} must lie in [{low:g}, {high:g}], got {value}")
