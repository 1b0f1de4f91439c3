"""Replies under a grammar are in its language, end where it ends, and trouble nobody else."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from hypic_sdk.demo import reader_path
from hypic_sdk.engine import grammars
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.grammars import GrammarBook, ReplyGrammar
from hypic_sdk.prompt.segment import SegmentedPrompt
from hypic_sdk.transport.messages import (
    FinishReason,
    Grammar,
    GrammarKind,
    SamplingParams,
    TokenEvent,
)
from tests.engine.harness import (
    answer,
    check_ended,
    check_idle,
    drain,
    engine_of,
    events_of,
    logprobs,
    request_of,
    token_ids,
)
from tests.engine.prompts import VOCAB, prompt_of, tokens
from tests.engine.spelling import CHARACTERS, NUM_SPECIAL, spelling_engine, text_of

DRAWN = SamplingParams(max_tokens=300, temperature=1.0, seed=1)


def regex(source: str) -> Grammar:
    return Grammar(GrammarKind.REGEX, source)


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def under(grammar: Grammar, **fields: Any) -> SamplingParams:
    return replace(DRAWN, grammar=grammar, **fields)


def prompt(seed: int = 5) -> SegmentedPrompt:
    return prompt_of(tokens(seed, 9))


def failed(engine: Engine, sampling: SamplingParams) -> dict:
    engine.submit(request_of(prompt(), sampling=sampling))
    last = drain(engine)[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert last.error is not None
    return last.error


def said(engine: Engine, sampling: SamplingParams) -> tuple[str, FinishReason | None]:
    events = answer(engine, prompt(), sampling=sampling)
    return text_of(token_ids(events)), events[-1].finish_reason


# -- schemas

leaves = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.tuples(st.integers(-99, 99), st.integers(0, 99)).map(
        lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
    ),
    st.integers(0, 6).map(lambda most: {"type": "string", "maxLength": most}),
    st.lists(st.sampled_from(["a", "b c", 'q"', 7, None, True]), min_size=1, max_size=3).map(
        lambda values: {"enum": values}
    ),
)


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def an_object(fields: dict[str, Any], num_required: int) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": fields,
            "required": sorted(fields)[:num_required],
            "additionalProperties": False,
        }

    names = st.sampled_from(["x", "name", "a b"])
    return st.one_of(
        st.builds(an_object, st.dictionaries(names, inner, max_size=3), st.integers(0, 3)),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 1)).map(
            lambda t: {"type": "array", "items": t[0], "minItems": t[2], "maxItems": t[1] + t[2]}
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
    )


schemas = st.recursive(leaves, combined, max_leaves=5)


def is_valid(value: Any, wanted: dict[str, Any]) -> bool:
    """The definition of the keywords that this family uses."""
    if "anyOf" in wanted:
        return any(is_valid(value, option) for option in wanted["anyOf"])
    if "enum" in wanted:
        return any(value == one and type(value) is type(one) for one in wanted["enum"])
    match wanted["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            return is_integer and wanted["minimum"] <= value <= wanted["maximum"]
        case "string":
            return isinstance(value, str) and len(value) <= wanted["maxLength"]
        case "array":
            return (
                isinstance(value, list)
                and wanted["minItems"] <= len(value) <= wanted["maxItems"]
                and all(is_valid(one, wanted["items"]) for one in value)
            )
    return (
        isinstance(value, dict)
        and set(wanted["required"]) <= set(value) <= set(wanted["properties"])
        and all(is_valid(one, wanted["properties"][name]) for name, one in value.items())
    )


@settings(max_examples=60)
@given(wanted=schemas, seed=st.integers(0, 2**31))
def test_a_reply_that_stops_under_a_schema_is_valid_for_it(wanted, seed):
    num_stopped = 0
    engine = ENGINE
    message = request_of(
        prompt(), sampling=under(schema(wanted), seed=seed), num_replies=3, reuse=False
    )
    engine.submit(message)
    events = events_of(drain(engine), message.request_id)
    for index in range(3):
        told = [event for event in events if event.reply_index == index]
        assert told[-1].error is None, (told[-1].error, wanted)
        if told[-1].finish_reason is FinishReason.STOP:
            num_stopped += 1
            text = text_of(token_ids(told))
            assert is_valid(json.loads(text), wanted), (text, wanted)
    NUM_STOPPED.append(num_stopped)


ENGINE = spelling_engine()
NUM_STOPPED: list[int] = []


def test_most_replies_of_the_family_stop():
    """Or the test above would prove little (it must have run)."""
    assert sum(NUM_STOPPED) > 0.9 * 3 * len(NUM_STOPPED) > 0


def test_any_object_is_an_object():
    for seed in range(5):
        text, finish = said(ENGINE, under(Grammar(GrammarKind.JSON), seed=seed, max_tokens=400))
        if finish is FinishReason.STOP:
            assert isinstance(json.loads(text), dict)
        assert text.startswith("{")


# -- other kinds, endings


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (regex("[ab]{3,5}c"), "[ab]{3,5}c"),
        (regex("x*"), "x*"),
        (Grammar(GrammarKind.LARK, 'start: ("yes" | "no") "!"{1,3}'), "(yes|no)!{1,3}"),
    ],
)
def test_a_reply_is_in_the_language(grammar, pattern, temperature):
    for seed in range(4):
        text, finish = said(ENGINE, under(grammar, seed=seed, temperature=temperature))
        assert finish is FinishReason.STOP
        assert re.fullmatch(pattern, text), text


def test_a_reply_ends_with_its_grammar_also_at_the_last_token():
    text, finish = said(ENGINE, under(regex("abc"), max_tokens=3))
    assert (text, finish) == ("abc", FinishReason.STOP)
    text, finish = said(ENGINE, under(regex("abc"), max_tokens=2))
    assert (text, finish) == ("ab", FinishReason.LENGTH)
    assert said(ENGINE, under(regex(""))) == ("", FinishReason.STOP)


def test_an_end_token_is_told_to_nobody_and_comes_only_where_the_grammar_accepts():
    bias = tuple((token_id, 100.0) for token_id in ENGINE.describe().spec.eos_token_ids)
    text, finish = said(ENGINE, under(regex("(ab)+"), logit_bias=bias))
    assert (text, finish) == ("ab", FinishReason.STOP)


def test_stop_tokens_count_as_end_tokens():
    stop = CHARACTERS.index("#") + NUM_SPECIAL
    bias = ((stop, 100.0),)
    sampling = under(regex("(ab)+"), logit_bias=bias, stop_token_ids=(stop,))
    assert said(ENGINE, sampling) == ("ab", FinishReason.STOP)
    # without being a stop token it is no part of the language
    assert "#" not in said(ENGINE, under(regex("(ab){1,9}"), logit_bias=bias))[0]


def test_min_tokens_under_a_grammar():
    """As long as the grammar can go on it must; where it can't, the reply ends all the same."""
    bias = tuple((token_id, 100.0) for token_id in ENGINE.describe().spec.eos_token_ids)
    sampling = under(regex("(ab)+"), logit_bias=bias, min_tokens=5)
    assert said(ENGINE, sampling) == ("ababab", FinishReason.STOP)
    assert said(ENGINE, under(regex("(ab)?"), min_tokens=5)) == ("ab", FinishReason.STOP)
    assert said(ENGINE, under(regex(""), min_tokens=5)) == ("", FinishReason.STOP)


# -- what goes wrong


@pytest.mark.parametrize(
    "grammar",
    [
        schema({"type": "nope"}),
        schema(False),
        Grammar(GrammarKind.JSON_SCHEMA, "{"),
        regex("("),
        Grammar(GrammarKind.LARK, "start: nothing"),
        regex("(a|b|ab)*" * 500),  # compiles only in the end, and not at all in time
        regex("a" * 200_000),
    ],
)
def test_a_grammar_that_can_not_compile_is_the_callers_error(grammar):
    error = failed(ENGINE, under(grammar))
    assert error["code"] == "invalid_grammar"
    assert error["details"]["kind"] == grammar.kind.value
    assert grammar.kind.value in error["message"]
    check_idle(ENGINE)


def test_a_dead_end_ends_the_request_with_a_typed_error():
    """No token spells the letter that must follow."""
    error = failed(ENGINE, under(regex("ab\N{LATIN SMALL LETTER E WITH ACUTE}")))
    assert error["code"] == "invalid_grammar"
    assert "after 2 tokens" in error["message"]
    check_idle(ENGINE)


def test_an_engine_without_a_tokenizer_offers_no_grammars():
    assert failed(engine_of(), under(regex("a")))["code"] == "unsupported_option"


def test_a_grammar_is_compiled_once():
    engine = spelling_engine()
    book = engine._door._grammars
    for seed in range(3):
        said(engine, under(regex("[a-z]{4}"), seed=seed))
    assert len(book._known) == 1
    for number in range(grammars.MAX_COMPILED + 3):
        said(engine, under(regex(f"a{number}")))
    assert len(book._known) == grammars.MAX_COMPILED


# -- neighbours


def free(seed: int) -> SamplingParams:
    return SamplingParams(12, temperature=1.3, seed=seed, ignore_eos=True, logprobs=VOCAB)


def together(engine: Engine, grammar: Grammar) -> tuple[list[TokenEvent], list[TokenEvent]]:
    """Events of a free request and of one under a grammar, side by side."""
    bound = request_of(prompt(6), sampling=under(grammar, seed=4))
    open_one = request_of(prompt(7), sampling=free(3))
    for message in (bound, open_one):
        engine.submit(message)
    events = drain(engine)
    for message in (bound, open_one):
        check_ended(events_of(events, message.request_id))
    return events_of(events, open_one.request_id), events_of(events, bound.request_id)


def test_neighbours_are_not_changed():
    alone = answer(spelling_engine(), prompt(7), sampling=free(3))
    bound_alone = answer(spelling_engine(), prompt(6), sampling=under(regex("[a-z ]{20}"), seed=4))
    beside, bound = together(spelling_engine(), regex("[a-z ]{20}"))
    assert token_ids(beside) == token_ids(alone)
    assert torch.equal(logprobs(beside), logprobs(alone))
    assert token_ids(bound) == token_ids(bound_alone)


def test_a_slow_mask_holds_up_its_own_reply_only(monkeypatch):
    """Masks that never come before they are let: the neighbour's tokens all come, one a step."""
    gate = threading.Event()
    begin = ReplyGrammar.take

    def slowly(self: ReplyGrammar, token_id: int) -> bool:
        is_over = begin(self, token_id)
        real, late = self._mask, Future()
        if not is_over:
            self._mask = late
            threading.Thread(target=lambda: (gate.wait(30), late.set_result(real.result()))).start()
        return is_over

    monkeypatch.setattr(ReplyGrammar, "take", slowly)
    want = answer(spelling_engine(), prompt(7), sampling=free(3))
    bound_want = said(spelling_engine_with(gate), under(regex("[a-z ]{20}"), seed=4))[0]
    gate.clear()
    engine = spelling_engine()
    bound = request_of(prompt(), sampling=under(regex("[a-z ]{20}"), seed=4))
    engine.submit(bound)
    events: list[TokenEvent] = []
    while not token_ids(events_of(events, bound.request_id)):
        events += engine.step()
    open_one = request_of(prompt(7), sampling=free(3))
    engine.submit(open_one)
    for _ in range(14):
        events += engine.step()
    beside = events_of(events, open_one.request_id)
    check_ended(beside)
    assert torch.equal(logprobs(beside), logprobs(want))
    assert len(token_ids(events_of(events, bound.request_id))) == 1
    gate.set()
    events += drain(engine)
    assert text_of(token_ids(events_of(events, bound.request_id))) == bound_want


def spelling_engine_with(gate: threading.Event) -> Engine:
    gate.set()
    return spelling_engine()


def test_a_slow_compilation_holds_up_nobody(monkeypatch):
    gate = threading.Event()
    compile_one = grammars.GrammarBook._compile

    def slowly(self, compilation):
        gate.wait(30)
        return compile_one(self, compilation)

    monkeypatch.setattr(grammars.GrammarBook, "_compile", slowly)
    engine = spelling_engine(max_requests=2)
    bound = request_of(prompt(), sampling=under(regex("abc")))
    gone = request_of(prompt(), sampling=under(regex("abcd")))
    for message in (bound, gone):
        engine.submit(message)
    for seed in range(3):
        message = request_of(prompt(seed), sampling=free(seed))
        engine.submit(message)
        events = [event for _ in range(14) for event in engine.step()]
        check_ended(events_of(events, message.request_id))
    engine.cancel(gone.request_id)
    (last,) = engine.step()
    assert last.error["code"] == "request_cancelled"
    gate.set()
    events = drain(engine)
    assert text_of(token_ids(events)) == "abc"


def test_a_compilation_that_never_ends_is_given_up_and_blocks_no_other(monkeypatch):
    gate = threading.Event()
    compile_one = grammars.GrammarBook._compile

    def stuck(self, compilation):
        if "never" in compilation.grammar.source:
            gate.wait(30)
        return compile_one(self, compilation)

    monkeypatch.setattr(grammars.GrammarBook, "_compile", stuck)
    monkeypatch.setattr(grammars, "COMPILE_TIMEOUT_S", 0.2)
    engine = spelling_engine()
    started_s = time.monotonic()
    queued = request_of(prompt(), sampling=under(regex("abcd")))
    engine.submit(request_of(prompt(), sampling=under(regex("never"))))
    engine.submit(queued)
    events = drain(engine)
    assert text_of(token_ids(events_of(events, queued.request_id))) == "abcd"
    error = failed(engine, under(regex("never")))
    assert error["code"] == "invalid_grammar"
    assert "0.2 s" in error["message"]
    assert said(engine, under(regex("abc"))) == ("abc", FinishReason.STOP)
    assert time.monotonic() - started_s < 10
    gate.set()


# -- a vocabulary with words of many letters


@settings(max_examples=40)
@given(wanted=schemas, seed=st.integers(0, 2**31))
def test_random_walks_over_a_real_vocabulary_spell_valid_texts(wanted, seed):
    """Any allowed token at each step, and an end token as soon as it may come."""
    draw = random.Random(seed)
    grammar = schema(wanted)
    compilation = READER_BOOK.begin(grammar)
    wait([compilation.result], timeout=30)
    assert compilation.error is None
    reply = READER_BOOK.start(compilation, ())
    said: list[int] = []
    for _ in range(200):
        reply.mask.result(timeout=30)
        bits = reply.allowed_bits(may_end=True)
        allowed = ((bits[:, None] >> torch.arange(32)) & 1).flatten().nonzero()[:, 0].tolist()
        assert allowed, (wanted, READER.decode(said))
        if READER_EOS in allowed:
            break
        said.append(draw.choice(allowed))
        if reply.take(said[-1]):
            break
    else:
        return
    assert is_valid(json.loads(READER.decode(said)), wanted), READER.decode(said)


READER = Tokenizer.from_file(str(reader_path() / "tokenizer.json"))
READER_EOS = 0
READER_BOOK = GrammarBook(
    (reader_path() / "tokenizer.json").read_text,
    vocab_size=READER.get_vocab_size(),
    eos_token_ids=[READER_EOS],
)
