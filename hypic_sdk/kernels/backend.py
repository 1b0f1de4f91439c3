"""Which implementation of an op runs on a device, and why: decided once per op and device type.

Kernels serve CUDA devices only, those in Triton only where it can be imported; everything else runs
the plain torch reference.  No environment variable and no global switch takes part.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

import torch

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


# set within `picked_choices` alone
_PICKED: ContextVar[dict[str, Choice] | None] = ContextVar("picked", default=None)


@contextlib.contextmanager
def picked_choices() -> Iterator[dict[str, Choice]]:
    """What `select` picks in this block and thread, by op; the last choice of each."""
    picked: dict[str, Choice] = {}
    token = _PICKED.set(picked)
    try:
        yield picked
    finally:
        _PICKED.reset(token)


class Choice(NamedTuple):
    """An implementation of an op, and why it was taken."""

    implementation: str  # "torch" for the definition; "triton" or "library" for a kernel
    reason: str
    run: Callable[..., Any]


def select(
    op: str,
    reference: F,
    load_kernel: Callable[[], F] | None,
    *,
    device: torch.device,
    needs_triton: bool = True,
    unfit: str = "",
) -> F:
    """The implementation of `op` for tensors on `device`.

    Args:
        reference: the plain torch definition; runs anywhere.
        load_kernel: imports the op's `kernel` module and returns its entry; called only on a CUDA
            device with Triton, so that the package works without it.  None: there is no kernel.
        needs_triton: whether the kernel is written in Triton; else it is a torch library's.
        unfit: why the kernel that there is can not take these inputs; empty: it can.
    """
    choice = choose(op, reference, load_kernel, device.type, needs_triton, unfit)
    picked = _PICKED.get()
    if picked is not None:
        picked[op] = choice
    return cast("F", choice.run)


def unfit_in_fp32(dtype: torch.dtype) -> str:
    """Why a kernel that computes in fp32 can not take a dtype, for `select`; empty: it can."""
    return "its kernel takes 32 bits or fewer" if dtype == torch.float64 else ""


@functools.cache
def choose(
    op: str,
    reference: Callable[..., Any],
    load_kernel: Callable[[], Callable[..., Any]] | None,
    device_type: str,
    needs_triton: bool = True,
    unfit: str = "",
) -> Choice:
    """As `select`, with the reason; logs it the first time it is asked."""
    choice = _decide(reference, load_kernel, device_type, needs_triton, unfit)
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
    needs_triton: bool,
    unfit: str,
) -> Choice:
    if load_kernel is None:
        return Choice("torch", "the op has no kernel", reference)
    if device_type != "cuda":
        return Choice("torch", f"kernels run on cuda, not on {device_type}", reference)
    if unfit:
        return Choice("torch", unfit, reference)
    if not needs_triton:
        return Choice("library", "a cuda device, and torch has this product", load_kernel())
    if importlib.util.find_spec("triton") is None:
        return Choice("torch", "triton is not installed", reference)
    return Choice("triton", "a cuda device with triton", load_kernel())
