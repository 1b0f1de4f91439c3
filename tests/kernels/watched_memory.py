"""Every address that a kernel touches in interpreter mode, held against its arguments.

A load whose value nobody uses changes no number, and may still end a process on a device: what is
read or written is therefore looked at itself.  Allowed are the elements of the tensors that a
launch is given, as their sizes and strides say, and not what lies between or behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder
from triton.tools.tensor_descriptor import TensorDescriptor

Addresses = np.ndarray[Any, np.dtype[np.uint64]]

# as the interpreter has them: a watch within another takes its place
_ARGUMENTS = GridExecutor._init_args_hst
_LOAD, _STORE = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store


def ranges(tensor: torch.Tensor) -> tuple[Addresses, Addresses]:
    """Of the bytes of all elements: where each stretch of them starts, and where it stops."""
    starts = np.full(min(1, tensor.numel()), tensor.data_ptr(), dtype=np.uint64)
    num_bytes = tensor.itemsize
    axes = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, size in axes:
        step = stride * tensor.itemsize
        if step == num_bytes and len(starts) <= 1:
            num_bytes *= size  # another axis of the one stretch
        elif stride and size > 1:
            along = np.arange(size, dtype=np.uint64) * np.uint64(step)
            starts = (starts[:, None] + along).reshape(-1)
    return starts, starts + np.uint64(num_bytes)


class Held:
    """Tensors by their addresses; they may overlap."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        none = np.zeros(0, np.uint64)
        found = [(none, none), *map(ranges, tensors)]
        starts, stops = (np.concatenate(side) for side in zip(*found, strict=True))
        order = np.argsort(starts)
        # nothing starts before the first stretch, and nothing stops behind zero
        self._starts = np.concatenate([np.zeros(1, np.uint64), starts[order]])
        # how far the stretches reach that start no later
        reach = np.maximum.accumulate(stops[order])
        self._stops = np.concatenate([np.zeros(1, np.uint64), reach])

    def have(self, addresses: Addresses) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the addresses are in a tensor."""
        return addresses < self._stops[np.searchsorted(self._starts, addresses, "right") - 1]


@contextmanager
def watched(
    forbidden: Sequence[torch.Tensor] = (), lent: Sequence[torch.Tensor] = ()
) -> Iterator[None]:
    """Fail before a kernel touches what it was not given: AssertionError, in InterpreterError.

    Args:
        forbidden: views of what it was given and must not touch either, rows of nobody for one.
        lent: what it was not given and may touch.
    """
    never, given = Held(forbidden), Held(())

    def arguments(self: Any, args: Any, kwargs: Any) -> Any:
        nonlocal given
        found = _ARGUMENTS(self, args, kwargs)
        values = [*found[0], *found[1].values()]
        values = [x.base if isinstance(x, TensorDescriptor) else x for x in values]
        given = Held([*lent, *(x for x in values if isinstance(x, torch.Tensor))])
        return found

    def look(what: str, pointers: Any, mask: Any) -> None:
        touched = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        num_strange = int((~given.have(touched) | never.have(touched)).sum())
        kind = pointers.get_element_ty()
        assert not num_strange, f"{what} {num_strange} elements of {kind} that are not its own"

    def watched_load(self: Any, pointers: Any, mask: Any, *others: Any, **named: Any) -> Any:
        look("loads", pointers, mask)
        return _LOAD(self, pointers, mask, *others, **named)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        look("stores", pointers, mask)
        return _STORE(self, pointers, value, mask, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "_init_args_hst", arguments)
        patch.setattr(InterpreterBuilder, "create_masked_load", watched_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", watched_store)
        yield
