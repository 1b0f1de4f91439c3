"""The demo model is asked in the very tokens that it was trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.prompts import PieceTokenizer, PromptEncoder
from hypic_sdk.demo.questions import make_example
from hypic_sdk.demo.worlds import WorldSpec
from hypic_sdk.prompt.chat_template import ChatTemplate
from hypic_sdk.prompt.memory_catalog import MemoryCatalog
from hypic_sdk.prompt.segment import Role, segment_id
from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.service import Service
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.parse import parse
from tests.prompt import tiny
from tests.service.fake_worker import FakeWorker

TOKENIZER = PromptTokenizer.from_folder(reader_path())
TEMPLATE = ChatTemplate.from_folder(reader_path(), TOKENIZER)
TRAINED = PromptEncoder(PieceTokenizer(reader_path()))


def service(worker: FakeWorker) -> Service:
    return Service(
        tokenizer=TOKENIZER,
        template=TEMPLATE,
        catalog=MemoryCatalog(TOKENIZER.encode_text, TOKENIZER.fingerprint),
        worker=worker,
        model_name="reader",
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_turns", [1, 3])
def test_a_chat_over_documents_is_a_training_prompt(seed, num_turns):
    example = make_example(WorldSpec(3, 60, num_questions=num_turns), seed)
    example = replace(example, glue=("\n\n",) * 3, questions=example.questions[:num_turns])
    trained = TRAINED.encode(example)
    messages = [] if example.system is None else [{"role": "system", "content": example.system}]
    for question in example.questions:
        messages.append({"role": "user", "content": question.text})
        messages.append({"role": "assistant", "content": question.answer})
    documents = [{"text": text} for text in example.documents]
    worker = FakeWorker()
    service(worker).chat(parse(ChatRequest, {"messages": messages[:-1], "documents": documents}))
    prompt = worker.last.prompt
    assert prompt.token_ids == tuple(trained.tokens[: trained.answers[-1].start].tolist())
    inner = [part for part in prompt.parts if part.role is Role.INNER]
    assert [part.segment_id for part in inner] == list(map(segment_id, example.documents))
    for number, part in enumerate(inner):
        assert part.token_ids == tuple(trained.tokens[trained.documents == number].tolist())


@given(text=tiny.texts)
@settings(max_examples=50)
def test_its_tokenizer_gives_back_any_text_and_makes_no_control_token(text):
    ids = TOKENIZER.encode_text(text)
    assert TOKENIZER.decode(ids) == text
    assert TOKENIZER.control_ids.isdisjoint(ids)


@given(number=st.sampled_from(sorted(TOKENIZER.control_ids)))
@settings(max_examples=20)
def test_its_control_tokens_are_plain_text_to_callers(number):
    ids = TOKENIZER.encode_text(TOKENIZER.token_text(number))
    assert TOKENIZER.control_ids.isdisjoint(ids)
    assert TOKENIZER.encode_template(TOKENIZER.token_text(number)).token_ids == (number,)
