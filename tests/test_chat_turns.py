"""A chat over cached documents, turn by turn: only what stands behind the last common border runs.

Over the packaged model, with its own template, which drops the reasoning of earlier turns, and with
one that keeps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.offline import LocalHypic
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.wire.replies import ChatCompletion
from hypic_sdk.wire.shorthand import chat_request

TEXTS = [DOCUMENTS[name] for name in ("ada", "norwick", "clock", "lantern")]
CONFIG_FILE = "tokenizer_config.json"
OF_EARLIER_TURNS = " and loop.index0 > ns.last_user"
REASONING = "The lantern document is the one to look at."
OPENING = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Where does Ada Lindqvist live?"},
]


def said(reply: ChatCompletion, reasoning: str | None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": reply.choices[0].message.content,
        **({} if reasoning is None else {"reasoning_content": reasoning}),
    }


def called() -> list[dict[str, Any]]:
    """A turn of the model's own in which it reasons and calls, and what came of it."""
    function = {"name": "look_up", "arguments": '{"town": "Norwick"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "reasoning_content": REASONING, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Norwick lies on the Sorel."},
    ]


@pytest.fixture(scope="module", params=["drops", "keeps"])
def local(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[LocalHypic]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    for path in reader_path().iterdir():
        if path.name != CONFIG_FILE:
            (folder / path.name).symlink_to(path)
    config = json.loads((reader_path() / CONFIG_FILE).read_text())
    if request.param == "keeps":
        assert OF_EARLIER_TURNS in config["chat_template"]
        config["chat_template"] = config["chat_template"].replace(OF_EARLIER_TURNS, "")
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    with LocalHypic(folder) as local:
        yield local


@pytest.fixture
def fresh(local: LocalHypic) -> LocalHypic:
    """An empty store with the documents in it."""
    assert local.worker is not None
    local.worker.call(lambda engine: engine.clear())
    local.segments.create_many(TEXTS, warm="wait")
    return local


def prompt_of(local: LocalHypic, messages: list[dict[str, Any]]) -> SegmentedPrompt:
    request = chat_request(messages, {"documents": TEXTS})
    return local.service.prepare_chat(request).message.prompt


def ask(local: LocalHypic, messages: list[dict[str, Any]], **options: Any) -> ChatCompletion:
    return local.chat.completions.create(
        messages=messages, documents=TEXTS, max_tokens=12, **options
    )


def last_common_border(earlier: SegmentedPrompt, later: SegmentedPrompt) -> int:
    """The last border of the earlier prompt up to which both have the same tokens."""
    pairs = zip(earlier.token_ids, later.token_ids, strict=False)
    common = next((i for i, (a, b) in enumerate(pairs) if a != b), earlier.num_tokens)
    return max(border.position for border in earlier.borders if border.position <= common)


@pytest.mark.parametrize("reasoning", [None, REASONING], ids=["plain", "reasoning"])
@pytest.mark.parametrize("session", [None, "s"])
def test_the_next_turn_computes_what_stands_behind_the_last_common_border(
    fresh: LocalHypic, reasoning: str | None, session: str | None
) -> None:
    options = {} if session is None else {"hypic": {"session_id": session}}
    first = ask(fresh, OPENING, **options)
    turns = [*OPENING, said(first, reasoning), {"role": "user", "content": "Where is Norwick?"}]
    border = last_common_border(prompt_of(fresh, OPENING), later := prompt_of(fresh, turns))
    second = ask(fresh, turns, **options)
    assert second.cache is not None
    # with a session the reply itself may be gone on from; without one the question is the end
    assert (second.cache.prefix_tokens or 0) >= border > prompt_of(fresh, OPENING).num_tokens / 2
    if session is None:
        assert second.cache.prefix_tokens == border
    assert second.cache.live_tokens == later.num_tokens - (second.cache.prefix_tokens or 0)
    assert second.cache.cold_tokens == 0


@pytest.mark.parametrize("session", [None, "s"])
def test_reasoning_that_is_dropped_again_goes_back_to_the_border_before_it(
    fresh: LocalHypic, session: str | None
) -> None:
    """Within a turn the template shows it; in the next one it is gone, or it is still there."""
    options = {} if session is None else {"hypic": {"session_id": session}}
    ask(fresh, OPENING, **options)
    within = [*OPENING, *called()]
    reply = ask(fresh, within, **options)
    after = [*within, said(reply, None), {"role": "user", "content": "Where is Norwick?"}]
    later = prompt_of(fresh, after)
    border = last_common_border(prompt_of(fresh, within), later)
    third = ask(fresh, after, **options)
    assert third.cache is not None
    assert (third.cache.prefix_tokens or 0) >= border
    assert third.cache.live_tokens == later.num_tokens - (third.cache.prefix_tokens or 0)


def test_after_a_full_recompute_of_the_same_prompt_the_tokens_are_those_of_an_empty_store(
    fresh: LocalHypic,
) -> None:
    options = {"logprobs": True, "top_logprobs": 3}
    assert fresh.worker is not None
    told = []
    for is_first in (True, False):
        fresh.worker.call(lambda engine: engine.clear())
        if not is_first:
            ask(fresh, OPENING, hypic={"mode": "off"})
        told.append(ask(fresh, OPENING, **options).choices[0])
    assert told[0] == told[1]
