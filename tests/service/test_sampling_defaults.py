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
    assert sampling_defaults(reader_path()) == SamplingParams()


def test_the_callers_word_stands_above_it(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, RELEASED)

    def asked(**fields: Any) -> SamplingParams:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
        return request_sampling(parse(ChatRequest, body), defaults)

    assert asked() == defaults
    got = asked(temperature=0, top_p=1.0, top_k=-1, max_tokens=3, seed=4)
    assert got == SamplingParams(max_tokens=3, temperature=0.0, top_k=0, top_p=1.0, seed=4)
    assert asked(top_p=0.5) == SamplingParams(temperature=0.7, top_k=20, top_p=0.5)


def test_what_is_not_offered_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hypic_sdk"):
        defaults_of(tmp_path, {**RELEASED, "repetition_penalty": 1.0, "min_p": 0.0})
        assert not caplog.records
        defaults_of(tmp_path, {**RELEASED, "repetition_penalty": 1.05, "min_p": 0.1})
    (record,) = caplog.records
    assert "repetition_penalty, min_p" in record.getMessage()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["do_sample", "temperature", "top_k", "top_p"]),
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
        return
    assert f"{name} must be" in refusal


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{"])
def test_a_torn_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ModelFileError, match=FILE_NAME):
        sampling_defaults(tmp_path)
