from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys

import pytest
import torch

from hypic_sdk.kernels import backend

DOORS = ("attention_inputs", "experts", "linear", "live_attention", "norm", "sample")


def reference() -> str:
    return "reference"


def kernel() -> str:
    return "kernel"


def load_kernel():
    return kernel


@pytest.fixture(autouse=True)
def _fresh_choices():
    backend.choose.cache_clear()
    yield
    backend.choose.cache_clear()


@pytest.fixture
def with_triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.fixture
def without_triton(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("with_triton")
def test_a_cuda_device_with_triton_runs_the_kernel():
    choice = backend.choose("op", reference, load_kernel, "cuda")
    assert (choice.implementation, choice.run()) == ("triton", "kernel")


@pytest.mark.usefixtures("without_triton")
def test_a_librarys_kernel_needs_no_triton():
    choice = backend.choose("op", reference, load_kernel, "cuda", False)
    assert (choice.implementation, choice.run()) == ("library", "kernel")
    assert backend.choose("op", reference, load_kernel, "cpu", False).implementation == "torch"


@pytest.mark.usefixtures("without_triton")
def test_without_triton_the_kernel_is_not_even_loaded():
    def refuse():
        raise AssertionError("loaded")

    choice = backend.choose("op", reference, refuse, "cuda")
    assert (choice.implementation, choice.run()) == ("torch", "reference")
    assert "triton" in choice.reason


@pytest.mark.usefixtures("with_triton")
@pytest.mark.parametrize("device_type", ["cpu", "mps"])
def test_other_devices_run_the_reference_and_say_why(device_type):
    def refuse():
        raise AssertionError("loaded")

    choice = backend.choose("op", reference, refuse, device_type)
    assert (choice.implementation, choice.run()) == ("torch", "reference")
    assert device_type in choice.reason


def test_an_op_without_a_kernel_runs_its_reference():
    assert backend.select("op", reference, None, device=torch.device("cpu"))() == "reference"
    assert backend.choose("op", reference, None, "cuda").implementation == "torch"


def test_a_choice_is_logged_once_per_op_and_device(caplog):
    with caplog.at_level(logging.INFO, logger=backend.logger.name):
        for _ in range(3):
            backend.select("first", reference, None, device=torch.device("cpu"))
            backend.select("second", reference, load_kernel, device=torch.device("cpu"))
            backend.choose("first", reference, None, "cuda")
    assert len(caplog.records) == 3
    assert "op=second device=cpu implementation=torch reason=kernels run on cuda" in caplog.text


def test_choices_are_told_within_a_block_only():
    cpu = torch.device("cpu")
    backend.select("before", reference, None, device=cpu)
    with backend.picked_choices() as picked:
        backend.select("first", reference, None, device=cpu)
        with backend.picked_choices() as inner:
            backend.select("second", reference, load_kernel, device=cpu)
    backend.select("after", reference, None, device=cpu)
    assert picked == {"first": backend.choose("first", reference, None, "cpu")}
    assert [choice.implementation for choice in inner.values()] == ["torch"]


def test_doors_open_without_triton():
    """A fresh process in which triton cannot be imported opens every door and runs an op."""
    program = "\n".join(
        [
            "import sys, torch",
            "sys.modules['triton'] = None",
            *(f"import hypic_sdk.kernels.{door}.op" for door in DOORS),
            "from hypic_sdk.kernels.attention_inputs.op import attention_inputs",
            "slab = torch.zeros(4, 1, 2)",
            "row = torch.ones(1, 1, 2)",
            "attention_inputs(row, row, row, torch.tensor([3]), slab, slab.clone())",
            "assert slab[3].eq(1).all()",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
