"""A model is named to a bench as it is to a server: a folder, or an id of the hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from rich.console import Console

from hypic_sdk.bench import serving
from hypic_sdk.bench.replay import served
from hypic_sdk.bench.replay_server import ReplayServer
from hypic_sdk.bench.serving import run_serving_bench
from hypic_sdk.bench.subject import load_subject
from hypic_sdk.cli.app import bench_app, serve
from hypic_sdk.config import StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ConfigError, ModelFileError
from hypic_sdk.offline import DEMO_NAME

HUB_ID = "team/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was fetched; every id of this hub is the packaged reader."""
    fetched = []

    def model_folder(model: str, **_: Any) -> Path:
        fetched.append(model)
        return reader_path()

    monkeypatch.setattr("hypic_sdk.offline.local.model_folder", model_folder)
    return fetched


def test_every_command_takes_the_same_kind_of_name():
    wanted = get_type_hints(serve)["model"]
    found = {
        info.name: hints["model"]
        for info in bench_app.registered_commands
        if info.callback is not None
        for hints in (get_type_hints(info.callback),)
        if "model" in hints
    }
    assert len(found) >= 10
    assert {"serving", "replay"} <= set(found)
    for name, kind in found.items():
        assert set(get_args(kind)) == set(get_args(wanted)) == {str, type(None)}, name


def test_serving_measures_a_model_of_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "ROWS", (serving.segment_bytes,))
    console = Console(quiet=True)
    assert run_serving_bench(console, model=HUB_ID, device_name="cpu", tiny=True, folder=tmp_path)
    assert hub == [HUB_ID]
    report = json.loads((tmp_path / "serving.json").read_text())
    assert (report["shape"], report["is_tiny"]) == (HUB_ID, True)


def test_serving_draws_no_model_of_transformers_like_one_with_weights(hub):
    with pytest.raises(ConfigError, match="random weights of a shape"):
        run_serving_bench(Console(quiet=True), model=HUB_ID, device_name="cpu", transformers=True)
    assert hub == []


def test_replay_serves_a_model_of_the_hub(hub):
    server = served(HUB_ID, None, "cpu", StoreConfig())
    assert server.model_folder == str(reader_path())
    assert server.words.startswith(f"{HUB_ID}, cache of ")
    assert msgspec.json.decode(msgspec.json.encode(server), type=ReplayServer) == server
    assert hub == [HUB_ID]
    packaged = served(None, None, "cpu", StoreConfig())
    assert packaged == replace(server, model_folder=None, model_name=None)


def test_a_model_of_the_hub_is_called_by_its_id(hub):
    assert load_subject(HUB_ID, "cpu").name == HUB_ID
    assert load_subject(str(reader_path()), "cpu").name == reader_path().name
    assert load_subject(None, "cpu").name == DEMO_NAME


@pytest.mark.parametrize("name", ["no/such/folder", "", "nowhere"])
def test_a_model_that_is_nowhere_is_named(name):
    with pytest.raises(ModelFileError):
        run_serving_bench(Console(quiet=True), model=name, device_name="cpu")
    with pytest.raises(ModelFileError):
        served(name, None, "cpu", StoreConfig())
