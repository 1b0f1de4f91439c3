from __future__ import annotations

import pytest
import torch

from hypic_sdk.layers.linear import Linear
from tests.closeness import assert_close
from tests.layers.filled import filled, rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("row_independent", [False, True])
def test_linear_is_a_product_with_the_transposed_weight(bias: bool, row_independent: bool) -> None:
    layer = filled(Linear(7, 5, dtype=torch.float64, bias=bias))
    assert (layer.bias is not None) == bias
    x = rows(32, 7)
    want = torch.einsum("ld,nd->ln", x, layer.weight)
    if layer.bias is not None:
        want = want + layer.bias
    assert_close("linear", layer(x, row_independent=row_independent), want, rel_rms=1e-14)


def test_row_independence_is_asked_for_by_the_call() -> None:
    """Rows that are no multiple of 16 are our own mistake, and only where it matters."""
    layer = filled(Linear(7, 5, dtype=torch.float32))
    layer(rows(3, 7, dtype=torch.float32), row_independent=False)
    with pytest.raises(AssertionError, match="multiple of 16"):
        layer(rows(3, 7, dtype=torch.float32), row_independent=True)
