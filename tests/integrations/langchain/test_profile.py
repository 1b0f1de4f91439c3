"""What agents read of a model before they use it."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

import pytest
from langchain_core.exceptions import ModelConnectionError
from langchain_core.language_models.model_profile import ModelProfile

from hypic_sdk import Hypic, LocalHypic
from hypic_sdk.integrations.langchain import ChatHypic
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import serve_fake


@pytest.fixture
def url() -> Iterator[str]:
    worker = PushingWorker(tiny.tokenizer().encode_text("a town"))
    with serve_fake(worker) as url:
        yield url
    worker.join()


def test_what_is_true_of_any_model_stands_there_without_asking():
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # core warns of keys that it does not know
        chat = ChatHypic(base_url="http://127.0.0.1:9")
    assert chat.profile
    assert chat.profile.keys() <= ModelProfile.__annotations__.keys()
    assert (chat.profile["text_inputs"], chat.profile["image_inputs"]) == (True, False)
    assert chat.profile["structured_output"]
    assert "max_input_tokens" not in chat.profile


@pytest.mark.parametrize("is_async", [False, True])
def test_window_and_tools_are_the_servers_word(url: str, is_async: bool):
    async def load(chat: ChatHypic) -> ModelProfile:
        try:
            return await chat.aload_profile()
        finally:
            await chat.aclose()

    with Hypic(url) as client:
        [served] = client.models.list().data
    chat = ChatHypic(base_url=url)
    told = asyncio.run(load(chat)) if is_async else chat.load_profile()
    assert told is chat.profile
    assert told.get("max_input_tokens") == served.hypic.max_context_tokens
    assert told["tool_calling"] is told["tool_choice"] is served.hypic.tools
    assert (told["name"], told["text_inputs"]) == (served.id, True)
    chat.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_of_a_local_model(is_async: bool):
    with LocalHypic.scripted() as local:
        chat = ChatHypic(client=local)
        told = asyncio.run(chat.aload_profile()) if is_async else chat.load_profile()
    assert (told["name"], told["tool_calling"], told["max_input_tokens"]) == (
        "scripted",
        True,
        8192,
    )


def test_what_was_given_stays_until_the_server_says_otherwise():
    given = ModelProfile(reasoning_output=True, max_input_tokens=3)
    with LocalHypic.scripted() as local:
        chat = ChatHypic(client=local, profile=given)
        assert chat.profile == given
        told = chat.load_profile()
    assert (told["reasoning_output"], told["max_input_tokens"]) == (True, 8192)


def test_a_model_that_is_not_served_has_no_word_of_another(url: str):
    chat = ChatHypic(base_url=url, model="another")
    assert "max_input_tokens" not in chat.load_profile()
    chat.close()


def test_nobody_there():
    chat = ChatHypic(base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(ModelConnectionError):
        chat.load_profile()
    chat.close()
