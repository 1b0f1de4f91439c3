"""Seeds, poisoned scratch memory, markers that skip with a reason, the device that tests run on."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from torch.utils._device import _device_constructors

# Transformers resolves its linear attention once, at its first import: with fla importable and no
# GPU it takes fla and fails at the first forward.
sys.modules["fla"] = None  # type: ignore[assignment]

if not torch.cuda.is_available():
    # read by triton when a kernel is defined: kernels then run on the CPU, one program at a time
    os.environ.setdefault("TRITON_INTERPRET", "1")

PACKAGE = "hypic_sdk"

# no deadline: a busy machine is no fault of an example; the same examples in every run
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow as well")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with the reason, what this machine or this call leaves out."""
    num_gpus = torch.cuda.device_count()
    lacking = {
        "gpu": "needs a CUDA device, found none" if num_gpus < 1 else None,
        "multi_gpu": f"needs 2 CUDA devices, found {num_gpus}" if num_gpus < 2 else None,
        "slow": None if config.getoption("--slow") else "slow: run with --slow",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason is not None and item.get_closest_marker(marker) is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """The same numbers in every test, whatever ran before it."""
    random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _poisoned_memory() -> Iterator[None]:
    """Fresh float memory that the package asks for is NaN: an element never written is seen."""
    # `with torch.device(...)` knows constructors by identity and remembers them at its first use:
    # it must not remember the ones below, or it would leave everything on the CPU
    _device_constructors()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", _poisoning(torch.empty))
        patch.setattr(torch, "empty_like", _poisoning(torch.empty_like))
        patch.setattr(torch, "empty_strided", _poisoning(torch.empty_strided))
        patch.setattr(torch.Tensor, "new_empty", _poisoning(torch.Tensor.new_empty))
        yield


def _poisoning(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(allocate)
    def poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:
        memory = allocate(*args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.split(".")[0] == PACKAGE and memory.is_floating_point():
            with torch.no_grad():
                memory.fill_(float("nan"))
        return memory

    return poisoned


@pytest.fixture(scope="session")
def device() -> torch.device:
    """A CUDA device where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
