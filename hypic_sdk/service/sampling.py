"""What callers ask for as sampling, in the engine's words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypic_sdk.transport.messages import Grammar, GrammarKind, SamplingParams
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.generate import GenerateSampling


def request_sampling(
    request: ChatRequest | CompletionRequest,
    defaults: SamplingParams,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Of OpenAI's fields and their usual neighbours; what was left out is as `defaults` have it.

    Of the least and the most tokens, one that was left out gives way to the other.

    Args:
        grammar: what the reply is held to.
    """
    given: dict[str, Any] = {
        "max_tokens": request.token_limit,
        # some clients write "off" as -1
        "top_k": None if request.top_k is None else max(request.top_k, 0),
        "logprobs": request.num_logprobs,
        "prompt_logprobs": num_prompt_logprobs(request),
        "grammar": grammar,
        "stop_token_ids": tuple(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
        "seed": request.seed,
        "logit_bias": tuple((int(one), bias) for one, bias in (request.logit_bias or {}).items()),
    }
    names = ("min_tokens", "temperature", "top_p", "min_p", "repetition_penalty",
             "presence_penalty", "frequency_penalty")  # fmt: skip
    given |= {name: getattr(request, name) for name in names}
    given = {name: value for name, value in given.items() if value is not None}
    least, most = given.get("min_tokens"), given.get("max_tokens")
    if least is None and most is not None:
        given["min_tokens"] = min(defaults.min_tokens, most)
    if most is None and least is not None:
        given["max_tokens"] = max(defaults.max_tokens, least)
    return replace(defaults, **given)


def num_prompt_logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    """How many alternatives to each token of the prompt are told; none: nothing of the prompt.

    A plain completion that says its prompt again tells its log-probabilities too.
    """
    echoes = isinstance(request, CompletionRequest) and request.echo
    echoed = request.num_logprobs if echoes else None
    asked = [one for one in (request.prompt_logprobs, echoed) if one is not None]
    return max(asked, default=None)


def generate_sampling(given: GenerateSampling) -> SamplingParams:
    """Of the reference endpoint's fields."""
    return SamplingParams(
        max_tokens=given.max_new_tokens,
        min_tokens=given.min_new_tokens,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        grammar=_generate_grammar(given),
        temperature=given.temperature,
        top_k=max(given.top_k, 0),
        top_p=given.top_p,
        seed=given.sampling_seed,
        stop_token_ids=tuple(given.stop_token_ids or ()),
        ignore_eos=given.ignore_eos,
    )


def _generate_grammar(given: GenerateSampling) -> Grammar | None:
    if given.json_schema is not None:
        return Grammar(GrammarKind.JSON_SCHEMA, given.json_schema)
    return None if given.regex is None else Grammar(GrammarKind.REGEX, given.regex)


def stops_of(given: GenerateSampling) -> tuple[str, ...]:
    """Its stop strings."""
    if given.stop is None:
        return ()
    return (given.stop,) if isinstance(given.stop, str) else tuple(given.stop)
