"""What other servers offer and this one does not is refused by name, never passed over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.errors import UnsupportedOption
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.not_offered import OF_ALL, OF_CHAT, OF_COMPLETIONS
from hypic_sdk.wire.parse import parse
from tests.service.services import saying, service

BODIES = {
    ChatRequest: {"messages": [{"role": "user", "content": "Q"}]},
    CompletionRequest: {"prompt": "Q"},
}
TABLES = {ChatRequest: {**OF_ALL, **OF_CHAT}, CompletionRequest: {**OF_ALL, **OF_COMPLETIONS}}
FIELDS = [(face, name) for face, table in TABLES.items() for name in table]
ASKED_FOR = {
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "include_stop_str_in_output": True,
    "skip_special_tokens": False,
    "use_beam_search": True,
    "length_penalty": 1.5,
    "truncate_prompt_tokens": 10,
}
ASKED_OF_CHAT = {
    "echo": True,
    "chat_template": "x",
    "add_generation_prompt": False,
    "continue_final_message": True,
    "add_special_tokens": True,
}
CASES = [
    *((face, name, value) for face in BODIES for name, value in ASKED_FOR.items()),
    *((ChatRequest, name, value) for name, value in ASKED_OF_CHAT.items()),
    (CompletionRequest, "add_special_tokens", False),
]


def unsupported(face: type[Any], **fields: Any) -> list[str]:
    return list(parse(face, {**BODIES[face], **fields}).unsupported())


@pytest.mark.parametrize(("face", "name", "value"), CASES)
def test_a_wish_that_is_not_granted_is_refused_before_the_worker(face, name, value):
    worker = saying("x")
    asked = service(worker)
    answer = asked.chat if face is ChatRequest else asked.complete
    with pytest.raises(UnsupportedOption, match=name) as caught:
        answer(parse(face, {**BODIES[face], name: value}))
    assert caught.value.details["param"] == name
    assert not worker.messages


@pytest.mark.parametrize(("face", "name"), FIELDS)
def test_what_is_done_anyway_may_be_asked_for(face, name):
    for value in (None, *TABLES[face][name]):
        assert unsupported(face, **{name: value}) == []


@pytest.mark.parametrize(("face", "name"), FIELDS)
@given(value=st.integers() | st.booleans() | st.text() | st.lists(st.integers(), min_size=1))
def test_any_other_value_is_named(face, name, value):
    neutral = TABLES[face][name]
    same = any(value == one and type(value) is type(one) for one in neutral)
    assert unsupported(face, **{name: value}) == ([] if same else [name])


@given(name=st.from_regex(r"x_[a-z_]{1,20}", fullmatch=True), value=st.integers() | st.text())
def test_unknown_fields_stay_ignored(name, value):
    for face in BODIES:
        assert unsupported(face, **{name: value}) == []
