"""Models inside whatever core puts around a model: documents are known to them all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
)

from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations.langchain import ChatHypic, HypicLLM, create_segment_documents_chain
from hypic_sdk.integrations.langchain.wrapped import registries_in
from tests.integrations.recording import Recording

ADA, TOMAS = DOCUMENTS["ada"], DOCUMENTS["tomas"]
PROMPT = ChatPromptTemplate.from_messages([("user", "{context}\n{input}")])
INPUTS: dict[str, Any] = {"context": [Document(ADA), Document(TOMAS)], "input": "Where?"}
SCHEMA = {"title": "place", "type": "object", "properties": {}}

Wrap = Callable[[Any], Runnable[Any, Any]]


def other() -> FakeListChatModel:
    return FakeListChatModel(responses=["another"])


def asking(model: Any) -> Callable[[Any], Any]:
    def ask(prompt: Any) -> Any:
        return model.invoke(prompt)

    return ask


WRAPS: dict[str, Wrap] = {
    "bound": lambda model: model.bind(stop=["zz"]).with_config(tags=["x"]),
    "retried": lambda model: model.with_retry(),
    "with fallbacks": lambda model: model.with_fallbacks([other()]),
    "a fallback itself": lambda model: RunnableLambda(failing).with_fallbacks([model]),
    "retried, with fallbacks": lambda model: model.with_retry().with_fallbacks([other()]),
    "configurable": lambda model: model.configurable_fields(
        max_tokens=ConfigurableField(id="max_tokens")
    ).with_config(configurable={"max_tokens": 7}),
    "one of several": lambda model: (
        other()
        .configurable_alternatives(ConfigurableField(id="model"), default_key="other", ours=model)
        .with_config(configurable={"model": "ours"})
    ),
    "the first of several": lambda model: model.configurable_alternatives(
        ConfigurableField(id="model"), default_key="ours", other=other
    ),
    "with a parser": lambda model: model | StrOutputParser(),
    "beside others": lambda model: (
        RunnableParallel(ours=model, other=other()) | (lambda said: said["ours"])
    ),
    "on a branch": lambda model: RunnableBranch((lambda _: True, model), other()),
    "in a function": lambda model: RunnableLambda(asking(model)),
}


def failing(prompt: Any) -> AIMessage:
    raise ConnectionFailed("nobody there")


@pytest.mark.parametrize("made", [ChatHypic, HypicLLM])
@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS.keys())
def test_documents_are_segments(wrap: Wrap, made: type):
    client = Recording()
    chain = create_segment_documents_chain(wrap(made(client=client)), PROMPT)
    assert chain.invoke(INPUTS) == "On the Ash."
    request = client.requests[-1]
    content = request["prompt"] if made is HypicLLM else request["messages"][0]["content"]
    assert [part["text"] for part in content if part["type"] == "segment"] == [ADA, TOMAS]


def test_answers_of_a_schema():
    chat = ChatHypic(client=Recording())
    asked = chat.with_structured_output(SCHEMA, include_raw=True)
    chain = create_segment_documents_chain(asked, PROMPT, output_parser=RunnableLambda(dict))
    raw = chain.invoke(INPUTS)["raw"]
    assert raw.response_metadata["hypic"]["auto_segments"] == 2


def test_each_of_two_models_knows_them():
    nobody = ChatHypic(client=Recording(error=ConnectionFailed("nobody there")))
    second = ChatHypic(client=Recording())
    answering = create_segment_documents_chain(nobody.with_fallbacks([second]), PROMPT)
    assert answering.invoke(INPUTS) == "On the Ash."
    assert ADA in nobody.registry
    assert ADA in second.registry


def test_a_registry_that_two_models_share_is_told_once():
    chat = ChatHypic(client=Recording())
    copied = chat.model_copy(update={"max_tokens": 3})
    assert registries_in(chat.with_fallbacks([copied])) == (chat.registry,)


@pytest.mark.parametrize("foreign", [other(), RunnableLambda(lambda prompt: "said"), None])
def test_where_there_is_none(foreign: Any):
    assert registries_in(foreign) == ()
