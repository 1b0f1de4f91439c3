"""How tensors come into a model: one shard at a time, by few threads, and never half."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import fill as fill_module
from hypic_sdk.models.loader import load_model
from hypic_sdk.models.weights import LoadProgress
from tests.models.checkpoints import LAYOUTS
from tests.models.oracle import moe_model, save, text_model
from tests.models.test_fp8 import quantise
from tests.source_tree import REPOSITORY


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(text_model(), tmp_path_factory.mktemp("sharded"), max_shard_size="30KB")


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many shards were mapped after each opening while tensors are copied."""
    right, open_now, seen, lock = fill_module.safe_open, [0], [], threading.Lock()

    class Counted:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.inner = right(*args, **kwargs)

        def __enter__(self) -> Any:
            with lock:
                open_now[0] += 1
                seen.append(open_now[0])
            return self.inner.__enter__()

        def __exit__(self, *details: Any) -> None:
            with lock:
                open_now[0] -= 1
            self.inner.__exit__(*details)

    monkeypatch.setattr(fill_module, "safe_open", Counted)
    yield seen
    assert open_now == [0]


def test_one_shard_is_mapped_at_a_time(sharded: Path, maps: list[int]) -> None:
    load_model(sharded, device="cpu")
    assert len(maps) == len(list(sharded.glob("*.safetensors"))) > 2
    assert set(maps) == {1}


def test_nothing_stays_mapped_when_a_load_ends_early(sharded: Path, maps: list[int]) -> None:
    class Enough(Exception):
        pass

    def stop(progress: LoadProgress) -> None:
        if progress.done_bytes > progress.total_bytes / 2:
            raise Enough

    with pytest.raises(Enough):
        load_model(sharded, device="cpu", on_progress=stop)
    assert len(maps) < len(list(sharded.glob("*.safetensors")))
    assert not [t for t in threading.enumerate() if t.name.startswith("model-fill")]


def test_progress_is_told_in_the_callers_thread(sharded: Path) -> None:
    threads: set[int] = set()
    load_model(sharded, device="cpu", on_progress=lambda _: threads.add(threading.get_ident()))
    assert threads == {threading.get_ident()}


MEASURED = """
import re, sys
from pathlib import Path
import torch
from hypic_sdk.models.loader import load_model

def of(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = of("VmRSS")
model = load_model(Path(sys.argv[1]), device="cpu").model
weights = sum(p.numel() * p.element_size() for p in model.parameters())
print(of("VmHWM") - before, weights)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is told by Linux only")
@pytest.mark.parametrize("shards", ["16MB", "1GB"], ids=["many", "one"])
def test_the_host_holds_less_than_a_shard_beside_the_weights(shards: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "vocab_size": 4000}
    folder = save(text_model(**sizes), tmp_path, max_shard_size=shards)
    files = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert (len(files) > 2) == (shards == "16MB")
    run = subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    grown, weights = map(int, run.stdout.split())
    assert weights > 60 << 20
    # buffers of the hash, threads and their stacks
    assert grown < weights + max(files) + (12 << 20), (grown, weights, max(files))


def test_a_shard_swapped_after_its_header_was_read_is_refused(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    victim = sorted(tmp_path.glob("*.safetensors"))[1]
    right = fill_module._fill_from

    def swap(path: Path, *rest: Any) -> None:
        if path.name == victim.name:
            tensors = {name: torch.cat((t, t)) for name, t in load_file(victim).items()}
            save_file(tensors, victim)
        right(path, *rest)

    monkeypatch.setattr(fill_module, "_fill_from", swap)
    with pytest.raises(ModelFileError, match="changed while it was read"):
        load_model(tmp_path, device="cpu")


def test_a_shard_that_goes_away_is_refused(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    victim, right = sorted(tmp_path.glob("*.safetensors"))[1], fill_module._fill_from

    def remove(path: Path, *rest: Any) -> None:
        victim.unlink(missing_ok=True)
        right(path, *rest)

    monkeypatch.setattr(fill_module, "_fill_from", remove)
    with pytest.raises(ModelFileError, match=victim.name):
        load_model(tmp_path, device="cpu")


def test_all_that_is_not_finite_is_named_in_one_order(sharded: Path, tmp_path: Path) -> None:
    shutil.copytree(sharded, tmp_path, dirs_exist_ok=True)
    names = []
    for shard in tmp_path.glob("*.safetensors"):
        tensors = load_file(shard)
        for name, tensor in tensors.items():
            tensor.view(-1)[0] = torch.nan
            names.append(name)
        save_file(tensors, shard)
    for _ in range(3):
        with pytest.raises(ModelFileError) as caught:
            load_model(tmp_path, device="cpu")
        assert caught.value.details["not_finite"] == sorted(names)


def reshard(folder: Path, moved: str) -> None:
    """Put the tensors whose name holds `moved` into a shard of their own."""
    tensors = load_file(folder / "model.safetensors")
    parts = {"a.safetensors": {}, "b.safetensors": {}}
    for name, tensor in tensors.items():
        parts["b.safetensors" if moved in name else "a.safetensors"][name] = tensor
    for file, part in parts.items():
        save_file(part, folder / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "model.safetensors").unlink()


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    model = load_model(folder, device="cpu", dtype=torch.float32).model
    assert isinstance(model, torch.nn.Module)
    return dict(model.named_parameters())


@pytest.mark.parametrize("chunk_elements", [1, 300, 1 << 22])
def test_a_scale_may_lie_in_another_shard_and_chunks_change_nothing(
    chunk_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill_module, "_CHUNK_ELEMENTS", chunk_elements)
    (tmp_path / "twin").mkdir()
    folder = save(moe_model(num_hidden_layers=2), tmp_path / "fp8")
    quantise(folder, tmp_path / "twin")
    reshard(folder, "_scale_inv")
    got, want = parameters(folder), parameters(tmp_path / "twin")
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_a_tied_copy_may_lie_before_its_original(tmp_path: Path) -> None:
    folder = save(text_model(tie_word_embeddings=True), tmp_path)
    want = parameters(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    reshard(folder, "embed_tokens")
    got = parameters(folder)
    assert all(torch.equal(got[name], want[name]) for name in want)
    tensors["lm_head.weight"] += 1
    save_file({"lm_head.weight": tensors["lm_head.weight"]}, folder / "a2.safetensors")
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    rest = load_file(folder / "a.safetensors")
    del rest["lm_head.weight"]
    save_file(rest, folder / "a.safetensors")
    weight_map["lm_head.weight"] = "a2.safetensors"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu")
    assert caught.value.details["untied"] == [
        "lm_head.weight differs from model.embed_tokens.weight"
    ]


@pytest.mark.parametrize("layers", [[0], [0, 1]])
def test_fewer_experts_than_the_config_says_is_one_line_a_layer(
    layers: list[int], tmp_path: Path
) -> None:
    folder = save(moe_model(num_hidden_layers=2), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    for name in list(tensors):
        if any(f"layers.{i}.mlp.experts.{e}." in name for i in layers for e in (2, 5)):
            del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu")
    assert caught.value.details == {
        "missing": [
            f"model.layers.{i}.mlp.experts.2 (5 experts are stored, num_experts is 7)"
            for i in layers
        ]
    }


def test_more_experts_than_the_config_says_are_named(tmp_path: Path) -> None:
    folder = save(moe_model(num_hidden_layers=2), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_experts": 6}))
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu")
    surplus = caught.value.details["surplus"]
    assert len(surplus) == 2 * 3
    assert all(".experts.6." in name for name in surplus)
    # the router is the other half of the same fault
    assert {text.split(" ")[0] for text in caught.value.details["misshaped"]} == {
        f"model.layers.{i}.mlp.gate.weight" for i in range(2)
    }


def test_a_huge_number_of_experts_makes_no_huge_plan(tmp_path: Path) -> None:
    folder = save(moe_model(num_hidden_layers=2), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_experts": 2**31 - 1}))
    with pytest.raises(ModelFileError) as caught:
        load_model(folder, device="cpu")
    assert "num_experts is 2147483647" in caught.value.details["missing"][-1]
    assert len(caught.value.details["missing"]) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_on_a_gpu_the_same_weights_arrive(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Every layout and stored precision; 8-bit weights travel as such and become wide there."""
    LAYOUTS[name](tmp_path / "model")
    got, want = (
        dict(load_model(tmp_path / "model", device=device, dtype=dtype).model.named_parameters())
        for device in ("cuda", "cpu")
    )
    assert all(parameter.is_cuda for parameter in got.values())
    assert all(torch.equal(got[key].cpu(), want[key]) for key in want)
