"""Numbers from the host to a device without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def upload(
    numbers: torch.Tensor | Sequence[int] | Sequence[Sequence[int]], device: torch.device
) -> torch.Tensor:
    """The same numbers on `device`.

    To a CUDA device they go through pinned memory, which torch keeps until the copy is done: a copy
    from pageable memory would wait for all that the stream still has to do.

    Args:
        numbers: a tensor on the host, of any dtype, or integers, which become int64.
    """
    host = numbers if isinstance(numbers, torch.Tensor) else torch.tensor(numbers).long()
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)
