"""The poison must reach the package's memory, and nothing else."""

from __future__ import annotations

import pytest
import torch

ALLOCATIONS = [
    "torch.empty(3, 2)",
    "torch.empty_like(torch.ones(3, 2))",
    "torch.ones(1).new_empty(3, 2)",
    "torch.empty_strided((3, 2), (2, 1))",
    "torch.empty(3, 2, dtype=torch.bfloat16)",
]


def allocated(source: str, module: str) -> torch.Tensor:
    """The value of `source`, evaluated as code of `module`."""
    return eval(source, {"torch": torch, "__name__": module})


@pytest.mark.parametrize("source", ALLOCATIONS)
def test_fresh_memory_of_the_package_is_nan(source):
    assert allocated(source, "hypic_sdk.store.slab").isnan().all()
    assert allocated(source, "hypic_sdk").isnan().all()


@pytest.mark.parametrize("source", ALLOCATIONS)
def test_memory_of_others_is_left_alone(source):
    torch.full((64, 64), 3.0)  # what fresh memory may hold
    for _ in range(20):
        assert not allocated(source, "hypic_sdk_elsewhere").isnan().all()


def test_integers_are_left_alone():
    memory = allocated("torch.empty(3, dtype=torch.int64)", "hypic_sdk.store.slab")
    assert memory.shape == (3,)


def test_fla_is_hidden():
    with pytest.raises(ImportError):
        __import__("fla")


def test_poisoned_memory_still_obeys_the_default_device():
    with torch.device("meta"):
        assert torch.empty(3).device.type == "meta"
        assert torch.zeros(3).device.type == "meta"
