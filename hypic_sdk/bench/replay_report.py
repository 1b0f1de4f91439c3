"""What a replay of a trace found: a line, a table, and a file that is whole at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from hypic_sdk.bench.replay_caller import Replay, ReplayPlan
from hypic_sdk.bench.report import write_whole

COUNTED = ("hypic_graph_", "hypic_eager_", "hypic_prompt_tokens_total", "hypic_evict")


@dataclass(slots=True)
class ArmResult:
    """All that is known of one arm by now."""

    mode: str
    replays: list[Replay] = field(default_factory=list)
    best: Replay | None = None  # the highest rate that held
    saturated_per_s: float = 0.0
    saturated_hit_share: float = 0.0
    saturated_failed: int = 0
    took_s: dict[str, float] = field(default_factory=dict)  # by stage
    cut_off: str = ""  # the stage in which the arm's time was over
    counters: dict[str, float] = field(default_factory=dict)  # of the server's /metrics, at last

    def heard(self, found: Replay, limit_s: float) -> None:
        """Take over one more replay."""
        self.replays.append(found)
        if found.holds(limit_s) and (self.best is None or found.rate > self.best.rate):
            self.best = found


def counters_of(metrics: str) -> dict[str, float]:
    """What a server's /metrics say of forwards and of tokens, zeros left out."""
    lines = (line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith(COUNTED))
    found = {name: float(value) for name, value in lines if "_created" not in name}
    return {name: value for name, value in found.items() if value}


def write(
    folder: Path, served: str, plan: ReplayPlan, where: Mapping[str, Any], arms: Iterable[ArmResult]
) -> None:
    """Replace replay.json in one move; who reads it, or ends this, finds a whole one."""
    report = {
        "bench": "replay",
        "served": served,
        "plan": asdict(plan),
        "circumstances": dict(where),
        "arms": [asdict(one) for one in arms],
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1).replace("Infinity", "null")
    write_whole(folder / "replay.json", text + "\n")


def line_of(found: Replay, limit_s: float) -> str:
    """A replay in a line."""
    return (
        f"  {found.rate:.3g}/s: p50 {found.p50_s:.2f} s, p99 {found.p99_s:.2f} s, "
        f"{found.hit_share:.0%} of {found.mean_prompt_tokens:.0f} tokens cached, "
        f"{found.num_failed} of {found.num_requests} failed{found.errors or ''}"
        f"{'' if found.holds(limit_s) else ': does not hold'}"
    )


def times_of(result: ArmResult) -> str:
    """What each stage of an arm took, in a line."""
    told = ", ".join(f"{stage} {took_s:.1f}" for stage, took_s in result.took_s.items())
    cut = f"; its time was over in: {result.cut_off}" if result.cut_off else ""
    return f"  seconds: {told}{cut}"


def table_of(results: Sequence[ArmResult], plan: ReplayPlan) -> Table:
    """The arms side by side; ratios are over the prefix cache's, where it was measured."""
    by_mode = {one.mode: one for one in results}
    base = by_mode.get("prefix_cache")
    table = Table(
        "arm", f"rate at p50 <= {plan.limit_s:g} s", "over prefix cache", "p50 s", "p99 s",
        "cached", "saturated, requests/s", "over prefix cache", "cached",
    )  # fmt: skip
    for one in results:
        best = one.best
        over = saturated_over = "-"
        if base is not None and base.best is not None and best is not None:
            over = f"{best.rate / base.best.rate:.2f}x"
        if base is not None and base.saturated_per_s > 0:
            saturated_over = f"{one.saturated_per_s / base.saturated_per_s:.2f}x"
        table.add_row(
            one.mode,
            "none held" if best is None else f"{best.rate:.3g}/s",
            over,
            "-" if best is None else f"{best.p50_s:.2f}",
            "-" if best is None else f"{best.p99_s:.2f}",
            "-" if best is None else f"{best.hit_share:.0%}",
            f"{one.saturated_per_s:.3g}",
            saturated_over,
            f"{one.saturated_hit_share:.0%}",
        )
    return table
