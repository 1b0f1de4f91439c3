"""`hypic worker` says what it can not work with before it starts anything."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from hypic_sdk.cli import worker as command
from hypic_sdk.errors import ConfigError
from hypic_sdk.server import remote_workers
from hypic_sdk.server.worker_gate import PLACE
from hypic_sdk.transport.peer_key import PeerKey

HERE = "127.0.0.1"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    PeerKey.new().write(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What would be started."""
    found: list[object] = []
    monkeypatch.setattr(
        remote_workers, "keep_running", lambda all_settings, stop: found.extend(all_settings)
    )
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    return found


@pytest.mark.parametrize(
    "router",
    ["", "10.0.0.1", ":7000", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:70000", "10.0.0.1:x",
     "tcp://127.0.0.1:7000", "http://127.0.0.1:7000", "127.0.0.1:-1"],
)  # fmt: skip
def test_what_is_no_router_is_refused_at_once(
    router: str, key: Path, started: list[object]
) -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:7000"):
        command.worker(router, key, HERE)
    assert started == []


@pytest.mark.parametrize("host", ["192.0.2.7", "nosuch.invalid", "::1", "0.0.0.0", "8.8.8.8", ""])
def test_what_is_no_private_address_of_this_machine_is_refused_at_once(
    host: str, key: Path, started: list[object]
) -> None:
    with pytest.raises(ConfigError):
        command.worker("127.0.0.1:7000", key, host)
    assert started == []


@pytest.mark.parametrize("name", ["127.0.0.1", "nosuch.invalid"])
def test_a_router_that_is_not_there_is_told_of_and_asked_on(
    name: str, key: Path, started: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((HERE, 0)) as one:
        port = one.getsockname()[1]
    with caplog.at_level(logging.WARNING):
        command.worker(f"{name}:{port}", key, HERE)
    assert f"{name}:{port}" in caplog.text
    assert len(started) == 1


def test_nothing_is_told_of_a_router_that_listens(
    key: Path, started: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server((HERE, 0)) as one, caplog.at_level(logging.WARNING):
        command.worker(f"{HERE}:{one.getsockname()[1]}", key, HERE, workers=3)
    assert caplog.text == ""
    assert len(started) == 3


def test_hosts_of_one_deployment_are_places_of_their_own() -> None:
    names = [f"hypic-worker-deployment-7f6c9d5b4-{end}" for end in ("x2k4p", "x2k4q", "9zzzz")]
    names += [
        "gpu-box",
        "gpu-box-2",
        "a" * 24,
        "a" * 25,
        "a" * 63,
        "node.of.some.long.domain.example",
    ]
    places = [command.place_of_host(name) for name in names]
    assert len(set(places)) == len(names)
    assert all(PLACE.fullmatch(f"{place}_63") for place in places)
    assert places[3:6] == ["gpu_box", "gpu_box_2", "a" * 24]
    assert places == [command.place_of_host(name) for name in names]
