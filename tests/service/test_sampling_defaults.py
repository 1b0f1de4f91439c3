"""generation_config.json decides where a caller says nothing, and nowhere else."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ModelFileError
from hypic_sdk.service.sampling import request_sampling
from hypic_sdk.service.sampling_defaults import FILE_NAME, sampling_defaults
from hypic_sdk.transport.messages import SamplingParams
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse

# as published with Qwen3-Next
RELEASED = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.57.0.dev0",
}


def defaults_of(folder: Path, fields: Any) -> SamplingParams:
    (folder / FILE_NAME).write_text(json.dumps(fields))
    return sampling_defaults(folder)


def test_a_model_that_wants_to_be_sampled(tmp_path: Path) -> None:
    got = defaults_of(tmp_path, RELEASED)
    assert got == SamplingParams(temperature=0.7, top_k=20, top_p=0.8)
    assert defaults_of(tmp_path, {"do_sample": True}) == SamplingParams(temperature=1.0)
    assert defaults_of(tmp_path, {"temperature": 0.6}) == SamplingParams(temperature=0.6)


def test_a_model_that_does_not_is_greedy(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == SamplingParams()
    for fields in ({}, {"do_sample": False, "temperature": 0.7, "top_k": 20}, {"top_p": 0.5}):
        assert defaults_of(tmp_path, fields) == SamplingParams()
    assert sampling_defaults(reader_path()) == SamplingParams(max_tokens=64)


def test_the_callers_word_stands_above_it(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, RELEASED)

    def asked(**fields: Any) -> SamplingParams:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
        return request_sampling(parse(ChatRequest, body), defaults)

    assert asked() == defaults
    got = asked(temperature=0, top_p=1.0, top_k=-1, max_tokens=3, seed=4)
    assert got == SamplingParams(max_tokens=3, temperature=0.0, top_k=0, top_p=1.0, seed=4)
    assert asked(top_p=0.5) == SamplingParams(temperature=0.7, top_k=20, top_p=0.5)


@given(
    wished=st.tuples(st.integers(0, 300), st.integers(1, 300)).map(sorted),
    said=st.tuples(st.none() | st.integers(0, 300), st.none() | st.integers(0, 300)),
)
def test_a_length_that_was_left_out_gives_way_to_one_that_was_said(
    wished: list[int], said: tuple[int | None, int | None]
) -> None:
    defaults = SamplingParams(min_tokens=wished[0], max_tokens=max(1, wished[1]))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
    least, most = said
    got = request_sampling(
        parse(ChatRequest, {**body, "min_tokens": least, "max_tokens": most}), defaults
    )
    assert got.min_tokens == least or least is None
    assert got.max_tokens == most or most is None
    if least is None or most is None:
        assert got.min_tokens <= got.max_tokens
    if least is None and (most is None or most >= defaults.min_tokens):
        assert got.min_tokens == defaults.min_tokens
    if most is None and (least is None or least <= defaults.max_tokens):
        assert got.max_tokens == defaults.max_tokens


def test_what_is_not_offered_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hypic_sdk"):
        defaults_of(tmp_path, {**RELEASED, "typical_p": 1.0, "num_beams": 1, "bad_words_ids": []})
        assert not caplog.records
        defaults_of(tmp_path, {**RELEASED, "typical_p": 0.9, "num_beams": 4})
    (record,) = caplog.records
    assert "typical_p, num_beams" in record.getMessage()


def test_penalties_and_lengths_hold_for_greedy_models_too(tmp_path: Path) -> None:
    wish = {
        "repetition_penalty": 1.05,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "max_new_tokens": 900,
        "min_new_tokens": 3,
        "min_p": 0.1,
    }
    always = {
        "repetition_penalty": 1.05,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "max_tokens": 900,
        "min_tokens": 3,
    }
    assert defaults_of(tmp_path, {"do_sample": False, **wish}) == SamplingParams(**always)
    drawn = SamplingParams(**always, min_p=0.1, temperature=0.7, top_k=20, top_p=0.8)
    assert defaults_of(tmp_path, {**RELEASED, **wish}) == drawn


def test_a_reply_can_not_have_to_be_longer_than_it_may(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="min_new_tokens must be at most 256, got 257"):
        defaults_of(tmp_path, {"min_new_tokens": 257})
    assert defaults_of(tmp_path, {"min_new_tokens": 257, "max_new_tokens": 257}).min_tokens == 257


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(
        [
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "max_new_tokens",
            "min_new_tokens",
        ]
    ),
    value=st.one_of(
        st.sampled_from([-1, 0, 0.5, 1.5, 101, 2**40, True, "0.7", [], {}]), st.floats()
    ),
)
def test_any_value_is_taken_or_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    try:
        got = defaults_of(tmp_path, {**RELEASED, name: value})
    except ModelFileError as error:
        refusal = str(error)
    else:
        assert 0 <= got.temperature <= 100
        assert 0 < got.top_p <= 1
        assert isinstance(got.top_k, int)
        assert got.top_k >= 0
        assert 0 <= got.min_p <= 1
        assert 0 < got.repetition_penalty <= 100
        assert abs(got.presence_penalty) <= 2
        assert abs(got.frequency_penalty) <= 2
        assert 1 <= got.max_tokens < 2**31
        assert 0 <= got.min_tokens <= got.max_tokens
        assert isinstance(got.max_tokens, int)
        assert isinstance(got.min_tokens, int)
        return
    assert f"{name} must be" in refusal


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{"])
def test_a_torn_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ModelFileError, match=FILE_NAME):
        sampling_defaults(tmp_path)
