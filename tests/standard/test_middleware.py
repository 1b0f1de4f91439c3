"""Agents of the `langchain` package, whose prompts are cut at what the middleware knows."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.tools import tool

from hypic_sdk import ConfigError, LocalHypic, RequestError
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import ChatHypic, HypicSegmentMiddleware

SKILL, MEMORY = DOCUMENTS["ada"], DOCUMENTS["tomas"]


@pytest.fixture
def chat() -> Iterator[ChatHypic]:
    with LocalHypic.scripted() as local:
        yield ChatHypic(client=local, max_tokens=400)


@tool
def look_up(name: str) -> str:
    """Look up what is known about somebody by name."""
    return DOCUMENTS["lantern"]


def segments(result: dict[str, Any]) -> list[list[str]]:
    """The statuses of each model call's segments."""
    reports = [
        message.response_metadata["hypic"] for message in result["messages"] if message.type == "ai"
    ]
    return [[one["status"] for one in report["segments"]] for report in reports]


def asked(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def test_skills_memory_and_tool_results_are_segments(chat, tmp_path: Path):
    memory = tmp_path / "memory.md"
    memory.write_text(MEMORY, encoding="utf-8")
    middleware = HypicSegmentMiddleware(texts=[SKILL], files=[memory, tmp_path / "not yet.md"])
    system = f"You help.\n\n{MEMORY}\n\n{SKILL}\n\nBe brief."
    agent = create_agent(chat, [look_up], system_prompt=system, middleware=[middleware])
    first = segments(agent.invoke(asked("look_up('Ada')")))
    assert first[0] == ["cold", "cold"]
    # the second call of the model has the tool's result as well
    assert len(first) == 2
    assert first[1][2:] == ["cold"]
    other = f"Other words.\n\n{SKILL}\n\n{MEMORY}"
    agent = create_agent(chat, [look_up], system_prompt=other, middleware=[middleware])
    second = segments(asyncio.run(agent.ainvoke(asked("Please look_up('Ada')"))))
    assert second[0] == ["hit", "hit"]
    assert second[1][2:] == ["hit"]
    # an edited file is another text, and the rest of the prompt is as it was
    memory.write_text(MEMORY + " He moved.", encoding="utf-8")
    agent = create_agent(
        chat, [], system_prompt=f"{MEMORY} He moved.\n\n{SKILL}", middleware=[middleware]
    )
    assert segments(agent.invoke(asked("Hello"))) == [["cold", "hit"]]


def test_a_system_prompt_without_known_texts_is_one_segment(chat):
    middleware = HypicSegmentMiddleware()
    agent = create_agent(chat, [], system_prompt=SKILL, middleware=[middleware])
    assert segments(agent.invoke(asked("Hello"))) == [["cold"]]
    assert segments(agent.invoke(asked("Hello again"))) in ([["hit"]], [["prefix"]])


@pytest.mark.parametrize("tool_results", [True, False])
def test_documents_of_a_retrievers_tool_are_segments_one_by_one(chat, tool_results):
    """Also where whole results are segments: in another order they would be other texts."""
    middleware = HypicSegmentMiddleware(tool_results=tool_results)
    found = [DOCUMENTS[name] for name in ("clock", "lantern")]

    @tool(response_format="content_and_artifact")
    def search(query: str) -> tuple[str, list[Document]]:
        """Search the library for documents."""
        return "\n\n".join(f"Source: {one}" for one in found), [*map(Document, found)]

    for turn in range(2):
        called = create_agent(chat, [search], middleware=[middleware]).invoke(asked("search('x')"))
        assert segments(called) == [[], ["hit" if turn else "cold"] * 2]
        found.reverse()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_model_that_is_wrapped(chat, asynchronous):
    agent = create_agent(
        chat.bind(stop=["zz"]).with_retry(), [], system_prompt=SKILL,
        middleware=[HypicSegmentMiddleware(unsupported="raise")],
    )  # fmt: skip
    called = asyncio.run(agent.ainvoke(asked("Hi"))) if asynchronous else agent.invoke(asked("Hi"))
    assert segments(called) == [["cold"]]


def test_a_file_that_is_no_text_is_named(chat, tmp_path: Path):
    (tmp_path / "skill.bin").write_bytes(b"\xff\xfe\x00")
    middleware = HypicSegmentMiddleware(files=[tmp_path / "skill.bin"])
    with pytest.raises(ConfigError, match=r"skill\.bin can not be read"):
        create_agent(chat, [], middleware=[middleware]).invoke(asked("Hi"))


def test_another_model_is_told_or_refused():
    fake = FakeListChatModel(responses=["x"] * 3)
    with pytest.warns(match="no ChatHypic"):
        create_agent(fake, [], middleware=[HypicSegmentMiddleware()]).invoke(asked("Hello"))
    refusing = HypicSegmentMiddleware(unsupported="raise")
    with pytest.raises(RequestError, match="FakeListChatModel"):
        create_agent(fake, [], middleware=[refusing]).invoke(asked("Hello"))
    silent = HypicSegmentMiddleware(unsupported="ignore")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        create_agent(fake, [], middleware=[silent]).invoke(asked("Hello"))
