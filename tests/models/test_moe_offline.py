"""A folder of a routed-experts model, as transformers saves it, answers like the packaged one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk.config import EngineConfig, ReuseConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.offline import LocalHypic
from tests.models.oracle import image_text_moe_model, next_model, save

DOCUMENTS = ["Ada was born in Paris and lives there.", "Bob works at Acme, which is in London."]
ASK = [{"role": "user", "content": "Where was Ada born?"}]


@pytest.mark.parametrize("make", [image_text_moe_model, next_model])
def test_a_folder_answers_and_its_documents_are_reused(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    vocab_size = json.loads((reader_path() / "config.json").read_text())["vocab_size"]
    save(make(vocab_size=vocab_size), tmp_path)
    for path in reader_path().glob("tokenizer*"):
        (tmp_path / path.name).symlink_to(path)
    # a random model that is sampled: equal seeds make equal answers
    wish = {"do_sample": True, "temperature": 0.7, "eos_token_id": [5, 7]}
    (tmp_path / "generation_config.json").write_text(json.dumps(wish))
    config = EngineConfig(
        device="cpu",
        reuse=ReuseConfig(min_segment_tokens=1),
        store=StoreConfig(budget_bytes=32 << 20, expected_segment_tokens=64),
    )
    with LocalHypic(tmp_path, config=config) as hypic:
        cold, warm = (
            hypic.chat.completions.create(messages=ASK, documents=DOCUMENTS, max_tokens=8, seed=3)
            for _ in range(2)
        )
    assert cold.choices[0].message.content == warm.choices[0].message.content
    assert cold.usage.completion_tokens == warm.usage.completion_tokens > 0
    assert warm.usage.prompt_tokens_details.cached_tokens > 0
