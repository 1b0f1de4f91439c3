"""A worker that is not answered says so: a wrong key is silence, and silence has few reasons."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from hypic_sdk.engine import remote_process
from hypic_sdk.transport.control import Welcome
from hypic_sdk.transport.fleet_channel import WorkerEnd
from hypic_sdk.transport.peer_key import PeerKey
from hypic_sdk.transport.process_settings import RemoteSettings
from tests.server.test_fleet import until
from tests.server.towns import ROUTER_HOST, Town, host, open_town

FIRST_S = 0.5


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> RemoteSettings:
    monkeypatch.setattr(remote_process, "JOIN_EVERY_S", 0.1)
    monkeypatch.setattr(remote_process, "FIRST_WARNING_S", FIRST_S)
    return RemoteSettings("127.0.0.1:1", "its.key", "x_0", ROUTER_HOST, "no model")


def join_for(
    seconds: float, settings: RemoteSettings, key: PeerKey, caplog: pytest.LogCaptureFixture
) -> tuple[Welcome | None, list[str]]:
    """What came of asking for so long, and what was logged."""
    over = threading.Event()
    timer = threading.Timer(seconds, over.set)
    timer.start()
    try:
        with caplog.at_level(logging.WARNING), WorkerEnd(settings.router, key) as end:
            welcome = remote_process.join(end, settings, lambda: not over.is_set())
    finally:
        timer.cancel()
    warnings = [record for record in caplog.records if record.name == remote_process.__name__]
    return welcome, [record.getMessage() for record in warnings]


def test_a_wrong_key_is_warned_of_once_with_address_and_reasons(
    tmp_path: Path, settings: RemoteSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with open_town(tmp_path) as town:
        settings = replace(settings, router=town.address)
        welcome, said = join_for(4 * FIRST_S, settings, PeerKey.new(), caplog)
        assert welcome is None
        (warning,) = said
        for piece in (town.address, "x_0", "its.key", "--worker-key", "--gate", "firewall"):
            assert piece in warning
        assert town.fleet.link.workers() == {}


def test_silence_is_told_again_and_again(
    settings: RemoteSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_process, "WARN_EVERY_S", FIRST_S)
    _, said = join_for(4 * FIRST_S, settings, PeerKey.new(), caplog)
    assert 2 <= len(said) <= 4


def test_a_router_that_answers_is_not_warned_of(
    tmp_path: Path, settings: RemoteSettings, caplog: pytest.LogCaptureFixture
) -> None:
    with open_town(tmp_path) as town:
        key = PeerKey.from_file(town.key_file)
        settings = replace(settings, router=town.address)
        welcome, said = join_for(4 * FIRST_S, settings, key, caplog)
        assert isinstance(welcome, Welcome)
        assert said == []


@pytest.mark.slow
def test_hypic_worker_with_another_key_says_so_after_ten_seconds(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.key"
    PeerKey.new().write(other)
    with open_town(tmp_path) as town, host(Town(town.fleet, other, town.address), "a", ROUTER_HOST):
        heard: list[str] = []

        def is_told() -> bool:
            heard.append(capfd.readouterr().err)
            return "no answer from the router" in "".join(heard)

        until(is_told, 60)
        assert town.address in "".join(heard)
        assert town.fleet.link.workers() == {}
