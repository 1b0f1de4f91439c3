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


def addresses(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Of every element, in bytes."""
    offsets = np.zeros((1,) * max(1, tensor.ndim), dtype=np.uint64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        along = np.arange(size, dtype=np.uint64) * np.uint64(stride * tensor.itemsize)
        offsets = offsets + along.reshape([-1 if a == axis else 1 for a in range(tensor.ndim)])
    return np.unique(offsets) + np.uint64(tensor.data_ptr())


@contextmanager
def watched(forbidden: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Fail before a kernel touches what it was not given: AssertionError, in InterpreterError.

    Args:
        forbidden: views of what it was given and must not touch either, rows of nobody for one.
    """
    never = np.concatenate([np.zeros(0, np.uint64), *map(addresses, forbidden)])
    given = never[:0]
    make_arguments = GridExecutor._init_args_hst
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def arguments(self: Any, args: Any, kwargs: Any) -> Any:
        nonlocal given
        found = make_arguments(self, args, kwargs)
        tensors = [x for x in (*found[0], *found[1].values()) if isinstance(x, torch.Tensor)]
        given = np.concatenate([np.zeros(0, np.uint64), *map(addresses, tensors)])
        given = given[~np.isin(given, never)]
        return found

    def look(what: str, pointers: Any, mask: Any) -> None:
        active = np.broadcast_to(mask.data, pointers.data.shape)
        strange = pointers.data[active][~np.isin(pointers.data[active], given)]
        kind = pointers.get_element_ty()
        assert not strange.size, f"{what} {strange.size} elements of {kind} that are not its own"

    def watched_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        look("loads", pointers, mask)
        return load(self, pointers, mask, *others)

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        look("stores", pointers, mask)
        return store(self, pointers, value, mask, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GridExecutor, "_init_args_hst", arguments)
        patch.setattr(InterpreterBuilder, "create_masked_load", watched_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", watched_store)
        yield
