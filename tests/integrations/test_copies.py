"""Models of both adapters: copied, sent to another process, made with names that nobody reads."""

from __future__ import annotations

import asyncio
import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField
from llama_index.core.base.llms.types import ChatMessage

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import RequestError
from hypic_sdk.integrations.langchain import ChatHypic, HypicLLM
from hypic_sdk.integrations.llama_index import Hypic
from hypic_sdk.wire.models import ModelAbilities, ModelList, ModelObject
from tests.integrations.recording import Recording

MODELS = [ChatHypic, HypicLLM, Hypic]
HERE, THERE = "http://127.0.0.1:9", "http://127.0.0.1:10"
ADA = DOCUMENTS["ada"]

every_model = pytest.mark.parametrize("made", MODELS)


@every_model
@pytest.mark.parametrize("name", ["openai_api_base", "api_base", "temprature", "n", "model_name"])
def test_a_name_that_nobody_reads_is_refused(made: type, name: str):
    with pytest.raises(
        ValueError, match=f"{made.__name__} has no {name}; it has model, .*base_url"
    ):
        made(base_url=HERE, **{name: 1})


@every_model
class TestCopies:
    def test_one_shares_what_is_known_and_the_connections(self, made: type):
        model = made(base_url=HERE, hypic={"mode": "off"}, stop=["x"])
        calls = model.calls()
        deep = copy.deepcopy(model)
        for one in (model.model_copy(update={"max_tokens": 3}), copy.copy(model), deep):
            one.registry.add(ADA)
            assert ADA in model.registry
            model.registry.discard(ADA)
            assert one.calls() is calls
        deep.hypic["mode"] = "pic"
        deep.stop.append("y")
        assert (model.hypic, model.stop) == ({"mode": "off"}, ["x"])
        model.close()

    def test_one_with_another_address_goes_there(self, made: type):
        model = made(base_url=HERE, max_retries=0)
        model.calls()
        other = model.model_copy(update={"base_url": THERE})
        for changed in (other, model):
            changed.base_url = THERE
            with pytest.raises(Exception, match=r"127\.0\.0\.1:10"):
                changed.calls().models.list()
        model.close()

    def test_one_over_a_given_client(self, made: type):
        model = made(client=Recording())
        assert copy.deepcopy(model).calls() is model.client
        with pytest.raises(TypeError, match="this process only"):
            pickle.dumps(model)

    @pytest.mark.parametrize("is_used", [False, True])
    def test_another_process_connects_anew(self, made: type, is_used: bool):
        model = made(base_url=HERE, api_key="a key", max_tokens=7, hypic={"mode": "off"})
        if is_used:
            model.registry.add(ADA)
            model.calls()
        again = pickle.loads(pickle.dumps(model))
        assert (again.base_url, again.max_tokens, again.hypic) == (HERE, 7, {"mode": "off"})
        assert again.api_key.get_secret_value() == "a key"
        assert (ADA in again.registry, again.calls() is model.calls()) == (False, False)
        model.close()
        again.close()


def test_a_model_that_is_configured_for_a_call_connects_once():
    """Core makes another model of it for each call."""
    chat = ChatHypic(base_url=HERE)
    asked = chat.configurable_fields(max_tokens=ConfigurableField(id="max_tokens"))
    made = [asked.prepare({"configurable": {"max_tokens": at}})[0] for at in (3, 4)]
    assert [one.max_tokens for one in made] == [3, 4]
    assert {id(one.calls()) for one in made} == {id(chat.calls())}
    chat.close()


def test_a_copy_over_another_server_asks_it_for_its_model():
    def server(window: int) -> SimpleNamespace:
        able = ModelAbilities(
            reuse_mode="any", seam="8", min_segment_tokens=64, max_context_tokens=window, chat=True
        )
        listed = ModelList(data=[ModelObject(id="model", created=0, hypic=able)])
        return SimpleNamespace(models=SimpleNamespace(list=lambda: listed))

    llm = Hypic(client=server(100))
    assert llm.metadata.context_window == 100
    assert llm.model_copy(update={"client": server(200)}).metadata.context_window == 200
    assert llm.model_copy(update={"max_tokens": 3}).metadata.context_window == 100


class TestSeveralReplies:
    """As many as were asked for, or none: what is paid for and thrown away helps nobody."""

    def asked(self, call: Any) -> None:
        client = Recording()
        with pytest.raises(RequestError, match="one reply"):
            call(client)
        assert client.requests == []

    @pytest.mark.parametrize("made", [ChatHypic, HypicLLM])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_langchain_has_them_all(self, made: type, is_async: bool):
        asked = ["Where?", "Who?"] if made is HypicLLM else [[HumanMessage("Where?")]]
        with LocalHypic.scripted() as local:
            model = made(client=local, max_tokens=5)
            if is_async:
                told = asyncio.run(model.agenerate(asked, n=2))
            else:
                told = model.generate(asked, n=2)
        assert [len(several) for several in told.generations] == [2] * len(asked)
        assert all(one.text for several in told.generations for one in several)

    @pytest.mark.parametrize("made", [ChatHypic, HypicLLM])
    def test_a_stream_has_room_for_one(self, made: type):
        self.asked(lambda client: list(made(client=client).stream("Where?", n=2)))

    @pytest.mark.parametrize("call", ["chat", "stream_chat", "complete", "stream_complete"])
    def test_llama_index_has_room_for_one(self, call: str):
        prompt: Any = [ChatMessage("Where?")] if "chat" in call else "Where?"

        def ask(client: Recording) -> None:
            llm = Hypic(client=client, is_chat_model=True)
            said = getattr(llm, call)(prompt, n=2)
            if "stream" in call:
                list(said)

        self.asked(ask)
