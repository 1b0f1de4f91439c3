"""A host whose workers compute with other bits is refused, ends, and comes no more."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.server.test_fleet import START_TIMEOUT_S, events_of, ids_of, request, until
from tests.server.towns import OTHER_HOST, ROUTER_HOST, host, open_town, states

NUM_CORES = os.cpu_count() or 1


def use_threads(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Of processes that are started from now on."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # the smaller one counts
        monkeypatch.setenv(name, str(number))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
@pytest.mark.skipif(NUM_CORES < 2, reason="one core: no other number of threads")
def test_a_host_of_another_number_of_threads_is_refused_until_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_town(tmp_path) as town:
        use_threads(monkeypatch, 1)
        with host(town, "a", ROUTER_HOST):
            ready = town.fleet.wait_ready(START_TIMEOUT_S)
            assert ", 1 threads, " in ready.compute_fingerprint
            assert ready.dtype == "float32"
            use_threads(monkeypatch, 2)
            with host(town, "b", OTHER_HOST) as second:
                assert second.wait(START_TIMEOUT_S) == 2  # for good: nobody starts it again
            said = capfd.readouterr().err
            assert "the router refuses worker b_0" in said
            here, others = said.split(" there. ")[0].split(" here, ")
            assert "2 threads" in here.rpartition(": ")[2]
            assert "1 threads" in others
            assert states(town) == {"a_0": "ready"}
            assert len(ids_of(events_of(town.fleet, request("one", range(3))))) == 4
        until(lambda: states(town) == {})
        with host(town, "b", OTHER_HOST):
            until(lambda: states(town) == {"b_0": "ready"})
            assert len(ids_of(events_of(town.fleet, request("two", range(3))))) == 4
