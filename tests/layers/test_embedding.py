from __future__ import annotations

import pytest
import torch

from hypic_sdk.layers.embedding import LMHead, TokenEmbedding
from tests.closeness import assert_close
from tests.layers.filled import filled, rows


def test_embedding_gives_one_row_a_token() -> None:
    embedding = filled(TokenEmbedding(9, 5, dtype=torch.float32))
    ids = torch.tensor([3, 0, 8, 3])
    assert torch.equal(embedding(ids), embedding.weight[[3, 0, 8, 3]])


@pytest.mark.parametrize("num_rows", [0, 1, 15, 16, 17])
@pytest.mark.parametrize("row_independent", [False, True])
def test_head_takes_any_number_of_rows(num_rows: int, row_independent: bool) -> None:
    head = filled(LMHead(21, 5, dtype=torch.float64))
    hidden = rows(num_rows, 5)
    logits = head(hidden, row_independent=row_independent)
    assert logits.shape == (num_rows, 21)
    if num_rows:
        assert_close("logits", logits, hidden @ head.weight.T, rel_rms=1e-14)


@pytest.mark.parametrize(
    ("dtype", "logits"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_logits_are_never_narrow(dtype: torch.dtype, logits: torch.dtype) -> None:
    head = filled(LMHead(21, 5, dtype=dtype))
    assert head(rows(3, 5, dtype=dtype), row_independent=False).dtype == logits


def test_a_tied_head_shares_the_parameter() -> None:
    embedding = TokenEmbedding(9, 5, dtype=torch.float32)
    head = LMHead(9, 5, dtype=torch.float32, tied_to=embedding)
    filled(embedding)
    assert head.weight is embedding.weight
