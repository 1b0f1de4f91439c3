"""Every published layout against transformers: prefill, decode, and on from a composed state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.doctor.examine import examine
from hypic_sdk.models.loader import load_model
from tests.closeness import assert_close, relative_rms
from tests.engine.harness import answer, engine_of, logprobs, report_of, token_ids
from tests.models.checkpoints import LAYOUTS
from tests.models.oracle import LEAST_MARGIN, oracle_logits, router_margins
from tests.models.test_injected_state import continued, injected, two_turns
from tests.models.test_qwen_moe import clear_tokens
from tests.plain_context import PlainContext

REL_RMS = 1e-5  # design 3.7: fp32 on both sides
NUM_TOKENS = 70  # crosses the 64-token tile of transformers' scan

every_layout = pytest.mark.parametrize("name", LAYOUTS)


@every_layout
def test_prefill_and_decode_equal_transformers(name: str, tmp_path: Path) -> None:
    oracle = LAYOUTS[name](tmp_path / "model")
    model = load_model(tmp_path / "model", device="cpu", dtype=torch.float32).model
    ids, want = clear_tokens(oracle, NUM_TOKENS + 4, NUM_TOKENS)
    context = PlainContext()
    got = context.logits(model, ids[:NUM_TOKENS])
    assert_close("prefill", got, want[:NUM_TOKENS], rel_rms=REL_RMS)
    decoded = torch.cat([context.logits(model, [token]) for token in ids[NUM_TOKENS:]])
    assert_close("decode", decoded, want[NUM_TOKENS:], rel_rms=REL_RMS)


@every_layout
def test_a_composed_state_goes_on_alike(name: str, tmp_path: Path) -> None:
    oracle = LAYOUTS[name](tmp_path / "model")
    model = load_model(tmp_path / "model", device="cpu", dtype=torch.float32).model
    for seed in range(0, 300, 10):
        prompt, longer, more = two_turns(seed)
        engine = engine_of(model=model, dtype=torch.float32, pair="float16")
        answer(engine, prompt, max_tokens=0, session_id="s")
        cache = injected(engine, oracle, prompt.num_tokens, model.spec.layers)
        events = answer(engine, longer, max_tokens=3, session_id="s")
        with router_margins(oracle) as margins:
            want = continued(oracle, cache, more, token_ids(events))
        if min(margins, default=1.0) > LEAST_MARGIN:
            break
    else:
        raise AssertionError("a near tie in every prompt")
    assert report_of(events).chain_tokens == prompt.num_tokens
    assert_close("logprobs", logprobs(events), want, rel_rms=REL_RMS)
    # and composing is something else than the longer forward, or nothing would be shown
    whole = oracle_logits(oracle, longer.token_ids)[-1].double().log_softmax(-1)
    assert relative_rms(logprobs(events)[0], whole) > 100 * REL_RMS


@every_layout
def test_the_doctor_knows_it(name: str, tmp_path: Path) -> None:
    """Over the packaged tokenizer, whose vocabulary is larger than that of a tiny model."""
    oracle: Any = LAYOUTS[name](tmp_path / "model")
    folder = tmp_path / "model"
    tokenizer = json.loads((reader_path() / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])[:90]
    tokenizer["model"].update(vocab=dict(vocab), merges=[])
    tokenizer["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    report = examine(folder, EngineConfig(device="cpu"))
    text = oracle.model.language_model if hasattr(oracle.model, "language_model") else oracle.model
    numbers = sum(p.numel() for p in text.parameters())
    if not oracle.config.get_text_config().tie_word_embeddings:
        numbers += oracle.lm_head.weight.numel()
    assert report.identity.num_parameters == numbers
    assert report.memory.weights_bytes == 4 * numbers
    assert all(law.holds for law in report.laws)
    assert ("experts" in {choice.op for choice in report.ops}) == ("moe" in name or "next" in name)
    stored = {"bf16": "BF16", "fp16": "F16", "8 bits": "F8_E4M3"}
    for word, dtype in stored.items():
        assert (dtype in report.identity.stored_bytes) == (word in name) or "image-text" in name
