"""Processes are killed and stopped, addresses swallow bytes: every request ends, nothing leaks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest


def has_namespaces() -> bool:
    """Whether this machine lets us have a network of our own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    trial = ["unshare", "-rn", "ip", "link", "set", "lo", "up"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def storm(num_faults: int, num_workers: int, limit_s: float) -> dict[str, Any]:
    words = ["--faults", str(num_faults), "--workers", str(num_workers)]
    command = [sys.executable, "-m", "tests.cluster.soak.storm", *words]
    if has_namespaces():
        # without, links that swallow bytes are those of test_broken_links.py alone
        command = ["unshare", "-rn", *command, "--holes"]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=limit_s, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def assert_well(result: dict[str, Any], num_faults: int) -> None:
    assert result["wrong"] == []
    assert sum(result["faults"].values()) == num_faults
    assert result["ends"]["well"] > 0
    assert result["ends"].get("request_rejected", 0) <= result["restarts"] // 2
    assert result["entries_compared"] > 0


def test_a_short_storm() -> None:
    assert_well(storm(5, 2, 150), 5)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_hundred_faults() -> None:
    result = storm(200, 4, 1400)
    assert_well(result, 200)
    assert result["entries_fetched"] > 0
