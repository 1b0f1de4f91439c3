"""A real model of hardly any size, for what is about many documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hypic_sdk.config import EngineConfig, ReuseConfig, SeamRule, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.reader_model import Reader, ReaderConfig
from hypic_sdk.offline import LocalHypic

_SIZES = ReaderConfig(
    hidden_size=32,
    intermediate_size=32,
    num_layers=2,
    full_layers=(1,),
    num_heads=1,
    num_kv_heads=1,
    head_dim=16,
    rotary_dim=8,
    num_key_heads=1,
    num_value_heads=1,
    key_dim=16,
    value_dim=16,
)


@contextmanager
def tiny_local(folder: Path) -> Iterator[LocalHypic]:
    """Random weights under the demo model's tokenizer; room for ten thousand short documents."""
    torch.manual_seed(0)
    save_reader(Reader(_SIZES), reader_path(), folder)
    config = EngineConfig(
        device="cpu",
        reuse=ReuseConfig(min_segment_tokens=1, seam=SeamRule(2, 0)),
        store=StoreConfig(budget_bytes=160 << 20, expected_segment_tokens=32),
    )
    with LocalHypic(folder, config=config) as local:
        yield local
