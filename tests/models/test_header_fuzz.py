"""Mutated safetensors headers: refused by type, or loaded as the header says, byte for byte."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import qwen3_5
from hypic_sdk.models.loader import load_config, load_model
from tests.models.oracle import moe_model, next_model, save

Header = dict[str, Any]

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
HUGE = [-1, 0, 1, 3, 2**31, 2**32, 2**63, 2**64, 10**30]
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(HUGE),
    st.floats(width=16),
    st.text(max_size=4),
    st.lists(st.sampled_from(HUGE), max_size=3),
    st.just({}),
    st.sampled_from([*DTYPES, "I64", "F8_E4M3", "f32", "BOOL"]),
)


@pytest.fixture(scope="module", params=[moe_model, next_model], ids=["moe", "next"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = request.param(
        num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
        num_experts=3,
        num_experts_per_tok=2,
    )
    return save(model, tmp_path_factory.mktemp("checkpoint"))


def parts_of(shard: Path) -> tuple[Header, bytes]:
    """Header and tensor bytes."""
    content = shard.read_bytes()
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write(shard: Path, header: bytes, body: bytes, size: int | None = None) -> None:
    """A shard as it would be, or one that lies about the header's length."""
    length = len(header) if size is None else size
    shard.write_bytes((length % 2**64).to_bytes(8, "little") + header + body)


@st.composite
def mutations(
    draw: st.DrawFn, header: Header, body_bytes: int
) -> tuple[bytes, int, int, int | None]:
    """Header, bytes of the body that stay and are added, told length of the header."""
    header = json.loads(json.dumps(header))
    names = [name for name in header if name != "__metadata__"]
    size, stop, added = None, body_bytes, 0
    for _ in range(draw(st.integers(1, 3))):
        name, other = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        entry = header.get(name)
        kind = draw(st.integers(0, 9))
        if kind == 0:
            header[draw(st.sampled_from([name, "__metadata__", "surprise"]))] = draw(junk)
        elif kind == 1:
            header.pop(name, None)
        elif kind == 2:
            header[name], header[other] = header.get(other), header.get(name)
        elif kind == 3 and entry is not None:
            header[draw(st.sampled_from([name + "x", other, "mtp.fc.weight"]))] = entry
        elif kind == 4:
            stop, added = draw(st.integers(0, body_bytes)), draw(st.integers(0, 9))
        elif kind == 5:
            size = draw(st.sampled_from([0, 1, 7, len(json.dumps(header)), 2**31, 2**63, -1]))
        elif isinstance(entry, dict):
            change(draw, entry, kind)
    text = json.dumps(header).encode()
    return text + b" " * draw(st.integers(0, 9)), stop, added, size


def change(draw: st.DrawFn, entry: dict[str, Any], kind: int) -> None:
    """One field of one tensor."""
    field = draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
    values = entry.get(field)
    if kind == 6:
        entry[field] = draw(junk)
    elif kind == 7:
        entry.pop(field, None)
    elif isinstance(values, list) and values:
        if kind == 8:
            values.reverse()
        else:
            values[draw(st.integers(0, len(values) - 1))] = draw(
                st.one_of(st.sampled_from(HUGE), st.integers(0, 200_000))
            )


def by_header(header: Header, body: bytes, name: str) -> torch.Tensor:
    """A tensor, read with nothing but the format's description."""
    entry = header[name]
    start, stop = entry["data_offsets"]
    dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
    values = torch.frombuffer(bytearray(body[start:stop]), dtype=dtype)
    assert values.numel() == math.prod(shape)
    return values.reshape(shape)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mutated_header_is_refused_by_type_or_read_as_it_says(
    data: st.DataObject, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    header, whole = parts_of(checkpoint / "model.safetensors")
    text, stop, added, size = data.draw(mutations(header, len(whole)))
    body = whole[:stop] + b"\0" * added
    folder = tmp_path_factory.mktemp("mutant")
    (folder / "config.json").symlink_to(checkpoint / "config.json")
    write(folder / "model.safetensors", text, body, size)
    try:
        model = load_model(folder, device="cpu", dtype=torch.float32).model
    except ModelFileError:
        event("refused")
        return
    event("loaded")
    header = json.loads(text)
    assert isinstance(model, qwen3_5.Model)
    parameters = dict(model.named_parameters())
    plan = qwen3_5.checkpoint_plan(load_config(folder).config, header)
    for name, place in plan.places.items():
        tensor = by_header(header, body, name)
        assert tuple(tensor.shape) == place.shape
        parameter = parameters[place.parameter]
        parameter = parameter if place.expert is None else parameter[place.expert]
        for source, target, num_rows in place.pieces:
            got = parameter[target : target + num_rows].flatten()
            assert torch.equal(got, tensor[source : source + num_rows].float().flatten())
