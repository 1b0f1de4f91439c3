"""The trained model of the package goes through the same loader as any checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

import hypic_sdk.models.loader as loader
from tests.closeness import assert_close
from tests.models.oracle import Qwen3_5ForCausalLM, oracle_logits, token_ids
from tests.plain_context import PlainContext

READER = Path(loader.__file__).parents[1] / "demo" / "reader"


def test_the_reader_equals_transformers() -> None:
    model = loader.load_model(READER, device="cpu", dtype=torch.float32).model
    oracle = Qwen3_5ForCausalLM.from_pretrained(READER, dtype=torch.float32).eval()
    assert model.spec.vocab_size == oracle.config.vocab_size
    ids = token_ids(48, vocab_size=model.spec.vocab_size)
    got = PlainContext().logits(model, ids)
    # fp32 on both sides; they differ in the order of sums only
    assert_close("logits", got, oracle_logits(oracle, ids), rel_rms=1e-5)
