"""Documents on their way in: the index, the transformer, the placeholder, the handler, the LLM."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import ToolMessage
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from hypic_sdk import Hypic, LocalHypic
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import (
    ChatHypic,
    HypicCallbackHandler,
    HypicLLM,
    HypicSegmentIndex,
    HypicSegmentRetriever,
    HypicSegmentTransformer,
    SegmentsPlaceholder,
)
from hypic_sdk.prompt.segment import segment_id
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve_fake
from tests.source_tree import REPOSITORY

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]


@pytest.fixture
def worker() -> Iterator[PushingWorker]:
    worker = PushingWorker(tiny.tokenizer().encode_text("a town"))
    yield worker
    worker.join()


@pytest.fixture
def client(worker: PushingWorker) -> Iterator[Hypic]:
    with serve_fake(worker) as url, Hypic(url) as client:
        yield client


@pytest.fixture
def chat(client: Hypic) -> ChatHypic:
    return ChatHypic(client=client)


def registered(client: Hypic) -> set[str]:
    return {one.id for one in client.segments.list().data}


def ids(*texts: str) -> set[str]:
    return {segment_id(text.strip()) for text in texts}


class TestIndex:
    @pytest.fixture
    def made(self, chat: ChatHypic) -> HypicSegmentIndex:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        return HypicSegmentIndex(store=store, chat=chat)

    def run(self, made: HypicSegmentIndex, manager, *texts: str) -> dict:
        documents = [Document(text, metadata={"source": text[:4]}) for text in texts]
        return index(
            documents, manager, made, cleanup="incremental", source_id_key="source",
            key_encoder="sha256",
        )  # fmt: skip

    def test_edited_documents_take_their_segments_along(self, made, client, worker):
        manager = InMemoryRecordManager("test")
        manager.create_schema()
        assert self.run(made, manager, ADA, TOMAS)["num_added"] == 2
        assert registered(client) == ids(ADA, TOMAS)
        assert client.segments.lookup(ids(ADA))[segment_id(ADA.strip())].state == "warm"
        edited = ADA + " She moved."
        told = self.run(made, manager, edited, TOMAS)
        assert (told["num_added"], told["num_deleted"], told["num_skipped"]) == (1, 1, 1)
        assert registered(client) == ids(edited, TOMAS)
        assert (ADA in made.chat.registry, edited in made.chat.registry) == (False, True)
        num_asked = len(worker.messages)
        assert self.run(made, manager, edited, TOMAS)["num_skipped"] == 2
        assert len(worker.messages) == num_asked

    def test_a_text_goes_with_the_last_document_that_has_it(self, made, client):
        made.upsert([Document(ADA, id="1"), Document(f"{ADA}\n", id="2"), Document(TOMAS, id="3")])
        assert made.delete(["1", "nobody"])["num_deleted"] == 1
        assert registered(client) == ids(ADA, TOMAS)
        made.upsert([Document(TOMAS, id="2")])
        assert registered(client) == ids(TOMAS)
        assert made.delete(["2", "3"])["num_deleted"] == 2
        assert registered(client) == set()

    def test_of_two_documents_with_one_id_the_last_stays(self, made, client):
        told = made.upsert([Document(ADA, id="1"), Document(TOMAS, id="1")])
        assert told["succeeded"] == ["1", "1"]
        assert made.delete(["1"])["num_deleted"] == 1
        assert registered(client) == set()

    def test_what_it_finds_is_known_also_after_a_restart(self, made, client):
        made.upsert([Document(ADA, id="1")])
        again = HypicSegmentIndex(store=made.store, chat=ChatHypic(client=client))
        assert ADA not in again.chat.registry
        again.invoke("Who?")
        assert ADA in again.chat.registry

    def test_it_searches_its_store(self, made):
        made.upsert([Document(ADA, id="1"), Document(TOMAS, id="2")])
        assert len(made.invoke("Who?")) == 2
        assert [one.id for one in asyncio.run(made.aget(["2"]))] == ["2"]


class TestTransformer:
    def test_progress_and_a_second_time_for_nothing(self, chat, client, worker):
        seen = []
        taking_in = HypicSegmentTransformer(chat, on_progress=seen.append)
        documents = [Document(text) for text in DOCUMENTS.values()]
        stamped = taking_in.transform_documents(documents)
        assert {one.metadata["hypic_segment_id"] for one in stamped} == ids(*DOCUMENTS.values())
        num = len(ids(*DOCUMENTS.values()))
        assert (seen[-1].num_texts, seen[-1].num_created, seen[-1].num_warm) == (num, num, num)
        counts = [report.num_warm for report in seen]
        assert counts == sorted(counts)
        taking_in.transform_documents(documents)
        assert (seen[-1].num_created, seen[-1].num_warm, seen[-1].computed_tokens) == (0, num, 0)
        assert asyncio.run(taking_in.atransform_documents(documents)) == stamped


class TestRetriever:
    def test_how_many(self, chat):
        wrapped = RunnableLambda(lambda query: [Document(ADA), Document(TOMAS)])
        assert len(HypicSegmentRetriever(retriever=wrapped, chat=chat, k=1).invoke("Who?")) == 1
        retriever = HypicSegmentRetriever(retriever=wrapped, chat=chat)
        assert len(retriever.invoke("Who?")) == 2
        assert len(retriever.invoke("Who?", None, k=1)) == 1
        assert len(asyncio.run(retriever.ainvoke("Who?", None, k=1))) == 1


class TestPlaceholder:
    PROMPT = ChatPromptTemplate.from_messages(
        [
            ("system", "Briefly."),
            SegmentsPlaceholder(
                "context",
                then="{question}",
                document_prompt=PromptTemplate.from_template("[{n}] {page_content} (end)"),
            ),
        ]
    )

    def test_documents_are_segments_wherever_they_stand(self, chat):
        documents = [Document(text, metadata={"n": n}) for n, text in enumerate((ADA, TOMAS))]
        chain = self.PROMPT | chat
        statuses = []
        for order in (documents, documents[::-1]):
            reply = chain.invoke({"context": order, "question": "Where?"})
            statuses.append([one["status"] for one in reply.response_metadata["hypic"]["segments"]])
        assert statuses == [["cold", "cold"], ["hit", "hit"]]

    def test_other_models_read_the_same_text(self):
        [_, message] = self.PROMPT.format_messages(
            context=[Document(f" {ADA}\n", metadata={"n": 1})], question="Where?"
        )
        assert message.text == f"[1]  {ADA.strip()}\n (end)\n\nWhere?"
        [before, segment, after] = message.content
        assert segment["extras"] == {"hypic": {"segment_id": segment_id(ADA.strip())}}
        assert (before["text"], after["text"]) == ("[1]  ", "\n (end)\n\nWhere?")

    def test_variables_texts_and_nothing(self):
        place = SegmentsPlaceholder("context", role="system", optional=True)
        assert (self.PROMPT.input_variables, place.input_variables) == (["context", "question"], [])
        assert place.format_messages() == []
        assert place.format_messages(context="one text")[0].type == "system"
        with pytest.raises(ValueError, match="int"):
            place.format_messages(context=[1])
        with pytest.raises(KeyError):
            self.PROMPT.invoke({"question": "Where?"})

    @pytest.mark.parametrize("html", [False, True])
    def test_it_is_shown_with_the_prompt(self, html):
        shown = self.PROMPT.pretty_repr(html=html)
        for told in ("Segments Placeholder", "context", "question"):
            assert told in shown
        alone = ChatPromptTemplate.from_messages([SegmentsPlaceholder("papers")])
        assert "{papers}" in alone.pretty_repr()


class TestHandler:
    def test_what_a_retriever_and_a_tool_find_is_known(self, chat):
        class Shelf(InMemoryVectorStore):
            pass

        store = Shelf(DeterministicFakeEmbedding(size=8))
        store.add_documents([Document(ADA)])
        handler = HypicCallbackHandler(chat)
        store.as_retriever().invoke("Who?", {"callbacks": [handler]})
        assert ADA in chat.registry
        result = ToolMessage("found", tool_call_id="1", artifact=[Document(TOMAS), "else"])
        handler.on_tool_end(result, run_id=None)
        handler.on_tool_end("text", run_id=None)
        assert TOMAS in chat.registry

    def test_what_has_no_registry_is_refused_at_once(self):
        # core would log it at each call, and the documents would never be known
        with pytest.raises(TypeError, match="FakeListChatModel"):
            HypicCallbackHandler(FakeListChatModel(responses=["said"]))


class TestLLM:
    def test_all_ways_tell_the_same(self, client):
        llm = HypicLLM(client=client)
        llm.registry.add(ADA)
        prompt = f"Read: {ADA}\nWhere? "

        async def ask() -> tuple[str, str]:
            chunks = [chunk async for chunk in llm.astream(prompt)]
            return await llm.ainvoke(prompt), "".join(chunks)

        said = {llm.invoke(prompt), "".join(llm.stream(prompt)), *asyncio.run(ask())}
        assert said == {"a town"}
        [[one], [two]] = llm.generate([prompt, "Who? "]).generations
        assert [use["status"] for use in one.generation_info["hypic"]["segments"]] == ["hit"]
        assert one.generation_info["usage_metadata"]["input_token_details"]["cache_read"] > 0
        assert two.generation_info["hypic"]["auto_segments"] == 0

    def test_without_known_texts_the_prompt_is_plain(self, client):
        llm = HypicLLM(client=client, auto_segment=False)
        llm.registry.add(ADA)
        [[one]] = llm.generate([ADA]).generations
        assert one.generation_info["hypic"]["segments"] == []


@pytest.mark.parametrize("made", [ChatHypic, HypicLLM])
def test_tokens_are_counted_by_the_server(client, made):
    model = made(client=client)
    assert model.get_token_ids("a town") == list(client.tokenize(prompt="a town").tokens)
    assert (model.get_num_tokens("a town"), model.get_token_ids("")) == (2, [])


@pytest.mark.parametrize("made", [ChatHypic, HypicLLM])
def test_models_are_written_without_their_secrets_and_read_again(made):
    model = made(
        api_key="a secret key", base_url="http://there", max_tokens=7, hypic={"mode": "off"}
    )
    assert "a secret key" not in dumps(model) + repr(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # core says, once in a process, that loading is in beta
        same = load(
            dumpd(model),
            secrets_map={"HYPIC_API_KEY": "a secret key"},
            valid_namespaces=["hypic_sdk"],
            allowed_objects=[made],
        )
    assert same.model_dump() == model.model_dump()


def loaded(statement: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", statement], cwd=REPOSITORY, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_agents_without_their_package_say_which_extra():
    blocked = (
        "import sys; sys.modules['langchain'] = None; sys.modules['langchain.agents'] = None\n"
    )
    run = loaded(blocked + "from hypic_sdk.integrations.langchain import HypicSegmentMiddleware")
    assert run.returncode != 0
    assert "pip install 'hypic-sdk[agents]'" in run.stderr.strip().splitlines()[-1]
    assert loaded(blocked + "from hypic_sdk.integrations.langchain import *").returncode == 0


def test_the_adapter_loads_no_torch():
    run = loaded(
        "import sys, hypic_sdk.integrations.langchain; sys.stdout.write(' '.join(sys.modules))"
    )
    assert not set(run.stdout.split()) & {"torch", "transformers", "langchain", "tokenizers"}
    assert re.search(r"\blangchain_core\b", run.stdout)


def test_a_local_engine_forgets_too():
    with LocalHypic.scripted() as local:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
        made = HypicSegmentIndex(store=store, chat=ChatHypic(client=local), warm="none")
        made.upsert([Document(ADA, id="1"), Document(TOMAS, id="2")])
        local.segments.delete(segment_id(TOMAS.strip()))  # gone already: no mistake
        made.delete(["1", "2"])
        assert local.segments.list().data == []


class TestGivingUp:
    """Whoever no longer wants an answer ends the request in the engine, with either client."""

    @pytest.fixture(params=["waiting", "on a loop"])
    def slow(self, request, worker: PushingWorker) -> Iterator[ChatHypic]:
        worker.pause_s, worker.reply = 0.02, [65] * 300
        with serve_fake(worker) as url, Hypic(url) as client:
            chat = (
                ChatHypic(client=client) if request.param == "waiting" else ChatHypic(base_url=url)
            )
            yield chat.model_copy(update={"max_tokens": 300})

    def test_leaving_an_asynchronous_stream(self, slow, worker):
        async def leave() -> None:
            async with aclosing(slow.astream("Where?")) as stream:
                await anext(stream)
            await slow.aclose()

        asyncio.run(leave())
        until(lambda: worker.cancelled == [worker.last.request_id])

    def test_cancelling_a_task(self, slow, worker):
        async def cancel() -> None:
            asking = asyncio.create_task(slow.ainvoke("Where?"))
            while not worker.messages:
                await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await slow.aclose()

        asyncio.run(cancel())
        until(lambda: worker.cancelled)


def until(holds, timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come to hold"
        time.sleep(0.01)


def test_another_provider_gets_the_whole_text(chat, client):
    """In the middle of a chain: the prompt is cut inside the model, and nowhere else."""
    chat.registry.add(ADA)
    client.close()  # nobody answers any more
    told = []

    def other(prompt) -> str:
        told.append(prompt.to_string())
        return "said"

    prompt = ChatPromptTemplate.from_messages([("user", "Read:\n{text}\nWhere?")])
    chain = prompt | chat.with_fallbacks([RunnableLambda(other)])
    assert chain.invoke({"text": ADA}) == "said"
    assert f"Read:\n{ADA}\nWhere?" in told[0]
