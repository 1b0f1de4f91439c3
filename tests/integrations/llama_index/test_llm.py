"""`Hypic` over a fake worker: what it sends, and what it does not."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CacheControl,
    CachePoint,
    ChatMessage,
    CitableBlock,
    CitationBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import LLM

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConnectionFailed, RequestError
from hypic_sdk.integrations.llama_index import Hypic
from tests.integrations.llama_index.paths import PATHS, Path
from tests.integrations.recording import AsyncRecording, Recording
from tests.source_tree import REPOSITORY

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]

every_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)


def sent(*messages: ChatMessage, known: tuple[str, ...] = ()) -> list[dict]:
    """What goes to the server for some messages."""
    client = Recording()
    llm = Hypic(client=client)
    for text in known:
        llm.registry.add(text)
    llm.chat(messages)
    return client.sent


def asked(client: Recording) -> dict:
    """The last request, however its reply was to come."""
    return {name: value for name, value in client.requests[-1].items() if name != "stream"}


class TestClass:
    def test_it_is_what_agents_and_programs_ask_for(self):
        llm = Hypic(client=Recording())
        assert isinstance(llm, FunctionCallingLLM)
        assert isinstance(llm, LLM)
        assert Hypic.class_name() == "hypic_llm"

    def test_no_key_in_any_form_of_it(self):
        llm = Hypic(base_url="http://127.0.0.1:9", api_key="sk-hidden", context_window=8)
        for form in (repr(llm), llm.to_payload(), llm.to_dict(), llm.to_json(), str(llm)):
            assert "sk-hidden" not in str(form)

    def test_events_do_not_wait_for_a_server(self):
        payload = Hypic(base_url="http://127.0.0.1:9", temperature=0.5, max_retries=0).to_payload()
        assert payload["class_name"] == "hypic_llm"
        assert payload["temperature"] == 0.5

    def test_another_process_connects_anew(self):
        llm = Hypic(
            base_url="http://127.0.0.1:9", api_key="sk", temperature=0.5, hypic={"mode": "off"}
        )
        llm.registry.add(ADA)
        again = pickle.loads(pickle.dumps(llm))
        assert again.to_dict() == llm.to_dict()
        assert again.api_key.get_secret_value() == "sk"
        assert len(again.registry) == 0

    def test_a_client_of_this_process_stays_here(self):
        with pytest.raises(TypeError, match="base_url"):
            pickle.dumps(Hypic(client=Recording()))


class TestMetadata:
    def test_what_is_given_is_not_asked_for(self):
        llm = Hypic(
            base_url="http://127.0.0.1:9",
            max_retries=0,
            model="reader",
            context_window=100,
            is_chat_model=False,
            is_function_calling_model=True,
        )
        metadata = llm.metadata
        assert (metadata.context_window, metadata.model_name) == (100, "reader")
        assert (metadata.is_chat_model, metadata.is_function_calling_model) == (False, True)
        assert asyncio.run(llm.aload_metadata()) == metadata

    def test_a_server_that_is_away_is_no_model_of_3900_tokens(self):
        llm = Hypic(base_url="http://127.0.0.1:9", max_retries=0)
        with pytest.raises(ConnectionFailed):
            _ = llm.metadata
        with pytest.raises(ConnectionFailed):
            asyncio.run(llm.aload_metadata())
        llm.close()

    def test_a_client_that_can_not_tell(self):
        metadata = Hypic(client=Recording(), context_window=500, max_tokens=7).metadata
        assert (metadata.context_window, metadata.num_output) == (500, 7)
        assert metadata.is_chat_model
        assert not metadata.is_function_calling_model

    @pytest.mark.parametrize(
        "path", [one for one in PATHS if not one.is_chat], ids=lambda p: p.name
    )
    def test_a_model_without_a_chat_template_continues_texts(self, path: Path):
        client = AsyncRecording() if path.is_async else Recording()
        llm = Hypic(client=client, async_client=client if path.is_async else None)
        path.ask(llm, "Where?")
        assert asked(client) == {"messages": [{"role": "user", "content": "Where?"}]}
        llm.is_chat_model = False
        path.ask(llm, "Where?")
        assert asked(client) == {"prompt": "Where?"}


class TestOptions:
    @every_path
    def test_those_of_the_call_overrule_the_models_own(self, path: Path):
        client = AsyncRecording() if path.is_async else Recording()
        llm = Hypic(
            client=client,
            async_client=client if path.is_async else None,
            temperature=0.5,
            max_tokens=7,
            stop=["A"],
            hypic={"report": "summary"},
        )
        path.ask(llm, "Where?", stop=["B"], seed=3, max_tokens=5, hypic={"session_id": "s"})
        assert asked(client) == {
            "messages": [{"role": "user", "content": "Where?"}],
            "temperature": 0.5,
            "max_tokens": 5,
            "stop": ["B"],
            "seed": 3,
            "hypic": {"report": "summary", "session_id": "s"},
        }

    @every_path
    def test_nothing_is_sent_that_was_not_asked_for(self, path: Path):
        client = Recording()
        path.ask(Hypic(client=client), "Where?")
        assert asked(client) == {"messages": [{"role": "user", "content": "Where?"}]}

    def test_logprobs(self):
        response = Hypic(client=Recording()).chat([ChatMessage("Where?")], logprobs=True)
        assert "".join(best.token for [best] in response.logprobs) == "On the Ash."


class TestMessages:
    def test_every_role(self):
        call = ToolCallBlock(tool_call_id="call_1", tool_name="find", tool_kwargs={"name": "Ä"})
        function = {"name": "find", "arguments": '{"name": "Ä"}'}
        assert sent(
            ChatMessage("Be brief.", role="system"),
            ChatMessage("Where?", additional_kwargs={"name": "ann"}),
            ChatMessage(role="assistant", blocks=[call]),
            ChatMessage("In Norwick", role="tool", additional_kwargs={"tool_call_id": "call_1"}),
            ChatMessage(
                role="assistant", blocks=[ThinkingBlock(content="Hm."), TextBlock(text="In it.")]
            ),
            ChatMessage("In it.", role="chatbot"),
            ChatMessage("Never lie.", role="developer"),
        ) == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Where?", "name": "ann"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "In Norwick", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "In it.", "reasoning_content": "Hm."},
            {"role": "assistant", "content": "In it."},
            {"role": "developer", "content": "Never lie."},
        ]

    def test_tool_calls_that_older_code_keeps_beside_the_text(self):
        call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        message = ChatMessage("", role="assistant", additional_kwargs={"tool_calls": [call]})
        assert sent(message)[0]["tool_calls"] == [call]

    def test_blocks_that_are_segments(self):
        cache = CachePoint(cache_control=CacheControl(type="ephemeral"))
        document = DocumentBlock(data=TOMAS.encode(), document_mimetype="text/plain")
        citable = CitableBlock(title="Ada", source="a.txt", content=[TextBlock(text=ADA)])
        [message] = sent(
            ChatMessage(
                [TextBlock(text="Rules."), cache, document, citable, TextBlock(text="Where?")]
            )
        )
        assert message["content"] == [
            {"type": "segment", "text": "Rules."},
            {"type": "segment", "text": TOMAS},
            {"type": "segment", "text": ADA},
            {"type": "text", "text": "Where?"},
        ]

    def test_a_citation_is_its_text(self):
        citation = CitationBlock(
            cited_content=TextBlock(text="In it."),
            source="a.txt",
            title="Ada",
            additional_location_info={},
        )
        assert sent(ChatMessage([citation]))[0]["content"] == "In it."

    def test_spans_over_ordinary_text(self):
        text = f"Read: {ADA}\n{TOMAS}"
        start = text.index(TOMAS)
        spans = [
            {"start": 6, "end": 6 + len(ADA)},
            {"start": start, "end": start + len(TOMAS)},
        ]
        [message] = sent(ChatMessage(text, additional_kwargs={"hypic": {"spans": spans}}))
        assert message["content"] == [
            {"type": "text", "text": "Read: "},
            {"type": "segment", "text": ADA},
            {"type": "text", "text": "\n"},
            {"type": "segment", "text": TOMAS},
        ]
        # they survive being stored
        stored = ChatMessage(text, additional_kwargs={"hypic": {"spans": spans}}).model_dump_json()
        assert sent(ChatMessage.model_validate_json(stored)) == [message]

    @pytest.mark.parametrize(
        ("start", "end"), [(5, 5), (-1, 4), (2, 99), (4, 2)], ids=lambda at: str(at)
    )
    def test_spans_outside_of_the_text(self, start: int, end: int):
        spans = [{"start": start, "end": end}]
        with pytest.raises(RequestError, match="6 characters"):
            sent(ChatMessage("Where?", additional_kwargs={"hypic": {"spans": spans}}))

    @pytest.mark.parametrize(
        "span", [{"end": 5}, {"start": 0}, {"start": "0", "end": 5}, "0:5", [0, 5], None], ids=str
    )
    def test_what_is_no_span(self, span: object):
        with pytest.raises(RequestError, match="a span is"):
            sent(ChatMessage("Where?", additional_kwargs={"hypic": {"spans": [span]}}))

    @pytest.mark.parametrize(
        ("block", "said"),
        [
            (ImageBlock(url="http://127.0.0.1:9/y.png"), "image"),
            (AudioBlock(url="http://127.0.0.1:9/y.mp3"), "audio"),
            (DocumentBlock(url="http://127.0.0.1:9/y.txt"), "not fetched"),
            (DocumentBlock(data=b"\xff\xfe\x00", document_mimetype="application/pdf"), "pdf"),
            (DocumentBlock(data=b"%PDF-1.4 ASCII", document_mimetype="application/pdf"), "pdf"),
        ],
        ids=["image", "audio", "address", "no text", "all ASCII and no text"],
    )
    def test_what_has_no_place_is_refused_by_name(self, block, said):
        with pytest.raises(RequestError, match=said):
            sent(ChatMessage([block]))


class TestKnownTexts:
    @every_path
    def test_known_texts_become_segments_and_the_prompt_stays(self, path: Path):
        client = AsyncRecording() if path.is_async else Recording()
        llm = Hypic(client=client, async_client=client if path.is_async else None)
        llm.registry.add(ADA)
        asked = f"Read:\n\n{ADA}\n\nWhere?"
        [*_, last] = path.ask(llm, asked)
        parts = client.sent[0]["content"]
        assert parts[1] == {"type": "segment", "text": ADA}
        assert "".join(part["text"] for part in parts) == asked
        assert last.additional_kwargs["hypic"]["auto_segments"] == 1

    def test_in_what_was_said_to_the_model_but_not_in_what_it_said(self):
        system, said, tool = sent(
            ChatMessage(ADA, role="system"),
            ChatMessage(ADA, role="assistant"),
            ChatMessage(f"1. {ADA}", role="tool"),
            known=(ADA,),
        )
        assert system["content"] == [{"type": "segment", "text": ADA}]
        assert said["content"] == ADA
        assert [part["type"] for part in tool["content"]] == ["text", "segment"]

    def test_it_can_be_turned_off(self):
        client = Recording()
        llm = Hypic(client=client, auto_segment=False)
        llm.registry.add(ADA)
        llm.chat([ChatMessage(ADA)])
        assert client.sent == [{"role": "user", "content": ADA}]

    @every_path
    def test_an_edited_text_is_plain_and_this_is_told(self, path: Path):
        client = Recording()
        llm = Hypic(client=client)
        llm.registry.add(ADA)
        [*_, last] = path.ask(llm, ADA.replace("Norwick", "Halden"))
        assert isinstance(client.sent[0]["content"], str)
        assert last.additional_kwargs["hypic"]["auto_segments"] == 0


def test_without_the_framework_the_extra_is_named():
    script = (
        "import sys; sys.modules['llama_index.core'] = None; sys.modules['llama_index'] = None\n"
        "import hypic_sdk.integrations\n"
        "import hypic_sdk.integrations.llama_index"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError")
    assert "pip install 'hypic-sdk[llama-index]'" in last
