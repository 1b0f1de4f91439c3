"""How long a call takes a device: on CUDA as replays of a graph, so that launches do not count."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

NUM_RUNS = 20
_WARM_RUNS = 3


def microseconds_of(
    call: Callable[[], object], device: torch.device, num_runs: int = NUM_RUNS
) -> list[float]:
    """Microseconds of each run.

    Args:
        call: the same work each time, over the same memory; on CUDA it may not look at a value.
    """
    for _ in range(_WARM_RUNS):
        call()
    if device.type != "cuda":
        return [_on_host(call) for _ in range(num_runs)]
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    return [_on_device(graph) for _ in range(num_runs)]


def _on_host(call: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start_s)


def _on_device(graph: torch.cuda.CUDAGraph) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    stop.record()
    stop.synchronize()
    return 1e3 * start.elapsed_time(stop)
