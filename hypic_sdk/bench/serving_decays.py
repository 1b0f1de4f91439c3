"""Decays of random weights as training leaves them, so that T keeps what a trained model's keeps.

Were all heads fast, T would be nothing behind a segment, and no error in it would show.
"""

from __future__ import annotations

import math
from typing import Any

import torch

# a token's log decay in the slowest and in the fastest head
SLOWEST, FASTEST = 2**-14, 2**-1
RATES = (1.0, 16.0)  # exp(A_log)


def fill_decays(model: torch.nn.Module) -> None:
    """Give the heads of each linear layer a spread of decays, from slow to fast by equal ratios.

    A head's log decay of a token is -exp(A_log) softplus(x + dt_bias), with x, its row of the
    in-projection times the token, about normal under random weights: around the head's own, that
    is.  With the keys of such weights a third of the heads keep a transition of norm above 0.1 over
    1,024 tokens, as many as of the packaged reader do over its documents, and some over 4,096.
    """
    for module in model.modules():
        if hasattr(module, "A_log"):
            _fill(module.A_log, module.dt_bias)


def _fill(A_log: Any, bias: Any) -> None:
    slowest, fastest = math.log2(SLOWEST), math.log2(FASTEST)
    steps = torch.logspace(slowest, fastest, len(bias), base=2.0, dtype=torch.float64)
    rates = torch.empty(len(bias), dtype=torch.float64).uniform_(*RATES)
    A_log.copy_(rates.log())
    bias.copy_((steps / rates).expm1().log())
