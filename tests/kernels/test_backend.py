from __future__ import annotations

import ast
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.families.registry import FAMILIES
from hypic_sdk.kernels import backend
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.experts.op import experts, route, route_with_swiglu
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.linear.op import linear
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.shared_attention.op import shared_attention
from hypic_sdk.kernels.shared_attention.plan import SharedRun
from tests.source_tree import PACKAGE, imported_modules, module_name, parsed, runtime_imports
from tests.strategies import Shape, drawn

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


@pytest.mark.usefixtures("with_triton")
def test_inputs_that_a_kernel_can_not_take_are_told_of_where_it_would_run():
    def refuse():
        raise AssertionError("loaded")

    told = [backend.choose("op", reference, refuse, d, True, "too wide") for d in ("cuda", "cpu")]
    assert [choice.run() for choice in told] == ["reference", "reference"]
    assert [choice.reason for choice in told] == ["too wide", "kernels run on cuda, not on cpu"]


def selects() -> Iterator[tuple[str, ast.expr]]:
    """Every op that a door selects, and what it gives for the loader of the kernel."""
    for path in sorted((PACKAGE / "kernels").glob("*/op.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "backend.select":
                name = node.args[0]
                assert isinstance(name, ast.Constant)
                yield f"{path.parent.name}: {name.value}", node.args[2]


def test_an_op_says_that_it_has_no_kernel_exactly_where_it_has_none():
    """One that can not take some inputs says why (`unfit`); it does not disown its kernel."""
    found = dict(selects())
    assert len(found) > 15
    for op, loader in found.items():
        has_kernel = (PACKAGE / "kernels" / op.partition(":")[0] / "kernel.py").exists()
        assert isinstance(loader, ast.Name) is has_kernel, op
        assert (ast.unparse(loader) == "None") is not has_kernel, op


MODULES = {module_name(path) for path in (PACKAGE / "kernels").rglob("*.py")}


@pytest.mark.parametrize("path", sorted((PACKAGE / "kernels").glob("*/*.py")), ids=lambda path:
                         f"{path.parent.name}/{path.name}")  # fmt: skip
def test_no_kernel_hands_inputs_over_to_its_definition(path):
    """Else the op would say that the kernel runs: what it can not take is for the door to tell."""
    if path.stem not in ("op", "reference"):
        loaded = {m for one in runtime_imports(path) for m in imported_modules(one, MODULES)}
        assert not {module for module in loaded if module.endswith(".reference")}


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture
def told(monkeypatch):
    """What each op that is called says of its kernel; the definition runs."""
    found: dict[str, str] = {}

    def note(op, reference, load_kernel, *, device, needs_triton=True, unfit=""):
        found[op] = unfit
        return reference

    monkeypatch.setattr(backend, "select", note)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_ops_say_of_dtypes_on_cuda_is_what_their_kernels_take(dtype, told):
    """Told on a CPU for a CUDA device: the choice is looked at, and not run."""
    rows = torch.ones(16, 8, dtype=dtype)
    linear(rows, rows, row_independent=True)
    routing = route(rows, top_k=2, renormalise=True)
    route_with_swiglu(rows, rows, top_k=2, renormalise=True)
    weights = torch.ones(8, 16, 8, dtype=dtype), torch.ones(8, 8, 8, dtype=dtype)
    experts(rows, routing, *weights, row_independent=False)
    assert set(told) == {"linear", "route", "route_with_swiglu", "experts"}
    assert bool(told["linear"]) is (dtype.itemsize > 2)
    assert bool(told["route"]) is bool(told["route_with_swiglu"]) is (dtype == torch.float64)
    assert bool(told["experts"]) is (dtype != torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_attention_says_of_dtypes_is_what_its_kernels_take(dtype, told):
    heads, slots = torch.ones(4, 2, 8, dtype=dtype), torch.arange(4)
    run = AttentionRun(0, 4, 0, slots)
    live_attention(heads, [run], heads, heads, scale=1.0)
    angles = torch.ones(4, 2)
    shared_attention(
        heads, [SharedRun(0, 4, 0, slots, 0, ())], heads, heads,
        cos=angles, sin=angles, turn="query", scale=1.0,
    )  # fmt: skip
    assert set(told) == {"live_attention", "shared_attention"}
    assert {bool(unfit) for unfit in told.values()} == {dtype == torch.float64}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_scans_say_of_recurrences_is_what_their_kernels_take(family, dtype, told):
    inputs = drawn(family, 6, Shape(2, 5, 3), 0, dtype).scan_inputs()
    shape = inputs.transition_shapes()[0]
    states = torch.zeros(2, 2, 5, 3, dtype=inputs.work_dtype)
    transitions = None if shape is None else torch.zeros(2, *shape)
    out = torch.zeros_like(inputs.value)
    segment_scan(inputs, [ColdRun(0, 6, 0, 6, 2, 0, 0, 0)], states, transitions, out_LHV=out)
    live_scan(inputs, [Item(ItemKind.LOAD), Item(ItemKind.RUN, 0, 6)], states, transitions)
    assert {"segment_scan", "live_scan"} <= set(told)
    in_tiles = family in ("delta_rule", "gated_delta_rule") and dtype.itemsize == 2
    assert bool(told["segment_scan"]) is not in_tiles
    assert bool(told["live_scan"]) is (dtype == torch.float64)


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
