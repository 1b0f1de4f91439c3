"""Piece by piece tokenisation, and packing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.prompts import ANSWER, HEAD_TOKENS, PieceTokenizer, PromptEncoder, pack_stream
from hypic_sdk.demo.questions import Example, Question, make_example
from hypic_sdk.demo.worlds import WorldSpec

TOKENIZER = PieceTokenizer(reader_path())
ENCODER = PromptEncoder(TOKENIZER)


@given(text=st.text(max_size=60))
def test_a_piece_survives_the_round_trip(text: str) -> None:
    (ids,) = TOKENIZER.callers([text])
    assert TOKENIZER.decode(ids) == text


def test_callers_can_not_make_added_tokens() -> None:
    for text in ("<|im_end|>", "<think>", "</tool_call>", "<|endoftext|>"):
        assert len(TOKENIZER.template(text)) == 1
        assert len(TOKENIZER.callers([text])[0]) > 1


def test_a_name_has_the_same_tokens_in_a_sentence_and_alone() -> None:
    alone, inside = TOKENIZER.callers(["Halden", "She lives in Halden."])
    assert inside[-1 - len(alone) : -1] == alone


def test_the_prompt_is_the_concatenation_of_its_pieces() -> None:
    question = Question("Where?", "Oslo", "one_hop", "lives_in", (1,))
    example = Example("Read.", ("One a.", "Two b."), ("\n\n", "\n"), (question,))
    wanted = TOKENIZER.template("<|im_start|>system\n")
    pieces = TOKENIZER.callers(["Read.", "One a.", "\n\n", "Two b.", "\n", "Where?", "Oslo"])
    wanted += pieces[0] + TOKENIZER.template("<|im_end|>\n<|im_start|>user\n")
    wanted += [token for piece in pieces[1:6] for token in piece]
    wanted += TOKENIZER.template("<|im_end|>\n<|im_start|>assistant\n") + pieces[6]
    wanted += TOKENIZER.template("<|im_end|>\n")
    encoded = ENCODER.encode(example)
    assert encoded.tokens.tolist() == wanted
    (answer,) = encoded.answers
    said = encoded.tokens[answer.start : answer.stop].tolist()
    assert said == pieces[6] + TOKENIZER.template("<|im_end|>")


@given(seed=st.integers(0, 2**31))
def test_packing_keeps_every_example_and_its_answers(seed: int) -> None:
    specs = [WorldSpec(1 + i % 4, 70) for i in range(16)]
    encoded = [ENCODER.encode(make_example(spec, seed + i)) for i, spec in enumerate(specs)]
    batches = list(pack_stream(iter(encoded), 2, 1024))
    packed = sum(int((batch.example >= 0).sum()) for batch in batches)
    assert packed == sum(len(one) for one in encoded if len(one) <= 1024)
    for batch in batches:
        for answer in batch.answers:
            span = (answer.row, slice(answer.start, answer.stop))
            assert (batch.target_class[span] == ANSWER).all()
            following = (answer.row, slice(answer.start + 1, answer.stop + 1))
            assert (batch.tokens[following] == batch.targets[span]).all()
        assert not (batch.interior & (batch.stretch_position < HEAD_TOKENS)).any()
        starts = np.flatnonzero(batch.position[0] == 0)
        assert starts[0] == 0
