"""Two hosts of one name: one of them stays, the other is told and comes no more."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.server.test_fleet import START_TIMEOUT_S, until
from tests.server.towns import OTHER_HOST, ROUTER_HOST, host, open_town, states


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_two_hosts_of_one_place_do_not_throw_each_other_out_for_ever(tmp_path: Path) -> None:
    with open_town(tmp_path) as town, host(town, "box", ROUTER_HOST) as first:
        town.fleet.wait_ready(START_TIMEOUT_S)
        with host(town, "box", OTHER_HOST) as second:
            assert first.wait(START_TIMEOUT_S) == 2  # its place is taken, and it is told
            until(lambda: states(town) == {"box_0": "ready"})
            (worker,) = town.fleet.link.workers()
            time.sleep(3.0)
            assert list(town.fleet.link.workers()) == [worker]
            assert second.poll() is None
