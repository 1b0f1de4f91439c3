"""The loader against folders that are wrong in every way a folder can be."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models.base import CausalLM
from hypic_sdk.models.loader import load_config, load_model, model_files
from hypic_sdk.models.weights import LoadProgress
from tests.models.oracle import save, text_model

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(), tmp_path_factory.mktemp("untied"))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(tie_word_embeddings=True), tmp_path_factory.mktemp("tied"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(), tmp_path_factory.mktemp("sharded"), max_shard_size="30KB")


def changed(source: Path, target: Path, change: Callable[[Tensors], object]) -> Path:
    """A copy of a single-file checkpoint with its tensors changed."""
    shutil.copy(source / "config.json", target)
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def parameters(model: CausalLM) -> Tensors:
    assert isinstance(model, torch.nn.Module)
    return dict(model.named_parameters())


def same_parameters(one: CausalLM, other: CausalLM) -> None:
    a, b = parameters(one), parameters(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def refusal(folder: Path, **options: Any) -> ModelFileError:
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu", **options)
    return caught.value


def test_every_missing_surplus_and_misshaped_tensor_is_named_in_one_error(
    untied: Path, tmp_path: Path
) -> None:
    names = list(load_file(untied / "model.safetensors"))
    gone = names[::3]
    bent = names[1::3]

    def change(tensors: Tensors) -> None:
        for name in gone:
            del tensors[name]
        for name in bent:
            tensors[name] = torch.cat((tensors[name], tensors[name]))
        tensors["model.layers.0.extra"] = torch.zeros(2)
        tensors["lm_head.bias"] = torch.zeros(97)

    error = refusal(changed(untied, tmp_path, change))
    assert set(error.details["missing"]) == set(gone)
    assert {text.split(" ")[0] for text in error.details["misshaped"]} == set(bent)
    assert set(error.details["surplus"]) == {"model.layers.0.extra", "lm_head.bias"}
    for word in ("missing", "misshaped", "surplus", "lm_head.bias"):
        assert word in error.message
    json.dumps(error.to_payload())


def test_a_transposed_weight_is_misshaped(untied: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"

    def change(tensors: Tensors) -> None:
        tensors[name] = tensors[name].T.contiguous()

    error = refusal(changed(untied, tmp_path, change))
    assert error.details == {"misshaped": [f"{name} [44, 36], not [36, 44]"]}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_that_are_not_finite_are_named(
    bad: float, dtype: torch.dtype, untied: Path, tmp_path: Path
) -> None:
    names = ["model.layers.1.linear_attn.A_log", "model.layers.3.self_attn.k_proj.weight"]

    def change(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            tensors[name] = tensor.to(dtype)
        for name in names:
            tensors[name].view(-1)[-1] = bad

    error = refusal(changed(untied, tmp_path, change))
    assert sorted(error.details["not_finite"]) == names


def test_a_weight_too_large_for_the_dtype_is_named(untied: Path, tmp_path: Path) -> None:
    name = "model.norm.weight"

    def change(tensors: Tensors) -> None:
        tensors[name][3] = 1e6

    folder = changed(untied, tmp_path, change)
    load_model(folder, device="cpu", dtype=torch.float32)
    error = refusal(folder, dtype=torch.float16)
    assert error.details["not_finite"] == [f"{name} (too large for torch.float16)"]


def test_large_weights_whose_sum_overflows_are_finite(untied: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"].fill_(3e38)

    load_model(changed(untied, tmp_path, change), device="cpu")


def test_weights_of_other_dtypes_are_named(untied: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int32)
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)

    error = refusal(changed(untied, tmp_path, change))
    assert sorted(error.details["unreadable"]) == [
        "lm_head.weight (dtype F8_E4M3)",
        "model.norm.weight (dtype I32)",
    ]


def test_a_tied_copy_must_equal_the_embedding(tied: Path, tmp_path: Path) -> None:
    def copy(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def differ(tensors: Tensors) -> None:
        copy(tensors)
        tensors["lm_head.weight"][0, 0] += 1.0

    model = load_model(changed(tied, tmp_path, copy), device="cpu").model
    # shared: named_parameters gives each parameter once
    assert "head.weight" not in parameters(model)
    error = refusal(changed(tied, tmp_path, differ))
    assert error.details == {"untied": ["lm_head.weight differs from model.embed_tokens.weight"]}


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_truncated_shard_is_refused(
    share: float, untied: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    shutil.copy(untied / "config.json", folder)
    content = (untied / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: int(share * len(content))])
    assert "torn" in refusal(folder).message


def test_every_shorter_header_is_refused(untied: Path, tmp_path: Path) -> None:
    """Cuts within the first bytes, and one byte short of the whole."""
    shutil.copy(untied / "config.json", tmp_path)
    content = (untied / "model.safetensors").read_bytes()
    for stop in (0, 1, 7, 8, 9, 100, len(content) - 1):
        (tmp_path / "model.safetensors").write_bytes(content[:stop])
        assert "torn" in refusal(tmp_path).message


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_header_is_refused_or_harmless(
    data: st.DataObject, untied: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copy(untied / "config.json", folder)
    content = bytearray((untied / "model.safetensors").read_bytes())
    header_bytes = struct.unpack("<Q", content[:8])[0]
    position = data.draw(st.integers(0, 7 + header_bytes))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "model.safetensors").write_bytes(content)
    try:
        model = load_model(folder, device="cpu").model
    except ModelFileError:
        return
    # only the free text of the header's metadata, or spaces around it, may change unseen
    same_parameters(model, load_model(untied, device="cpu").model)


def test_unknown_model_types_are_refused_with_the_known_ones(untied: Path, tmp_path: Path) -> None:
    fields = json.loads((untied / "config.json").read_text())
    for model_type in ("qwen3_moe", "llama", None, 3, ["qwen3_5"], "os", "../qwen3_5", "loader"):
        (tmp_path / "config.json").write_text(json.dumps({**fields, "model_type": model_type}))
        with pytest.raises(ModelFileError, match="is not one of qwen3_5, qwen3_5_text"):
            load_config(tmp_path)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_know_are_refused(
    word: str, untied: Path, tmp_path: Path
) -> None:
    text = (untied / "config.json").read_text()
    assert '"initializer_range": 0.02' in text
    (tmp_path / "config.json").write_text(text.replace("0.02", word))
    with pytest.raises(ModelFileError, match=f"{word} is not JSON"):
        load_config(tmp_path)


def test_what_a_folder_lacks_is_said(untied: Path, tmp_path: Path) -> None:
    assert "no such model folder" in refusal(tmp_path / "nowhere").message
    assert "no config.json" in refusal(tmp_path).message
    shutil.copy(untied / "config.json", tmp_path)
    assert "holds no safetensors" in refusal(tmp_path).message
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    error = refusal(tmp_path)
    assert "only pickles (pytorch_model.bin), which are never opened" in error.message
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copy(untied / "model.safetensors", tmp_path / name)
    assert "2 safetensors files and no model.safetensors.index.json" in refusal(tmp_path).message
    (tmp_path / "b.safetensors").unlink()
    load_model(tmp_path, device="cpu")


def test_a_pickle_beside_safetensors_is_left_alone(untied: Path, tmp_path: Path) -> None:
    shutil.copytree(untied, tmp_path, dirs_exist_ok=True)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    load_model(tmp_path, device="cpu")


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "a\0b", "x\\..\\y"]
)
def test_an_index_cannot_reach_outside_the_folder(name: str, sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(content))
    assert "index.json" in refusal(tmp_path).message


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": [1]}, []], ids=str)
def test_an_index_without_a_map_is_refused(content: object, sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    assert "index.json" in refusal(tmp_path).message


def test_an_absent_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    assert refusal(tmp_path).details["missing_files"] == [gone.name]


def test_shards_must_hold_what_the_index_says(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    shutil.copy(second, first)
    error = refusal(tmp_path)
    assert set(error.details["missing"]) == set(load_file(sharded / first.name))


def test_shards_that_hold_a_tensor_twice_are_refused(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    first, second = sorted(tmp_path.glob("*.safetensors"))[:2]
    both = {**load_file(first), **load_file(second)}
    save_file(both, first)
    error = refusal(tmp_path)
    assert {text.split(" ")[0] for text in error.details["unreadable"]} == set(load_file(second))


def test_sharded_and_single_file_hold_the_same_model(untied: Path, sharded: Path) -> None:
    one, many = (load_model(folder, device="cpu").model for folder in (untied, sharded))
    same_parameters(one, many)


def test_files_reached_by_links_load(untied: Path, tmp_path: Path) -> None:
    """A hub cache is a folder of links."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(untied / name)
    assert load_model(tmp_path, device="cpu").fingerprint == (
        load_model(untied, device="cpu").fingerprint
    )


def test_dtype_defaults_to_the_checkpoints_own(untied: Path, tmp_path: Path) -> None:
    save(text_model().to(torch.bfloat16), tmp_path)
    for folder, dtype in ((untied, torch.float32), (tmp_path, torch.bfloat16)):
        model = load_model(folder, device="cpu").model
        assert parameters(model)["embedding.weight"].dtype is dtype


@pytest.mark.parametrize("dtype", ["int8", 3, ["float32"], {"a": 1}], ids=str)
def test_an_unknown_checkpoint_dtype_is_refused(
    dtype: object, untied: Path, tmp_path: Path
) -> None:
    fields = json.loads((untied / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "dtype": dtype}))
    with pytest.raises(ModelFileError, match="dtype"):
        load_config(tmp_path)


def test_progress_rises_to_the_total_and_names_every_tensor(sharded: Path) -> None:
    seen: list[LoadProgress] = []
    load_model(sharded, device="cpu", on_progress=seen.append)
    files = sharded.glob("*.safetensors")
    tensors = {k: v for f in files for k, v in load_file(f).items()}
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    assert [p.total_bytes for p in seen] == [total] * len(tensors)
    assert [p.done_bytes for p in seen] == sorted({p.done_bytes for p in seen})
    assert seen[-1].done_bytes == total
    assert {p.tensor for p in seen} == set(tensors)


def test_progress_can_end_the_load(untied: Path) -> None:
    class Enough(Exception):
        pass

    def stop(progress: LoadProgress) -> None:
        raise Enough

    with pytest.raises(Enough):
        load_model(untied, device="cpu", on_progress=stop)


def test_model_files_lists_shards_by_name_without_opening_them(
    sharded: Path, tmp_path: Path
) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(b"")
    files = model_files(tmp_path)
    assert [path.name for path in files.shards] == sorted(p.name for p in files.shards)
    assert len(files.shards) > 2


def test_a_load_leaves_the_checkpoint_free(untied: Path, tmp_path: Path) -> None:
    """Parameters are copies: the files may go away, or change, without touching the model."""
    shutil.copytree(untied, tmp_path, dirs_exist_ok=True)
    model = load_model(tmp_path, device="cpu").model
    before = {name: value.clone() for name, value in parameters(model).items()}
    shard = tmp_path / "model.safetensors"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    assert all(torch.equal(value, before[name]) for name, value in parameters(model).items())
