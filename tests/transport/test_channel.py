"""Two ends of one channel: order, closing, and a reader that is not there."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hypic_sdk.errors import WorkerLost
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.control import CancelRequest


def test_messages_arrive_in_order_whoever_sends(tmp_path: Path) -> None:
    with Channel(tmp_path, is_api=True) as api, Channel(tmp_path, is_api=False) as engine:
        engine.send(CancelRequest("hello"))
        assert api.receive(5.0) == CancelRequest("hello")
        assert api.wait_for_peer(5.0)

        def send(name: str) -> None:
            for number in range(50):
                api.send(CancelRequest(f"{name}-{number}"))

        threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        got = [engine.receive(5.0) for _ in range(150)]
        for thread in threads:
            thread.join()
        for name in "abc":
            mine = [one.request_id for one in got if one.request_id.startswith(name)]
            assert mine == [f"{name}-{number}" for number in range(50)]
        engine.send(CancelRequest("back"))
        assert api.receive(5.0) == CancelRequest("back")


def test_no_message_is_none_after_the_time(tmp_path: Path) -> None:
    with Channel(tmp_path, is_api=True) as api:
        assert api.receive(0.01) is None


def test_sending_to_nobody_is_told_at_once(tmp_path: Path) -> None:
    """A send must never wait: it is made under locks, by threads that serve others."""
    with Channel(tmp_path, is_api=True) as api, pytest.raises(WorkerLost, match="other end"):
        api.send(CancelRequest("r"))


def test_waiting_for_a_peer_ends(tmp_path: Path) -> None:
    with Channel(tmp_path, is_api=True) as api:
        assert not api.wait_for_peer(0.05)
        with Channel(tmp_path, is_api=False):
            assert api.wait_for_peer(5.0)


def test_an_engine_may_speak_before_it_is_heard(tmp_path: Path) -> None:
    with Channel(tmp_path, is_api=False) as engine:
        for number in range(2000):
            engine.send(CancelRequest(str(number)))
        with Channel(tmp_path, is_api=True) as api:
            assert api.receive(5.0) == CancelRequest("0")


def test_a_closed_end_says_so(tmp_path: Path) -> None:
    api = Channel(tmp_path, is_api=True)
    api.close()
    api.close()
    with pytest.raises(WorkerLost, match="closed"):
        api.send(CancelRequest("late"))
