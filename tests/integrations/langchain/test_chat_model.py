"""`ChatHypic` over a fake worker: what it sends, what it makes of the reply."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from langchain_core.documents import Document
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelConnectionError,
    ModelInvalidRequestError,
    ModelRateLimitError,
)
from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import (
    ConnectionFailed,
    HypicError,
    NumericsError,
    PoolExhausted,
    PromptTooLong,
    QueueFull,
    from_payload,
    walk,
)
from hypic_sdk.integrations.langchain import ChatHypic
from hypic_sdk.integrations.langchain.errors import of_both_kinds
from tests.integrations.recording import AsyncRecording, Recording
from tests.source_tree import REPOSITORY

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]


def joined(stream):
    chunks = list(stream)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole, chunks


class TestReplies:
    def test_a_whole_reply(self):
        reply = ChatHypic(client=Recording()).invoke("Where?")
        assert reply.content == "On the Ash."
        usage = reply.usage_metadata
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
        assert usage["input_token_details"].keys() == {"cache_read", "cache_creation"}
        metadata = reply.response_metadata
        assert (metadata["model_name"], metadata["model_provider"]) == ("tiny", "hypic")
        assert metadata["finish_reason"] in {"stop", "length"}
        assert metadata["hypic"]["prompt_tokens"] == usage["input_tokens"]
        assert reply.content_blocks == [{"type": "text", "text": "On the Ash."}]

    def test_chunks_join_to_the_whole(self):
        chat = ChatHypic(client=Recording())
        reply = chat.invoke("Where?")
        whole, chunks = joined(chat.stream("Where?"))
        assert len(chunks) > 2
        assert whole.content == reply.content
        assert whole.response_metadata["finish_reason"] == reply.response_metadata["finish_reason"]
        assert whole.response_metadata["hypic"].keys() == reply.response_metadata["hypic"].keys()
        assert whole.usage_metadata["input_tokens"] == reply.usage_metadata["input_tokens"]
        assert [bool(chunk.usage_metadata) for chunk in chunks].count(True) == 1
        assert chunks[-1].chunk_position == "last"

    def test_asynchronous_calls(self):
        chat = ChatHypic(async_client=AsyncRecording())
        reply = asyncio.run(chat.ainvoke("Where?"))
        assert reply.content == "On the Ash."

        async def stream():
            return "".join([chunk.content async for chunk in chat.astream("Where?")])

        assert asyncio.run(stream()) == "On the Ash."

    def test_asynchronous_calls_over_a_client_that_waits(self):
        chat = ChatHypic(client=Recording())

        async def both():
            streamed = [chunk.content async for chunk in chat.astream("Where?")]
            return (await chat.ainvoke("Where?")).content, "".join(streamed)

        assert asyncio.run(both()) == ("On the Ash.", "On the Ash.")

    def test_batches(self):
        replies = ChatHypic(client=Recording()).batch(["Where?", "When?"])
        assert [reply.content for reply in replies] == ["On the Ash."] * 2

    def test_a_streaming_model_invoked(self):
        reply = ChatHypic(client=Recording(), streaming=True).invoke("Where?")
        assert reply.content == "On the Ash."
        assert reply.usage_metadata["output_tokens"] > 0


class TestOptions:
    def test_those_of_the_call_overrule_the_models_own(self):
        client = Recording()
        chat = ChatHypic(
            client=client, temperature=0.5, max_tokens=7, stop=["A"], hypic={"report": "summary"}
        )
        chat.invoke("Where?", stop=["B"], seed=3, max_tokens=5, hypic={"session_id": "s"})
        assert {**client.requests[-1], "messages": None} == {
            "messages": None,
            "temperature": 0.5,
            "max_tokens": 5,
            "stop": ["B"],
            "seed": 3,
            "hypic": {"report": "summary", "session_id": "s"},
        }
        chat.bind(stop=["C"]).invoke("Where?")
        assert client.requests[-1]["stop"] == ["C"]

    def test_nothing_is_sent_that_was_not_asked_for(self):
        client = Recording()
        ChatHypic(client=client).invoke("Where?")
        assert client.requests == [{"messages": [{"role": "user", "content": "Where?"}]}]

    def test_tracing_is_told_the_model(self):
        chat = ChatHypic(client=Recording(), model="reader", temperature=0.0)
        params = chat._get_ls_params(stop=["A"])
        assert (params["ls_provider"], params["ls_model_name"]) == ("hypic", "reader")
        assert params["ls_stop"] == ["A"]
        assert chat._get_ls_params(model="other")["ls_model_name"] == "other"
        assert chat._llm_type == "hypic-chat"
        assert chat._identifying_params["model"] == "reader"

    def test_keys_are_not_shown(self):
        chat = ChatHypic(base_url="http://127.0.0.1:9", api_key="sk-hidden")
        assert "sk-hidden" not in repr(chat)
        assert chat.calls() is chat.calls()
        assert chat.async_calls() is chat.async_calls()
        asyncio.run(chat.aclose())
        chat.close()


class TestMessages:
    def test_every_role(self):
        client = Recording()
        thought = {"type": "reasoning", "reasoning": "Hm."}
        call = {"name": "find", "args": {"name": "Ä"}, "id": "call_1", "type": "tool_call"}
        ChatHypic(client=client).invoke(
            [
                SystemMessage("Be brief."),
                HumanMessage("Where?", name="ann"),
                AIMessage("", tool_calls=[call]),
                ToolMessage("In Norwick", tool_call_id="call_1"),
                AIMessage([thought, "In ", {"type": "text", "text": "it."}]),
                ChatMessage("And?", role="user"),
            ]
        )
        function = {"name": "find", "arguments": '{"name": "Ä"}'}
        assert client.sent == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?", "name": "ann"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "In Norwick", "tool_call_id": "call_1"},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "In "}, {"type": "text", "text": "it."}],
                "reasoning_content": "Hm.",
            },
            {"role": "user", "content": "And?"},
        ]

    def test_segments_written_by_the_caller(self):
        client = Recording()
        made = client.hypic.segments.create(ADA)
        marked = {"type": "text", "text": ADA, "extras": {"hypic": {"segment_id": made.id}}}
        part = {"type": "segment", "segment_id": made.id}
        ChatHypic(client=client).invoke([HumanMessage([marked, part, "Where?"])])
        assert client.sent[0]["content"] == [
            {"type": "segment", "segment_id": made.id, "text": ADA},
            part,
            {"type": "text", "text": "Where?"},
        ]

    @pytest.mark.parametrize(
        "message",
        [HumanMessage([{"type": "image", "url": "http://x/y.png"}]), RemoveMessage(id="1")],
    )
    def test_what_has_no_place_is_refused_by_name(self, message):
        with pytest.raises(ModelInvalidRequestError, match=r"image|remove"):
            ChatHypic(client=Recording())._generate([message])


class TestKnownTexts:
    def test_known_texts_become_segments_and_the_prompt_stays(self):
        client = Recording()
        chat = ChatHypic(client=client)
        chat.registry.add(ADA)
        asked = f"Read:\n\n{ADA}\n\nWhere?"
        reply = chat.invoke([SystemMessage(ADA), HumanMessage(asked)])
        segment = {"type": "segment", "text": ADA}
        assert client.sent[0]["content"] == [segment]
        parts = client.sent[1]["content"]
        assert parts[1] == segment
        assert "".join(part["text"] for part in parts) == asked
        assert reply.response_metadata["hypic"]["auto_segments"] == 2

    def test_in_blocks_and_tool_messages_but_not_in_what_the_model_said(self):
        client = Recording()
        chat = ChatHypic(client=client)
        documents = [Document(ADA), "no document"]
        tool = ToolMessage(f"1. {ADA}", tool_call_id="call_1", artifact=documents)
        chat.invoke([HumanMessage([f"{ADA}!"]), AIMessage(ADA), tool])
        assert [part["type"] for part in client.sent[0]["content"]] == ["segment", "text"]
        assert client.sent[1]["content"] == ADA
        assert [part["type"] for part in client.sent[2]["content"]] == ["text", "segment"]

    def test_it_can_be_turned_off(self):
        client = Recording()
        chat = ChatHypic(client=client, auto_segment=False)
        chat.registry.add(ADA)
        chat.invoke(ADA)
        assert client.sent == [{"role": "user", "content": ADA}]

    def test_an_edited_text_is_plain_and_this_is_told(self):
        client = Recording()
        chat = ChatHypic(client=client)
        chat.registry.add(ADA)
        reply = chat.invoke(ADA.replace("Norwick", "Halden"))
        assert isinstance(client.sent[0]["content"], str)
        assert reply.response_metadata["hypic"]["auto_segments"] == 0

    def test_another_provider_gets_the_whole_text(self):
        """The prompt is cut within the adapter only."""
        broken = ChatHypic(client=Recording(error=ConnectionFailed("nobody there")))
        broken.registry.add(ADA)
        other = Recording()
        assert broken.with_fallbacks([ChatHypic(client=other)]).invoke(ADA).content
        assert other.sent == [{"role": "user", "content": ADA}]


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "core"),
        [
            (PromptTooLong("too long"), ContextOverflowError),
            (QueueFull("full"), ModelRateLimitError),
            (PoolExhausted("never fits", retryable=False), ModelAPIError),
            (ConnectionFailed("nobody there"), ModelConnectionError),
            (NumericsError("not finite"), ModelAPIError),
        ],
        ids=lambda value: getattr(value, "code", None),
    )
    def test_ours_become_cores(self, error: HypicError, core):
        chat = ChatHypic(client=Recording(error=error), async_client=AsyncRecording(error=error))
        calls = [
            lambda: chat.invoke("Where?"),
            lambda: list(chat.stream("Where?")),
            lambda: asyncio.run(chat.ainvoke("Where?")),
        ]
        for call in calls:
            with pytest.raises(core, match=error.message) as caught:
                call()
            assert isinstance(caught.value, type(error))
            assert caught.value.to_payload() == error.to_payload()
            assert caught.value.__cause__ is error
            assert caught.value.is_retryable == error.retryable


def test_errors_of_both_kinds_do_not_hide_those_of_ours():
    """They are subclasses, which must not be found by their codes."""
    of_both_kinds(PromptTooLong)
    assert of_both_kinds(PromptTooLong) is of_both_kinds(PromptTooLong)
    assert of_both_kinds(PromptTooLong) not in walk()
    assert type(from_payload(PromptTooLong("m").to_payload())) is PromptTooLong


def test_without_the_framework_the_extra_is_named():
    script = (
        "import sys; sys.modules['langchain_core'] = None\n"
        "import hypic_sdk.integrations\n"
        "import hypic_sdk.integrations.langchain"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert "pip install 'hypic-sdk[langchain]'" in last
