"""Mutated tokenizer files: refused by type, or a tokenizer that still keeps its promises."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from hypic_sdk.errors import ModelFileError
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from tests.prompt import tiny

CONFIG = {"eos_token": "<|im_end|>", "bos_token": "<s>"}
TEXT = "The town of Norwick <|im_start|> lies, 日本 \n<think>"

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 300, 2**31, 2**32, 2**63, 2**64, 0.5]),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([1, "x"]),
    st.just({"type": "Nothing"}),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed; of long lists and vocabularies a few entries only."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in itertools.islice(items, 12):
            yield from places(inner, (*path, key))


@st.composite
def mutants(draw: st.DrawFn, file: dict[str, Any]) -> dict[str, Any]:
    mutant = json.loads(json.dumps(file))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from([p for p in places(mutant) if p]))
        owner = mutant
        for key in path[:-1]:
            owner = owner[key]
        kind = draw(st.integers(0, 3))
        if kind == 0:
            del owner[path[-1]]
        elif kind == 1 and isinstance(owner, list):
            owner.append(owner[path[-1]])
        else:
            # a copy: a second change may go into it
            owner[path[-1]] = copy.deepcopy(draw(junk))
    return mutant


@pytest.mark.parametrize("name", tiny.FILES)
@settings(max_examples=150)
@given(data=st.data())
def test_a_mutated_file_is_refused_by_type_or_works(name: str, data: st.DataObject) -> None:
    mutant = data.draw(mutants(tiny.FILES[name]()))
    try:
        tokenizer = PromptTokenizer(mutant, CONFIG)
        ids = tokenizer.encode_text(TEXT)
        tokenizer.encode_template(TEXT)
    except ModelFileError:
        event("refused")
        return
    event("works")
    assert tokenizer.control_ids.isdisjoint(ids)
    assert all(0 <= id_ < tokenizer.vocab_size for id_ in ids)
    tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["byte_level", "bos_by_processor"])
@settings(max_examples=100)
@given(data=st.data())
def test_so_is_a_mutated_config(name: str, data: st.DataObject) -> None:
    file = tiny.FILES.get(name, tiny.bos_by_processor)()
    fields = st.sampled_from(
        ["add_bos_token", "bos_token", "eos_token", "x_token", "chat_template"]
    )
    config = data.draw(st.dictionaries(fields, junk | st.just({"content": 1}), max_size=3))
    try:
        tokenizer = PromptTokenizer(file, config)
    except ModelFileError:
        return
    assert all(isinstance(value, str) for value in tokenizer.special_tokens.values())
