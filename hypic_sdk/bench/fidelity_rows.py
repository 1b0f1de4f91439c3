"""Cases through arms: case after case, so that a run that is cut off is a smaller run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

from hypic_sdk.bench.fidelity_arms import FULL, Arm, Bench, FullReply, Row, full_row, usable
from hypic_sdk.bench.fidelity_cases import Case
from hypic_sdk.bench.kept_rows import KeptRows, TimeLimit

Say = Callable[[str], None]
T = TypeVar("T")


def in_turns(cases: Sequence[Case]) -> list[tuple[int, Case]]:
    """The numbered cases world by world: strata in turn, for each number of documents in turn.

    So any beginning of them is much like the whole.  All cases of a world stand together.
    """
    worlds: dict[str, list[tuple[int, Case]]] = {}
    for number, case in enumerate(cases):
        worlds.setdefault(case.world, []).append((number, case))
    kinds: dict[str, list[str]] = {}
    for world in worlds:
        kinds.setdefault(world.rpartition("/")[0], []).append(world)  # stratum and count
    strata: dict[str, list[list[str]]] = {}
    for kind, own in kinds.items():
        strata.setdefault(kind.rpartition("/")[0], []).append(own)
    turns = _in_turn(_in_turn(strata.values()))
    return [one for world in turns for one in worlds[world]]


def _in_turn(lists: Iterable[Sequence[T]]) -> list[T]:
    """The first of each list, then the second of each that has one, and so on."""
    turns = itertools.zip_longest(*lists)
    return [one for turn in turns for one in turn if one is not None]


def arm_rows(bench: Bench, arms: Sequence[Arm]) -> Callable[[FullReply], Iterable[Row]]:
    """A case in every arm that it means something for."""
    return lambda full: [bench.row(arm, full) for arm in arms if usable(arm, full.case)]


def measure_rows(
    bench: Bench,
    cases: Sequence[Case],
    rows_for: Callable[[FullReply], Iterable[Row]],
    kept: KeptRows,
    say: Say,
    *,
    limit: TimeLimit,
    share: float = 1.0,
    on_case: Callable[[int], None] = lambda number: None,
) -> list[Row]:
    """Full recompute's row of every case and those beside it; kept ones are not run again.

    Args:
        rows_for: the other rows of a case.
        limit, share: no case but the first is begun when that share of the time has passed.
        on_case: told of each finished case how many there are.
    """
    done = _finished(kept)
    begun_s, num_run = limit.passed_s, 0
    if done:
        say(f"{len(done)} prompts are kept from an earlier run")
    for number, case in in_turns(cases):
        if number in done:
            continue
        if done and limit.is_over(share):
            say(f"cut off after {len(done)} of {len(cases)} prompts")
            break
        full = bench.full(case, number)
        rows = [full_row(bench.subject, full), *rows_for(full)]
        for row in rows:
            kept.add({**asdict(row), "last": row is rows[-1]})
        done.add(number)
        num_run += 1
        on_case(len(done))
        if num_run in _MARKS or num_run % 20 == 0:
            each_s = (limit.passed_s - begun_s) / num_run
            rest_s = each_s * (len(cases) - len(done))
            say(f"{len(done)} of {len(cases)} prompts, about {math.ceil(rest_s)} s to go")
    return list(rows_of(kept))


_MARKS = (1, 3, 10)


def _finished(kept: KeptRows) -> set[int]:
    return {row["case"] for row in kept.rows if row["last"]}


def rows_of(kept: KeptRows) -> Iterator[Row]:
    """Of finished cases; those of a case that was cut off and run again stand only once."""
    done = _finished(kept)
    found: dict[tuple[int, str], Row] = {}
    for row in kept.rows:
        if row["case"] in done:
            fields = {name: value for name, value in row.items() if name != "last"}
            found[row["case"], row["arm"]] = Row(**fields)
    arms = dict.fromkeys((FULL, *(row.arm for row in found.values())))
    order = {arm: at for at, arm in enumerate(arms)}
    yield from sorted(found.values(), key=lambda row: (order[row.arm], row.case))
