"""Every message survives the way between two processes, and nothing else comes out of it."""

from __future__ import annotations

import dataclasses
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import WorkerError, from_payload, walk
from hypic_sdk.prompt.segment import (
    Border,
    BorderKind,
    PromptPart,
    Role,
    SegmentedPrompt,
    segment_id,
)
from hypic_sdk.transport import codec
from hypic_sdk.transport.control import (
    Alive,
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    EntriesChanged,
    EntryName,
    FinishRequest,
    Join,
    Leave,
    PeerHere,
    PeerLost,
    Question,
    Refused,
    RequestsBegun,
    Welcome,
)
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    FinishReason,
    Grammar,
    GrammarKind,
    MissReason,
    SamplingParams,
    SegmentReport,
    SegmentStatus,
    TokenEvent,
    TokenLogprobs,
    WarmEvent,
    WarmRequest,
)
from hypic_sdk.transport.peer_messages import (
    Carrier,
    DropFetch,
    EntryReady,
    EntryRefused,
    FetchEntry,
)

PART = PromptPart(Role.INNER, (1, 2, 3), segment_id("x"), 1, 2)
PROMPT = SegmentedPrompt((PART, PromptPart(Role.TRAILING, (4,))), (Border(3, BorderKind.MESSAGE),))
SEGMENT = SegmentReport(
    segment_id("x"), 1, 2, SegmentStatus.COLD, MissReason.EVICTED, None, 0, 3, 0, 1, 2.5
)
REPORT = EngineReport(4, 0, 3, 1, 0, 3, 0, True, (SEGMENT,), 0.5, 2.5, 3.5)
MESSAGES: tuple[codec.Message, ...] = (
    EngineRequest("r", PROMPT, SamplingParams(seed=2**62, stop_token_ids=(1,)), "t", False, "s", 3),
    WarmRequest("w", (PART,), "t"),
    CancelRequest("r"),
    FinishRequest("r", 2),
    RequestsBegun(("r", "w")),
    EngineRequest(
        "n",
        PROMPT,
        SamplingParams(
            min_p=0.5,
            logit_bias=((3, -1.5), (4, 2.0)),
            grammar=Grammar(GrammarKind.JSON_SCHEMA, "{}"),
        ),
        num_replies=3,
    ),
    TokenEvent(
        "n",
        finish_reason=FinishReason.STOP,
        reply_index=1,
        replies_left=2,
        prompt_logprobs=(TokenLogprobs(1, -0.5, 2),),
    ),
    Ask(7, Question.PROBE, (PART,), "t"),
    TokenEvent("r", (1, 2), (TokenLogprobs(1, -0.5, 1, ((1, -0.5),)),), FinishReason.STOP, REPORT),
    TokenEvent("r", finish_reason=FinishReason.ERROR, error={"code": "x", "details": {"n": 1}}),
    WarmEvent("w", segment_id("x"), SegmentStatus.HIT, 3, 0.0),
    Answer(7, [True, False]),
    EngineReady("f", 10, 100, (7,), 4, 1.5),
    EngineReady("f", 10, 100, (7,), 4, 1.5, "a CPU, 2 threads; pair=int8", "float32"),
    EngineFailed({"code": "model_file_error", "message": "torn"}),
    FetchEntry(7, "w1", PART, "t", b"k" * 32, "f", "127.0.0.1", 4000, 3, 1.5),
    FetchEntry(
        8, "w1", PART, "t", b"k" * 32, "f", "10.0.0.1", 4000, 3, 1.5, Carrier.NCCL, b"t" * 16
    ),
    EntryReady(7, "w2", 3, 2**40, b"d" * 16, 1.5),
    EntryRefused(7, "w2", 3, {"code": "pool_exhausted", "message": "no room"}),
    DropFetch(7, "w1"),
    PeerLost("w1"),
    Alive("w1", 1, 2, 2**40),
    Alive("w1", endpoint="tcp://10.0.0.1:4000"),
    PeerHere("w1", "tcp://10.0.0.1:4000"),
    Join("a_0", "0.1"),
    Welcome("a_0-1", EngineConfig(device="cpu")),
    Refused({"code": "config_error", "message": "another model"}),
    Leave("a_0-1"),
    EntriesChanged("w1", (EntryName("t", segment_id("x")),), (EntryName("", segment_id("y")),)),
)


def test_every_message_type_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(codec.TAGS.values())


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message: codec.Message) -> None:
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
def test_a_torn_message_is_a_typed_error_or_a_message_of_its_type(
    message: codec.Message, data: st.DataObject
) -> None:
    tag, body = codec.encode(message)
    position = data.draw(st.integers(0, len(body) - 1))
    changed = bytearray(body)
    changed[position] ^= data.draw(st.integers(1, 255))
    torn = data.draw(st.sampled_from([bytes(changed), body[:position]]))
    try:
        decoded = codec.decode([tag, torn])
    except WorkerError:
        return
    assert type(decoded) is type(message)


@given(frames=st.lists(st.binary(max_size=40), max_size=3))
def test_noise_is_a_typed_error(frames: list[bytes]) -> None:
    with pytest.raises(WorkerError):
        codec.decode(frames)


def test_a_pickle_is_never_opened() -> None:
    for tag in codec.TAGS:
        with pytest.raises(WorkerError):
            codec.decode([tag, pickle.dumps(MESSAGES[0])])


def test_a_prompt_without_a_trailing_part_is_refused_on_arrival() -> None:
    bad = msgspec.to_builtins(MESSAGES[0])
    bad["prompt"]["parts"] = bad["prompt"]["parts"][:1]
    with pytest.raises(WorkerError, match="generate"):
        codec.decode([b"generate", msgspec.msgpack.encode(bad)])


@pytest.mark.parametrize("error_class", list(walk()), ids=lambda one: one.__name__)
def test_errors_travel_as_payloads(error_class: type) -> None:
    error = error_class("what happened", request_id="r", limit_bytes=3)
    event = TokenEvent("r", finish_reason=FinishReason.ERROR, error=error.to_payload())
    arrived = codec.decode(codec.encode(event))
    assert isinstance(arrived, TokenEvent)
    assert arrived.error is not None
    again = from_payload(arrived.error)
    assert type(again) is error_class
    assert (again.message, again.request_id, again.details) == ("what happened", "r", error.details)


def test_messages_are_frozen() -> None:
    for message in MESSAGES:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, dataclasses.fields(message)[0].name, "other")
