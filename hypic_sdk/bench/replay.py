"""Replay of a made-up RAG trace against a real server: the rate that it bears, arm by arm.

Requests arrive in bursts whether or not the ones before are answered (an open loop); documents
are popular by Zipf's law and their lengths have a heavy tail.  An arm is a mode of reuse with a
server process of its own and the same memory.  First one request has everything compiled; then
callers who ask again as soon as they are answered (a closed loop) fill its cache, and tell its
saturated throughput.  Its rate is raised from a share of that until the median of the time to the
first token is over the limit, then bracketed.  Times are the client's, through HTTP.

With a time for the whole run each arm has an equal share of what is left.  No replay begins that
is not expected to end in it, and whatever still runs when it is over is given up.  What is known
is written after every stage and every replay.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.request import urlopen

import torch

from hypic_sdk.bench.replay_caller import Caller, Replay, ReplayPlan, corpus
from hypic_sdk.bench.replay_report import (
    ArmResult,
    counters_of,
    line_of,
    table_of,
    times_of,
    write,
)
from hypic_sdk.bench.replay_server import STOP_TIMEOUT_S, LateServer, ReplayServer, running
from hypic_sdk.bench.report import circumstances
from hypic_sdk.bench.serving_model import SHAPES, check_shape
from hypic_sdk.client import AsyncHypic
from hypic_sdk.config import DEFAULT_MODE, MODES, EngineConfig, ReuseConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ConfigError
from hypic_sdk.models.qwen_config import Config
from hypic_sdk.offline import find_model
from hypic_sdk.prompt.tokenizer import PromptTokenizer

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_ARMS = (DEFAULT_MODE, "prefix_cache", "full_recompute")
FIRST_SHARE = 0.75  # of the saturated throughput: the rate that is tried first
RATE_STEP = 1.5
SLOWEST = 8  # the first rate over the lowest that is tried
NUM_HALVINGS = 2  # of the bracket that raising the rate ends with
DRAIN_SHARE = 0.5  # of a replay's time that its end is expected to take on top, before one is known
HANG_UP_S = 1.0  # before the time is over: a replay that is cut short is told of, too
COUNTERS_TIMEOUT_S = 2.0


@final
class Time:
    """What is left of an arm's time; seconds."""

    def __init__(self, left_s: float) -> None:
        self._until_s = time.perf_counter() + left_s

    @property
    def left_s(self) -> float:
        """Not below zero."""
        return max(0.0, self._until_s - time.perf_counter())


async def highest_rate(
    first_rate: float,
    limit_s: float,
    replay: Callable[[float], Awaitable[Replay]],
    may_go_on: Callable[[], bool] = lambda: True,
) -> None:
    """Raise the rate while it holds, then halve the bracket; lower it if the first fails.

    Args:
        may_go_on: asked before each replay; false ends the search.
    """
    best, failed, rate = 0.0, math.inf, first_rate
    num_halved = 0
    while may_go_on():
        if (await replay(rate)).holds(limit_s):
            best = rate
        else:
            failed = rate
        if failed == math.inf:
            rate = best * RATE_STEP
        elif best == 0.0:
            if failed <= first_rate / SLOWEST:
                return
            rate = failed / 2
        elif num_halved == NUM_HALVINGS:
            return
        else:
            num_halved += 1
            rate = math.sqrt(best * failed)


@dataclass(slots=True)
class Arm:
    """One arm under way."""

    plan: ReplayPlan
    result: ArmResult
    time: Time
    say: Callable[[str], None]
    save: Callable[[], None]

    @asynccontextmanager
    async def stage(self, name: str) -> AsyncIterator[None]:
        """A part of the arm: timed, known as cut off while it lasts, and written when it ends."""
        began_s, self.result.cut_off = time.perf_counter(), name
        try:
            yield
        finally:
            self.result.took_s[name] = time.perf_counter() - began_s
        self.result.cut_off = ""
        self.save()

    async def measure(self, url: str) -> None:
        """Everything, against a server that nobody else asks; gives up when the time is over."""
        left_s = self.time.left_s
        with suppress(TimeoutError):  # the stage that was cut off is known
            async with asyncio.timeout(None if left_s == math.inf else left_s):
                async with AsyncHypic(url) as client:
                    await self._stages(Caller(client, self.plan))
        self.say(times_of(self.result))
        await asyncio.to_thread(self._count, url)
        self.save()

    async def _stages(self, caller: Caller) -> None:
        plan, result = self.plan, self.result
        async with self.stage("register"):
            mean = await caller.register(corpus(plan.trace))
        told = f"{plan.trace.num_documents} documents of {mean:.0f} tokens on average"
        self.say(f"{result.mode}: {told}")
        async with self.stage("first request"):
            first = await caller.first(min(600.0, self.time.left_s))
        answer = "failed: " + first.error if first.ttft_s is None else f"{first.ttft_s:.1f} s"
        self.say(f"  the first request, which compiles: {answer}")
        async with self.stage("fill and saturate"):
            await self._saturate(caller)
        async with self.stage("search"):
            is_over = await self._search(caller)
        if not is_over:
            result.cut_off = "search"

    async def _saturate(self, caller: Caller) -> None:
        """Callers without a pause, for half of what is left at most."""
        plan, result = self.plan, self.result
        share = min(1.0, self.time.left_s / 2 / (plan.fill_s + plan.seconds))
        found = await caller.saturate(share * plan.fill_s, share * plan.seconds)
        result.saturated_per_s, result.saturated_failed = found.per_s, found.num_failed
        result.saturated_hit_share = found.hit_share
        self.say(
            f"  {plan.num_callers} callers: {found.per_s:.3g} answered a second, "
            f"{found.hit_share:.0%} of their tokens cached, {found.num_failed} failed"
        )

    async def _search(self, caller: Caller) -> bool:
        """Replay after replay; whether the search came to its own end."""
        plan, result = self.plan, self.result
        first_rate = plan.first_rate
        if first_rate is None:  # at least one was answered, or the callers were too impatient
            first_rate = FIRST_SHARE * max(result.saturated_per_s, 1.0 / plan.seconds)
        slowest_s = (1 + DRAIN_SHARE) * plan.seconds
        was_refused = False

        def may_go_on() -> bool:
            nonlocal was_refused
            was_refused = self.time.left_s < slowest_s
            return not was_refused

        async def replay(rate: float) -> Replay:
            nonlocal slowest_s
            began_s = time.perf_counter()
            found = await caller.replay(rate, self.time.left_s - HANG_UP_S)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
            result.heard(found, plan.limit_s)
            self.say(line_of(found, plan.limit_s))
            self.save()
            return found

        await highest_rate(first_rate, plan.limit_s, replay, may_go_on)
        return not was_refused

    def _count(self, url: str) -> None:
        """Take over the server's counters; one that keeps them to itself has none here."""
        try:
            with urlopen(f"{url.removesuffix('/v1')}/metrics", timeout=COUNTERS_TIMEOUT_S) as reply:
                self.result.counters = counters_of(reply.read().decode())
        except OSError as error:
            self.say(f"  no counters: {error}")


def run_replay_bench(
    console: Console,
    *,
    plan: ReplayPlan,
    modes: Sequence[str],
    server: ReplayServer,
    url: str | None = None,
    folder: Path | None = None,
) -> list[ArmResult]:
    """Measure every arm, print the table; replay.json in `folder` is whole at any moment.

    Args:
        url: a server that runs already, which is then the only arm.
    Raises:
        HypicError: no such mode, or the server can not start.
    """
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown:
        raise ConfigError(f"modes are {', '.join(MODES)}, got {unknown[0]!r}")
    whole = Time(math.inf if plan.total_s is None else plan.total_s)
    results: list[ArmResult] = []
    where = circumstances(server.config.device)
    names = ["the server's own"] if url is not None else list(modes)

    def save() -> None:
        if folder is not None:
            write(folder, url or server.words, plan, asdict(where), results)

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for number, name in enumerate(names):
        results.append(ArmResult(name))
        save()
        share_s = whole.left_s / (len(names) - number)
        # the server's own end is not part of what is measured, but of the time
        spare_s = STOP_TIMEOUT_S if url is None and share_s < math.inf else 0.0
        arm = Arm(plan, results[-1], Time(max(0.0, share_s - spare_s)), say, save)
        if url is not None:
            asyncio.run(arm.measure(url))
        else:
            _run_arm(arm, with_mode(server, name))
    console.print(str(where), highlight=False)
    console.print(table_of(results, plan))
    return results


def _run_arm(arm: Arm, server: ReplayServer) -> None:
    began_s, arm.result.cut_off = time.perf_counter(), "start"
    try:
        with running(server, arm.time.left_s) as url:
            arm.result.took_s["start"], arm.result.cut_off = time.perf_counter() - began_s, ""
            arm.save()
            asyncio.run(arm.measure(url))
    except LateServer as error:
        arm.result.took_s["start"] = time.perf_counter() - began_s
        arm.say(f"{arm.result.mode}: {error}")
        arm.save()


def served(
    model: str | None,
    shape: str | None,
    device: str,
    store: StoreConfig,
    capture_ahead_s: float = 0.0,
) -> ReplayServer:
    """What every arm starts, but for its mode.

    Args:
        model: a checkpoint folder or hub id; without it and a shape it is the packaged reader.
    Raises:
        ConfigError: no such shape, one with fewer words than the tokenizer, a shape beside a
            model, or no such device.
        ModelFileError: no such model.
    """
    if shape is not None:
        check_shape(shape)
        if model is not None:
            raise ConfigError("a model or a shape of random weights, not both", shape=shape)
        _check_words(shape)
    # asked without taking memory of a GPU, which is the server's
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    usable = ["auto", "cpu", *(["cuda"] if gpus else []), *gpus]
    if device not in usable:
        raise ConfigError(
            f"no device {device!r} can be used here, only {', '.join(usable)}", device=device
        )
    config = EngineConfig(device=device, store=store, capture_ahead_s=capture_ahead_s)
    if model is None:
        return ReplayServer(None, shape, config)
    folder, name = find_model(model)
    return ReplayServer(str(folder), shape, config, name)


def _check_words(shape: str) -> None:
    """Raise ConfigError for a shape that has no row for a word of the packaged tokenizer."""
    num_words = PromptTokenizer.from_folder(reader_path()).vocab_size
    rows = {name: Config.from_hf(fields).vocab_size for name, fields in SHAPES.items()}
    if rows[shape] < num_words:
        fitting = ", ".join(name for name, count in rows.items() if count >= num_words)
        raise ConfigError(
            f"shape {shape!r} has {rows[shape]} words, the packaged tokenizer has {num_words}: "
            f"shapes that fit it are {fitting}",
            shape=shape,
        )


def with_mode(server: ReplayServer, mode: str) -> ReplayServer:
    """The same server in another mode."""
    reuse: ReuseConfig = replace(server.config.reuse, mode=MODES[mode])
    config: EngineConfig = replace(server.config, reuse=reuse)
    return replace(server, config=config)
