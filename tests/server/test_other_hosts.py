"""Workers of other hosts join under a key, answer as ours do, die, and come back empty."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hypic_sdk.server.fleet import Fleet
from tests.server.test_fleet import (
    SMALL,
    START_TIMEOUT_S,
    events_of,
    ids_of,
    request,
    until,
)
from tests.server.towns import (
    HUNG_AFTER_S,
    OTHER_HOST,
    ROUTER_HOST,
    Town,
    children_of,
    host,
    open_town,
    states,
)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with open_town(tmp_path) as one:
        yield one


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_workers_of_two_hosts_join_answer_die_and_come_back(town: Town) -> None:
    fleet = town.fleet
    with Fleet(SMALL, 1) as single:
        single.wait_ready(START_TIMEOUT_S)
        messages = [request(f"m{n}", range(10 * n, 10 * n + 6), 8) for n in range(6)]
        expected = [ids_of(events_of(single, message)) for message in messages]
    with host(town, "a", ROUTER_HOST), host(town, "b", OTHER_HOST) as other:
        ready = fleet.wait_ready(START_TIMEOUT_S)
        assert ready.vocab_size > 0
        until(lambda: states(town) == {"a_0": "ready", "b_0": "ready"})
        # where each hears the other is told with its first sign of life
        until(lambda: len(fleet.endpoints) == 2)
        assert ids_of(events_of(fleet, messages[0])) == expected[0]
        assert ids_of(events_of(fleet, messages[1])) == expected[1]
        until(lambda: sum(f.num_fetched for f in fleet.link.worker_facts().values()) > 0)
        (victim,) = children_of(other.pid)
        before = fleet.link.generation()
        stream = fleet.link.submit(messages[2])
        os.kill(victim, signal.SIGKILL)
        events = list(stream)
        last = events[-1]
        assert last.finish_reason is not None
        if last.error is None:
            assert ids_of(events) == expected[2]
        else:
            assert last.error["code"] in ("worker_lost", "worker_error"), last.error
        until(lambda: fleet.link.generation() > before)
        until(lambda: states(town) == {"a_0": "ready", "b_0": "ready"})
        assert fleet.health.ready is not None
        for message, ids in zip(messages[3:], expected[3:], strict=True):
            assert ids_of(events_of(fleet, message)) == ids
        assert fleet.link.usage()["num_leases"] == 0
        facts = fleet.link.worker_facts()
        assert set(facts) == {"a_0", "b_0"}
    until(lambda: states(town) == {}, 10)
    last = events_of(fleet, request("nobody", range(3)))[-1]
    assert last.error is not None
    assert last.error["code"] == "worker_lost"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
def test_a_worker_of_another_host_helps_those_of_the_routers_own(tmp_path: Path) -> None:
    with open_town(tmp_path, num_workers=1) as town:
        fleet = town.fleet
        fleet.wait_ready(START_TIMEOUT_S)
        alone = ids_of(events_of(fleet, request("one", range(6), 8)))
        with host(town, "b", OTHER_HOST, "--device", "cpu", "--cache-mib", "64"):
            until(lambda: states(town) == {"w0": "ready", "b_0": "ready"})
            until(lambda: len(fleet.endpoints) == 2)
            message = request("two", range(20, 26), 8)
            assert len(fleet.link.router.plan(message).cold) == 2
            assert len(ids_of(events_of(fleet, message))) == 8
            assert ids_of(events_of(fleet, request("three", range(6), 8))) == alone
            until(lambda: sum(f.num_fetched for f in fleet.link.worker_facts().values()) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGSTOP, signal.SIGTERM])
def test_a_host_that_goes_silent_or_leaves_is_told_apart_from_one_that_works(
    town: Town, signal_number: signal.Signals
) -> None:
    with host(town, "a", ROUTER_HOST) as process:
        town.fleet.wait_ready(START_TIMEOUT_S)
        (child,) = children_of(process.pid)
        started_s = time.monotonic()
        os.kill(child, signal_number)
        try:
            gone_within_s = HUNG_AFTER_S + 3.0 if signal_number == signal.SIGSTOP else 3.0
            (old,) = town.fleet.link.workers()
            until(lambda: old not in town.fleet.link.workers(), gone_within_s)
            assert time.monotonic() - started_s < gone_within_s
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        # it hears that it is not known any more, ends, and another comes
        until(lambda: states(town) == {"a_0": "ready"})


def test_a_worker_that_is_refused_for_good_is_not_started_again(town: Town) -> None:
    """The router takes no place of that name, however often it is asked."""
    with host(town, "not/a/name", ROUTER_HOST) as process:
        assert process.wait(60) == 2


def test_a_command_line_that_can_not_work_says_so(tmp_path: Path) -> None:
    key_file = tmp_path / "k"
    run = [sys.executable, "-m", "hypic_sdk.cli"]
    assert subprocess.run([*run, "worker-key", str(key_file)], check=False).returncode == 0
    assert key_file.stat().st_mode & 0o077 == 0
    words = ["worker", "--router", "127.0.0.1:1", "--host"]
    for host_address, key in (("0.0.0.0", key_file), ("127.0.0.1", tmp_path / "none")):
        done = subprocess.run(
            [*run, *words, host_address, "--key", str(key)], capture_output=True, check=False
        )
        assert done.returncode == 2, done.stderr
    for extra in (["--gate", "127.0.0.1:0"], ["--worker-key", str(key_file)], ["--workers", "0"]):
        done = subprocess.run([*run, "serve", *extra], capture_output=True, check=False)
        assert done.returncode == 2, done.stderr


def free_port() -> int:
    with socket.create_server((ROUTER_HOST, 0)) as one:
        return int(one.getsockname()[1])


def answer_of(url: str, **body: object) -> dict:
    data = json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def is_ready(url: str) -> dict | None:
    try:
        with urllib.request.urlopen(f"{url}/health/ready", timeout=5) as answer:
            return json.load(answer)
    except OSError:  # not there yet, or not ready
        return None


@pytest.mark.slow
def test_a_server_without_workers_answers_by_those_that_torchrun_starts(tmp_path: Path) -> None:
    gate, port, key = f"{ROUTER_HOST}:{free_port()}", free_port(), str(tmp_path / "key")
    hypic = [sys.executable, "-m", "hypic_sdk.cli"]
    subprocess.run([*hypic, "worker-key", key], check=True)
    serve = ["serve", "--workers", "0", "--gate", gate, "--worker-key", key, "--port", str(port),
             "--segments-file", str(tmp_path / "texts")]  # fmt: skip
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node", "2", "--max-restarts", "3", "--no-python"]  # fmt: skip
    worker = ["worker", "--router", gate, "--key", key, "--host", ROUTER_HOST, "--place", "box"]
    server = subprocess.Popen([*hypic, *serve])
    launcher = subprocess.Popen([*torchrun, *hypic, *worker])
    url = f"http://{ROUTER_HOST}:{port}"
    try:
        until(lambda: (is_ready(url) or {}).get("workers") == {"box_0": "ready", "box_1": "ready"})
        documents = [{"text": f"Town {n} lies on the river {n}. " * 12} for n in range(6)]
        body = {"messages": [{"role": "user", "content": "Where?"}], "documents": documents}
        said = answer_of(f"{url}/v1/chat/completions", max_tokens=4, **body)
        assert said["usage"]["completion_tokens"] > 0
    finally:
        for process in (launcher, server):
            process.terminate()
        assert server.wait(30) == 0
        launcher.wait(30)
