"""Memory of the host from which numbers go to a device, taken once and used in turn."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

# a step may be composed while the copy of the one before it waits for the device; of the one before
# that everything was read
_IN_TURN = 2


@final
class Staging:
    """Vectors of one length, pinned where a CUDA device reads them.

    Pinning memory for every copy takes longer than filling it.
    """

    def __init__(self, length: int, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        count = _IN_TURN if self._is_cuda else 1
        self._vectors = [
            torch.zeros(length, dtype=torch.int64, pin_memory=self._is_cuda) for _ in range(count)
        ]
        self._arrays: list[Numbers] = [vector.numpy() for vector in self._vectors]
        self._sent: list[Any] = [None] * count  # event of the latest copy
        self._turn = 0

    def next(self) -> Numbers:
        """The vector whose turn it is, free to be written, with whatever stood in it before."""
        self._turn = (self._turn + 1) % len(self._vectors)
        event = self._sent[self._turn]
        if event is not None and not event.query():
            event.synchronize()
        return self._arrays[self._turn]

    def send(self, there: torch.Tensor) -> None:
        """Copy it to the device; nobody waits for that but who gets it in its next turn."""
        there.copy_(self._vectors[self._turn], non_blocking=True)
        if self._is_cuda:
            event = self._sent[self._turn] or torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event
