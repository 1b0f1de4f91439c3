"""Which ops the doctor says run how: told on a CPU as of a CUDA device, by the ops' own choice."""

from __future__ import annotations

import pytest
import torch

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.doctor.trial import run_trial
from hypic_sdk.kernels import backend
from hypic_sdk.models.loader import model_files, open_checkpoint

# of the packaged model's ops
TILED, NARROW = {"segment_scan", "linear"}, {"live_scan", "live_attention"}
ANY = {"rms_norm", "add_rms_norm", "gated_rms_norm", "swiglu", "gate_heads", "short_conv",
       "attention_inputs", "place_entries"}  # fmt: skip


@pytest.fixture
def _on_cuda(monkeypatch):
    """Ops choose as on a CUDA device with Triton; what runs is the definition."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    def choose(op, reference, load_kernel, device_type, needs_triton=True, unfit=""):
        chosen = backend._decide(reference, load_kernel, "cuda", needs_triton, unfit)
        return chosen._replace(run=reference)

    monkeypatch.setattr(backend, "choose", choose)


@pytest.mark.usefixtures("_on_cuda")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_an_op_is_said_to_run_by_its_kernel_where_that_takes_the_dtype(dtype):
    checkpoint = open_checkpoint(model_files(reader_path()))
    ops, _ = run_trial(checkpoint, dtype, torch.device("cpu"), EngineConfig(device="cpu"))
    run_by = {op.op: op.implementation for op in ops}
    expected = dict.fromkeys(ANY, "triton")
    expected |= dict.fromkeys(NARROW, "torch" if dtype == torch.float64 else "triton")
    expected |= dict.fromkeys(TILED, "triton" if dtype == torch.bfloat16 else "torch")
    assert {op: run_by.get(op) for op in expected} == expected
    reasons = {op.op: op.reason for op in ops if op.implementation == "torch"}
    assert all("no kernel" in reasons[op] or "its kernel takes" in reasons[op] for op in reasons)
