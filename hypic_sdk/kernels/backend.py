"""Which implementation of an op runs on a device, and why: decided once per op and device type.

Triton serves CUDA devices only, and only where it can be imported; everything else runs the plain
torch reference.  No environment variable and no global switch takes part.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


class Choice(NamedTuple):
    """An implementation of an op, and why it was taken."""

    implementation: str  # "torch" or "triton"
    reason: str
    run: Callable[..., Any]


def select(
    op: str, reference: F, load_kernel: Callable[[], F] | None, *, device: torch.device
) -> F:
    """The implementation of `op` for tensors on `device`.

    Args:
        reference: the plain torch definition; runs anywhere.
        load_kernel: imports the op's `kernel` module and returns its entry; called only on a CUDA
            device with Triton, so that the package works without it.  None: there is no kernel.
    """
    return cast("F", choose(op, reference, load_kernel, device.type).run)


@functools.cache
def choose(
    op: str,
    reference: Callable[..., Any],
    load_kernel: Callable[[], Callable[..., Any]] | None,
    device_type: str,
) -> Choice:
    """As `select`, with the reason; logs it the first time it is asked."""
    choice = _decide(reference, load_kernel, device_type)
    logger.info(
        "selected op=%s device=%s implementation=%s reason=%s",
        op,
        device_type,
        choice.implementation,
        choice.reason,
    )
    return choice


def _decide(
    reference: Callable[..., Any],
    load_kernel: Callable[[], Callable[..., Any]] | None,
    device_type: str,
) -> Choice:
    if load_kernel is None:
        return Choice("torch", "the op has no kernel", reference)
    if device_type != "cuda":
        return Choice("torch", f"kernels run on cuda, not on {device_type}", reference)
    if importlib.util.find_spec("triton") is None:
        return Choice("torch", "triton is not installed", reference)
    return Choice("triton", "a cuda device with triton", load_kernel())
