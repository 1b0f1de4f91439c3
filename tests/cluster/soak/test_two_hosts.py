"""A wire between two hosts swallows everything in each phase: every request ends, nothing leaks."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cluster.soak.test_storm import has_namespaces


def trial(*words: str, limit_s: float) -> dict[str, Any]:
    if not has_namespaces():
        pytest.skip("this machine lets nobody have a network of their own (unshare -rn, ip)")
    command = ["unshare", "-rn", sys.executable, "-m", "tests.cluster.soak.two_hosts", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def assert_well(result: dict[str, Any], num_requests: int) -> None:
    assert result["wrong"] == []
    assert sum(result["ends"].values()) == num_requests
    assert result["ends"].get("well", 0) > 0


def test_the_wire_is_cut_while_entries_are_on_the_way() -> None:
    assert_well(trial("--phase", "transfer", limit_s=100), 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wire_is_cut_in_every_phase() -> None:
    result = trial("--rounds", "3", limit_s=880)
    assert_well(result, 3 * len(result["phases"]))
    assert result["entries_fetched"] > 0
