"""Folders as strangers have them: links, leftovers, files that lie about themselves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.loader import load_config, load_model
from tests.models.oracle import save, text_model
from tests.models.test_header_fuzz import parts_of, write

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(), tmp_path_factory.mktemp("sharded"), max_shard_size="60KB")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "model")
    return tmp_path / "model"


def shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, device="cpu").model
    assert isinstance(model, torch.nn.Module)
    return dict(model.named_parameters())


def refusal(folder: Path) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu")
    json.dumps(caught.value.to_payload())
    return caught.value


def change_index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def move_in_index(weight_map: dict[str, str]) -> None:
    """Each tensor is said to lie in another shard than it does."""
    files = sorted(set(weight_map.values()))
    for name, file in weight_map.items():
        weight_map[name] = files[(files.index(file) + 1) % len(files)]


def drop_from_index(weight_map: dict[str, str]) -> None:
    """A tensor whose shard is named by others is not named itself."""
    files = list(weight_map.values())
    name = next(n for n, file in weight_map.items() if files.count(file) > 1)
    del weight_map[name]


@pytest.mark.parametrize("change", [move_in_index, drop_from_index])
def test_shards_count_and_not_what_an_index_says_of_them(
    change: Callable[[dict[str, str]], None], original: Path, folder: Path
) -> None:
    """Every tensor is found where it lies, once; an index only tells which files there are."""
    change_index(folder, change)
    got, want = parameters(folder), parameters(original)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_file_that_is_no_shard_is_named(folder: Path) -> None:
    change_index(folder, lambda m: m.update({"model.norm.weight": "config.json"}))
    assert "config.json is torn or no safetensors file" in refusal(folder).message


def to_loop(path: Path) -> None:
    path.symlink_to(path.name)


def to_nothing(path: Path) -> None:
    path.symlink_to("nothing-here")


def to_folder(path: Path) -> None:
    path.symlink_to(path.parent)


def to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_folder(path: Path) -> None:
    path.mkdir()


NO_FILES = [to_loop, to_nothing, to_folder, to_device, to_pipe, as_folder]


@pytest.mark.parametrize("make", NO_FILES)
@pytest.mark.parametrize("name", ["config.json", INDEX, "shard"])
def test_what_is_no_regular_file_is_never_opened(
    make: Callable[[Path], None], name: str, folder: Path
) -> None:
    """A pipe would hang and a device would never end."""
    path = shard(folder) if name == "shard" else folder / name
    path.unlink()
    make(path)
    error = refusal(folder)
    assert path.name in error.message or "safetensors" in error.message


def test_a_shard_may_be_a_link_out_of_the_folder(original: Path, folder: Path) -> None:
    """As in the hub's cache; what counts is its bytes."""
    outside = folder.parent / "blob"
    shutil.move(shard(folder), outside)
    (folder / shard(original).name).symlink_to(outside)
    assert load_model(folder, device="cpu").fingerprint == (
        load_model(original, device="cpu").fingerprint
    )


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**62, 2**64 - 1])
def test_a_header_that_lies_about_its_length_is_refused(size: int, folder: Path) -> None:
    header, body = parts_of(shard(folder))
    write(shard(folder), json.dumps(header).encode(), body, size)
    assert "torn" in refusal(folder).message


def test_a_header_without_end_is_refused(folder: Path) -> None:
    header, body = parts_of(shard(folder))
    write(shard(folder), json.dumps(header).encode() + b" " * (101 << 20), body)
    assert "header too large" in refusal(folder).message


@pytest.mark.parametrize("text", [b"[" * 10**6, b'{"a":' * 10**6, b"null", b"", b"\xff", b"{}x"])
def test_a_header_that_is_no_object_is_refused(text: bytes, folder: Path) -> None:
    _, body = parts_of(shard(folder))
    write(shard(folder), text, body)
    refusal(folder)


def test_a_name_twice_in_one_header_never_hides_a_tensor(original: Path, folder: Path) -> None:
    header, body = parts_of(shard(folder))
    names = [name for name in header if name != "__metadata__"]
    for name, other in ((names[0], names[0]), (names[0], names[1]), (names[1], names[0])):
        text = f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(header[other])}}}"
        write(shard(folder), text.encode(), body)
        if name != other:
            refusal(folder)
            continue
        got, want = parameters(folder), parameters(original)
        assert all(torch.equal(got[key], want[key]) for key in want)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "attention_factor": 2.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    ],
    ids=str,
)
def test_angles_that_are_stretched_are_refused_by_name(
    changes: dict[str, Any], folder: Path
) -> None:
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, **changes}))
    assert next(iter(changes)) in refusal(folder).message


def test_an_error_names_the_file_that_it_is_about(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, "x"]}))
    with pytest.raises(ModelFileError, match=r"^generation_config\.json can not be served: eos"):
        load_config(folder)


@pytest.mark.parametrize("text", ['{"a":' * 10**5 + "1" + "}" * 10**5, "[]", "", '"x"', "\x00"])
def test_a_config_that_is_no_object_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder).message
