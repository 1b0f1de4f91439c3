"""What callers ask for as sampling, in the engine's words."""

from __future__ import annotations

from hypic_sdk.transport.messages import SamplingParams
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.generate import GenerateSampling


def request_sampling(
    request: ChatRequest | CompletionRequest, defaults: SamplingParams
) -> SamplingParams:
    """Of OpenAI's fields; what the caller left out is as `defaults` have it."""
    given_k = request.top_k if request.top_k is not None else defaults.top_k
    return SamplingParams(
        max_tokens=defaults.max_tokens if request.token_limit is None else request.token_limit,
        temperature=defaults.temperature if request.temperature is None else request.temperature,
        # some clients write "off" as -1
        top_k=max(given_k, 0),
        top_p=defaults.top_p if request.top_p is None else request.top_p,
        seed=request.seed,
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        logprobs=request.num_logprobs,
    )


def generate_sampling(given: GenerateSampling) -> SamplingParams:
    """Of the reference endpoint's fields."""
    return SamplingParams(
        max_tokens=given.max_new_tokens,
        temperature=given.temperature,
        top_k=max(given.top_k, 0),
        top_p=given.top_p,
        seed=given.sampling_seed,
        stop_token_ids=tuple(given.stop_token_ids or ()),
        ignore_eos=given.ignore_eos,
    )


def stops_of(given: GenerateSampling) -> tuple[str, ...]:
    """Its stop strings."""
    if given.stop is None:
        return ()
    return (given.stop,) if isinstance(given.stop, str) else tuple(given.stop)
