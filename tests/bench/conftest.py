"""What several benches are tried on."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.demo import reader_path
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.reader_model import Reader, ReaderConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A folder with random weights: quick, and says nothing right."""
    torch.manual_seed(1)
    config = ReaderConfig(
        hidden_size=48, intermediate_size=64, num_layers=4, full_layers=(2,), num_heads=2,
        num_kv_heads=1, head_dim=16, rotary_dim=8, num_key_heads=1, num_value_heads=2, key_dim=8,
        value_dim=12,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    save_reader(Reader(config), reader_path(), folder)
    return str(folder)
