"""No prompt of an evaluation is lost, however it is made and packed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.demo import evaluate, evaluation_data, reader_path
from hypic_sdk.demo.evaluation_data import ARMS, arm_size, make_prompt, pack_all, prepare
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.initial import init_weights
from hypic_sdk.demo.prompts import Batch, Encoded, PackedAnswer, PieceTokenizer, PromptEncoder
from hypic_sdk.demo.questions import NOT_SAID, make_example
from hypic_sdk.demo.reader_model import Reader
from hypic_sdk.demo.relations import RELATIONS
from hypic_sdk.demo.train import TOY
from hypic_sdk.demo.worlds import WorldSpec
from hypic_sdk.errors import NumericsError

ENCODER = PromptEncoder(PieceTokenizer(reader_path()))


def test_every_arm_has_exactly_its_prompts() -> None:
    prepared = prepare(reader_path(), 4, ARMS, rows=4)
    for arm in ARMS:
        answers = [a for batch in prepared[arm.name] for a in batch.answers]
        counts = [a.num_documents for a in answers]
        size = arm_size(arm, 4)
        if arm.kind.startswith("closed_"):
            assert counts == [0] * size
        else:
            assert sorted(counts) == sorted(n for n in arm.counts for _ in range(size))


def test_many_processes_make_the_same_prompts() -> None:
    arms = [replace(arm, counts=(2,)) for arm in ARMS[:3]]
    for name, batches in prepare(reader_path(), 5, arms, rows=2, workers=2).items():
        for one, other in zip(batches, prepare(reader_path(), 5, arms, rows=2)[name], strict=True):
            assert np.array_equal(one.tokens, other.tokens)
            assert one.answers == other.answers


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(20, 400), min_size=1, max_size=12),
    rows=st.integers(1, 4),
    length=st.sampled_from((64, 512, 2048)),
)
def test_packing_drops_nothing(sizes: list[int], rows: int, length: int) -> None:
    encoded = [
        ENCODER.encode(make_example(WorldSpec(1 + i % 3, size), i)) for i, size in enumerate(sizes)
    ]
    packed = pack_all(encoded, rows, length)
    assert sum(len(b.answers) for b in packed) == sum(len(e.answers) for e in encoded)
    got = sorted(b.tokens[b.example >= 0].sum() for b in packed)
    assert sum(got) == sum(int(e.tokens.sum()) for e in encoded)


def test_a_dropped_prompt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluation_data.pack_stream

    def lossy(examples: Iterator[Encoded], rows: int, length: int) -> Iterator[Batch]:
        next(examples)
        return whole(examples, rows, length)

    monkeypatch.setattr(evaluation_data, "pack_stream", lossy)
    encoded = [ENCODER.encode(make_example(WorldSpec(1, 40), seed)) for seed in range(3)]
    with pytest.raises(NumericsError, match="of"):
        pack_all(encoded, 2, 512)


@given(seed=st.integers(0, 500), arm=st.sampled_from(ARMS))
def test_prompts_are_what_their_arm_says(seed: int, arm: evaluation_data.Arm) -> None:
    example = make_prompt(arm, arm.counts[0], seed)
    assert example == make_prompt(arm, arm.counts[0], seed)
    (question,) = example.questions
    if arm.kind.startswith("closed_"):
        assert example.documents == ()
        assert (question.answer == NOT_SAID) == (arm.kind == "closed_silent")
    else:
        assert len(example.documents) == arm.counts[0]
        assert question.kind == arm.kind


@given(seed=st.integers(0, 300))
def test_known_words_are_those_of_statement_and_question(seed: int) -> None:
    arm = ARMS[0]
    (question,) = make_prompt(arm, 2, seed).questions
    relation = RELATIONS[question.relation]
    if all(map(relation.knows, (*relation.held_statements, *relation.held_questions))):
        assert question.known_words
    encoded = ENCODER.encode(make_prompt(arm, 2, seed))
    (answer,) = pack_all([encoded], 1, 64)[0].answers
    assert answer.known_words == question.known_words


def test_both_kinds_of_words_are_told_apart() -> None:
    kinds = {make_prompt(ARMS[0], 2, index).questions[0].known_words for index in range(40)}
    assert kinds == {True, False}


def test_a_row_counts_what_it_says() -> None:
    answers = [PackedAnswer(0, i, i + 1, "one_hop", 2 + 2 * (i % 2), i % 2) for i in range(8)]
    one = evaluate.row("an arm", "full", [(a, i % 4 != 0) for i, a in enumerate(answers)])
    assert (one["n"], one["em"]) == (8, 75.0)
    assert one["by_documents"] == {"2": 50.0, "4": 100.0}
    assert one["by_words"]["known"]["n"] == 8
    mixed = [(replace(a, known_words=i < 2), i < 3) for i, a in enumerate(answers)]
    by_words = evaluate.row("an arm", "full", mixed)["by_words"]
    assert (by_words["known"]["n"], by_words["known"]["em"]) == (2, 100.0)
    assert (by_words["new"]["n"], by_words["new"]["em"]) == (6, 16.67)


def test_the_report_names_commit_and_recipe(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reader = Reader(TOY)
    init_weights(reader, 1)
    save_reader(reader, reader_path(), tmp_path / "reader")
    flags = ["--quick", "--commit", "abc1234", "--recipe", "train it", "--workers", "1"]
    report = tmp_path / "metrics.json"
    assert evaluate.main(["--model", str(tmp_path / "reader"), "--json", str(report), *flags]) == 0
    content: dict[str, Any] = json.loads(report.read_text())
    assert content["recipe"] == "train it"
    assert "commit abc1234" in content["machine"]
    assert {row["n"] for row in content["rows"]} == {16}
    assert len(content["transition_norms"]) == 3
