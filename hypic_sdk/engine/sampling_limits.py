"""Which values of sampling an engine takes; each refusal names the field and its limit."""

from __future__ import annotations

from collections.abc import Iterable

from hypic_sdk.errors import RequestError, UnsupportedOption
from hypic_sdk.transport.messages import EngineRequest, SamplingParams

MAX_TEMPERATURE = 100.0
MAX_PENALTY = 2.0  # of presence and frequency, either sign: OpenAI's limits
MAX_BIAS = 100.0  # of a logit, either sign: OpenAI's limits
MAX_BIASED_IDS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_PROMPT_LOGPROBS = 128  # best ids told for each token of a prompt
_MAX_INT = 2**63 - 1

# field, value, lowest and highest
_Limit = tuple[str, float, float, float]


def check_sampling(sampling: SamplingParams, vocab_size: int) -> None:
    """Raises RequestError for a value outside of its limits, UnsupportedOption for odd pairs."""
    for name, value, low, high in _limits(sampling):
        # a NaN lies nowhere
        if not low <= value <= high:
            raise RequestError(
                f"{name} must lie in [{low:g}, {high:g}], got {value}",
                param=name,
                low=low,
                high=high,
            )
    if sampling.repetition_penalty == 0:
        raise RequestError("repetition_penalty must be above 0", param="repetition_penalty", low=0)
    _check_ids("stop_token_ids", sampling.stop_token_ids, MAX_STOP_TOKEN_IDS, vocab_size)
    biased = [token_id for token_id, _ in sampling.logit_bias]
    _check_ids("logit_bias", biased, MAX_BIASED_IDS, vocab_size)
    if len(set(biased)) < len(biased):
        raise RequestError("logit_bias names a token id twice", param="logit_bias")
    if sampling.grammar is not None and sampling.ignore_eos:
        raise UnsupportedOption(
            "ignore_eos and a grammar: a reply under a grammar ends where the grammar does",
            param="ignore_eos",
        )


def check_replies(message: EngineRequest, *, max_replies: int) -> None:
    """Raises RequestError for a number of replies that is none, or too many."""
    if not 1 <= message.num_replies <= max_replies:
        raise RequestError(
            f"n must lie in [1, {max_replies}] (max_requests of the engine), got "
            f"{message.num_replies}",
            param="n",
            low=1,
            high=max_replies,
        )


def _limits(sampling: SamplingParams) -> Iterable[_Limit]:
    yield "max_tokens", sampling.max_tokens, 0, _MAX_INT
    yield "min_tokens", sampling.min_tokens, 0, sampling.max_tokens
    yield "temperature", sampling.temperature, 0.0, MAX_TEMPERATURE
    yield "top_k", sampling.top_k, 0, _MAX_INT
    yield "top_p", sampling.top_p, 0.0, 1.0
    yield "min_p", sampling.min_p, 0.0, 1.0
    yield "repetition_penalty", sampling.repetition_penalty, 0.0, 1e6
    yield "presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY
    yield "frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY
    yield "logprobs", sampling.logprobs or 0, 0, _MAX_INT
    yield "prompt_logprobs", sampling.prompt_logprobs or 0, 0, MAX_PROMPT_LOGPROBS
    yield "seed", sampling.seed or 0, -(2**63), _MAX_INT
    for _, value in sampling.logit_bias:
        yield "logit_bias", value, -MAX_BIAS, MAX_BIAS


def _check_ids(name: str, token_ids: Iterable[int], most: int, vocab_size: int) -> None:
    """Not too many, and all of the vocabulary."""
    ids = list(token_ids)
    if len(ids) > most:
        raise RequestError(f"{name} may name {most} tokens, got {len(ids)}", param=name, limit=most)
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name} names token id {token_id}, the vocabulary ends at {vocab_size - 1}",
                param=name,
                token_id=token_id,
                vocab_size=vocab_size,
            )
