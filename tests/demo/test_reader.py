"""The shipped folder: sizes, loading, equality with transformers, and the library's answers."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.evaluate import load_reader, score
from hypic_sdk.demo.evaluation_data import pack_all
from hypic_sdk.demo.library import DOCUMENTS, GLUE, QUESTIONS, SYSTEM, LibraryQuestion
from hypic_sdk.demo.prompts import MIN_SEGMENT_TOKENS, PieceTokenizer, PromptEncoder
from hypic_sdk.demo.questions import Example, Question
from hypic_sdk.demo.reader_model import Layout, Reader

MIB = 2**20


@pytest.fixture(scope="module")
def tokenizer() -> PieceTokenizer:
    return PieceTokenizer(reader_path())


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(reader_path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def own() -> Reader:
    return load_reader(reader_path(), "cpu")


def test_sizes() -> None:
    shards = sorted(reader_path().glob("*.safetensors"))
    index = json.loads((reader_path() / "model.safetensors.index.json").read_text())
    assert {shard.name for shard in shards} == set(index["weight_map"].values())
    assert all(shard.stat().st_size <= 16 * MIB for shard in shards)
    assert sum(shard.stat().st_size for shard in shards) <= 46 * MIB
    config = json.loads((reader_path() / "config.json").read_text())
    assert config["vocab_size"] == 8192
    assert config["max_position_embeddings"] >= 8192


def test_number_of_parameters(model: torch.nn.Module) -> None:
    assert sum(weight.numel() for weight in model.parameters()) <= 24_000_000


def test_own_module_equals_transformers(
    model: torch.nn.Module, tokenizer: PieceTokenizer, own: Reader
) -> None:
    tokens = torch.tensor(tokenizer.callers([DOCUMENTS["ada"]]))
    positions = torch.arange(tokens.shape[1])[None]
    with torch.no_grad():
        got = own.logits(own(tokens, Layout.of(torch.zeros_like(tokens), positions)))
        wanted = model(tokens).logits
    assert (got - wanted).norm() <= 1e-4 * wanted.norm()


def test_chat_template() -> None:
    template = AutoTokenizer.from_pretrained(reader_path())
    turns = [
        {"role": "system", "content": " S "},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "x", "reasoning_content": "r"},
    ]
    start = (
        "<|im_start|>system\n S <|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template.apply_chat_template(turns, tokenize=False) == (
        f"{start}<think>\nr\n</think>\n\nx<|im_end|>\n"
    )
    again = template.apply_chat_template(
        [*turns, {"role": "user", "content": "q"}], tokenize=False, add_generation_prompt=True
    )
    assert again == f"{start}x<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"


def test_library_documents_are_long_enough_to_keep(tokenizer: PieceTokenizer) -> None:
    for name, ids in zip(DOCUMENTS, tokenizer.callers(list(DOCUMENTS.values())), strict=True):
        assert MIN_SEGMENT_TOKENS <= len(ids) <= 300, name


def prompt(question: LibraryQuestion, tokenizer: PieceTokenizer) -> list[int]:
    ids = tokenizer.template("<|im_start|>system\n") + tokenizer.callers([SYSTEM])[0]
    ids += tokenizer.template("<|im_end|>\n<|im_start|>user\n")
    for name in question.documents:
        document, glue = tokenizer.callers([DOCUMENTS[name], GLUE])
        ids += document + glue
    asked = tokenizer.callers([question.text])[0]
    return ids + asked + tokenizer.template("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.text)
def test_the_reader_answers_the_library(
    question: LibraryQuestion, model: torch.nn.Module, tokenizer: PieceTokenizer
) -> None:
    ids = torch.tensor([prompt(question, tokenizer)])
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=24, do_sample=False)  # type: ignore[operator]
    assert tokenizer.decode(out[0, ids.shape[1] :].tolist()) == question.answer


def orders(question: LibraryQuestion) -> list[tuple[str, ...]]:
    """Some orders of a question's documents; what updates another stays behind it."""
    found = itertools.permutations(question.documents)
    kept = [o for o in found if "news" not in o or o.index("ada") < o.index("news")]
    return list(dict.fromkeys((kept[0], kept[-1], kept[len(kept) // 2])))


@pytest.mark.parametrize("mode", ["full", "composed"])
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.text)
def test_the_library_is_answered_in_every_order(
    question: LibraryQuestion, mode: str, tokenizer: PieceTokenizer, own: Reader
) -> None:
    encoder = PromptEncoder(tokenizer)
    asked = (Question(question.text, question.answer, "one_hop"),)
    for order in orders(question):
        documents = tuple(DOCUMENTS[name] for name in order)
        example = Example(SYSTEM, documents, (GLUE,) * len(order), asked)
        scored = score(own, pack_all([encoder.encode(example)], 1, 64), mode, "cpu")
        assert [right for _, right in scored] == [True], order


def test_the_package_loads_no_torch() -> None:
    code = (
        "import sys, hypic_sdk.demo, hypic_sdk.demo.worlds, hypic_sdk.demo.library;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
