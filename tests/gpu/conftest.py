"""What went wrong on the device is told in the test that did it; one thread for the CPU's side."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _device_errors_are_told(device: torch.device) -> Iterator[None]:
    yield
    if device.type == "cuda":
        torch.cuda.synchronize()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
