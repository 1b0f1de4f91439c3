"""Whatever is told an op in numbers of the host, rows or slots, it refuses what lies beyond them.

A kernel would read or write there: the door refuses it before anything runs, whichever
implementation is chosen.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hypic_sdk.kernels import backend
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.kernels.items import ColdRun, Item, ItemKind
from hypic_sdk.kernels.live_attention.op import live_attention
from hypic_sdk.kernels.live_scan.op import live_scan
from hypic_sdk.kernels.scan_inputs import ScanInputs
from hypic_sdk.kernels.segment_scan.op import segment_scan
from hypic_sdk.kernels.shared_attention.op import shared_attention
from hypic_sdk.kernels.shared_attention.plan import SharedRun
from hypic_sdk.kernels.short_conv.op import short_conv
from hypic_sdk.kernels.short_conv.table import ConvTable
from tests.source_tree import PACKAGE, parsed
from tests.strategies import Shape, drawn

LOAD, RUN, GAP, SAVE = ItemKind
ROWS, SLOTS, TRANSITIONS, WORK = 9, 5, 3, 2
CPU = torch.device("cpu")


def inputs() -> ScanInputs:
    return drawn("gla", ROWS, Shape(2, 5, 3), 0, torch.float32).scan_inputs()


def pairs() -> Int8Pairs:
    return Int8Pairs.allocate((TRANSITIONS,), (2, 5, 3), (2, 5), torch.float32, CPU)


def conv(items: list[Item] = (), cold_runs: list[ColdRun] = ()) -> None:
    tails, work = torch.zeros(SLOTS, 2, 4), torch.zeros(WORK, 2, 4)
    short_conv(
        torch.zeros(ROWS, 4), torch.zeros(4, 3), None, activation=None, items=items,
        cold_runs=cold_runs, tails_SWC=tails, work_tails_XWC=work,
    )  # fmt: skip


def conv_table(items: list[Item] = (), cold_runs: list[ColdRun] = ()) -> None:
    ConvTable.of(items, cold_runs, (ROWS, 3, SLOTS), CPU)
    backend.select("planned", print, None, device=CPU)


def scan(items: list[Item]) -> None:
    live_scan(inputs(), items, torch.zeros(SLOTS, 2, 5, 3), torch.zeros(TRANSITIONS, 2, 5))


def scan_int8(items: list[Item]) -> None:
    live_scan(inputs(), items, torch.zeros(SLOTS, 2, 5, 3), pairs())


def cold_scan(runs: list[ColdRun]) -> None:
    out = torch.zeros(ROWS, 2, 3)
    segment_scan(inputs(), runs, torch.zeros(SLOTS, 2, 5, 3), torch.zeros(TRANSITIONS, 2, 5),
                 torch.zeros(WORK, 2, 5, 3), torch.zeros(WORK, 2, 5), out_LHV=out)  # fmt: skip


def attention(start: int, stop: int) -> None:
    slab = torch.zeros(40, 1, 4)
    run = AttentionRun(start, stop, 3, torch.arange(40))
    live_attention(torch.zeros(ROWS, 2, 4), [run], slab, slab, scale=1.0)


def shared(start: int, stop: int) -> None:
    slab, angles = torch.zeros(40, 1, 4), torch.zeros(40, 2)
    run = SharedRun(start, stop, 3, torch.arange(40), 3, ())
    shared_attention(torch.zeros(ROWS, 2, 4), [run], slab, slab, cos=angles, sin=angles,
                     turn="query", scale=1.0)  # fmt: skip


def whole_cold(start: int, stop: int) -> list[ColdRun]:
    """A whole segment over these rows."""
    return [ColdRun(start, stop, 0, stop - start, 0, 0, 1, 1)]


def items_over(start: int, stop: int) -> list[Item]:
    return [Item(LOAD), Item(RUN, start, stop)]


# of every op that is told rows, and whether a run of none is one
RUNS: dict[str, tuple[Callable[[int, int], None], bool]] = {
    "short_conv items": (lambda a, b: conv(items_over(a, b)), True),
    "short_conv cold_runs": (lambda a, b: conv(cold_runs=whole_cold(a, b)), False),
    "short_conv table": (lambda a, b: conv_table(items_over(a, b)), True),
    "live_scan items": (lambda a, b: scan(items_over(a, b)), True),
    "segment_scan cold_runs": (lambda a, b: cold_scan(whole_cold(a, b)), False),
    "live_attention runs": (attention, False),
    "shared_attention runs": (shared, False),
}


@pytest.fixture(scope="module", autouse=True)
def ran() -> Iterator[list[str]]:
    """The ops that got as far as to run."""
    ran: list[str] = []

    def select(op: str, *_: Any, **__: Any) -> Callable[..., torch.Tensor]:
        ran.append(op)
        return lambda *_, **__: torch.ones(1, dtype=torch.bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "select", select)
        yield ran


def is_taken(ran: list[str], call: Callable[[], None]) -> bool:
    """Whether an op runs; else it refuses, and nothing has run."""
    ran.clear()
    try:
        call()
    except ValueError:
        assert not ran
        return False
    assert ran
    return True


@pytest.mark.parametrize("op", RUNS)
def test_runs_beyond_the_rows_are_refused(op, ran):
    """All that begin or end near an end of the batch."""
    call, may_be_empty = RUNS[op]
    for start, stop in itertools.product(range(-2, ROWS + 3), repeat=2):
        if op == "short_conv table" and start == stop:
            continue  # nothing is planned for it
        fits = 0 <= start <= stop <= ROWS and (may_be_empty or start < stop)
        taken = is_taken(ran, lambda start=start, stop=stop: call(start, stop))
        assert taken is fits, (start, stop)


GAP_ROW = {"slot": 1, "transition_slot": 1, "num_tokens": 4}
# of every slab that is told a row of: how many it has, and a call with that row
SLOT_CALLS: dict[str, tuple[int, Callable[[int], None]]] = {
    "short_conv load": (SLOTS, lambda n: conv([Item(LOAD, slot=n)])),
    "short_conv gap": (SLOTS, lambda n: conv([Item(LOAD), Item(GAP, slot=n)])),
    "short_conv save": (SLOTS, lambda n: conv([Item(LOAD), Item(SAVE, slot=n)])),
    "short_conv tail": (SLOTS, lambda n: conv(cold_runs=[ColdRun(0, 9, 0, 9, 0, 0, n, 1)])),
    "short_conv work": (WORK, lambda n: conv(cold_runs=[ColdRun(0, 9, 0, 12, 0, 0, 1, 1, n)])),
    "live_scan load": (SLOTS, lambda n: scan([Item(LOAD, slot=n)])),
    "live_scan save": (SLOTS, lambda n: scan([Item(LOAD), Item(SAVE, slot=n)])),
    "live_scan gap": (SLOTS, lambda n: scan([Item(LOAD), Item(GAP, **{**GAP_ROW, "slot": n})])),
    "live_scan transition": (
        TRANSITIONS,
        lambda n: scan([Item(LOAD), Item(GAP, **{**GAP_ROW, "transition_slot": n})]),
    ),
    "live_scan pair": (
        TRANSITIONS,
        lambda n: scan_int8([Item(LOAD), Item(GAP, **{**GAP_ROW, "transition_slot": n})]),
    ),
    "segment_scan state": (SLOTS, lambda n: cold_scan([ColdRun(0, 9, 0, 9, 0, 0, n, 1)])),
    "segment_scan transition": (
        TRANSITIONS,
        lambda n: cold_scan([ColdRun(0, 9, 0, 9, 0, 0, 1, n)]),
    ),
    "segment_scan work": (WORK, lambda n: cold_scan([ColdRun(0, 9, 0, 12, 0, 0, 1, 1, n)])),
}
# NO_SLOT there is zeros, or nothing to do
MAY_BE_NONE = {"short_conv load", "short_conv gap", "short_conv save", "live_scan load"}


@pytest.mark.parametrize("place", SLOT_CALLS)
def test_slots_beyond_the_slabs_are_refused(place, ran):
    limit, call = SLOT_CALLS[place]
    for slot in range(-3, limit + 3):
        fits = 0 <= slot < limit or (slot == -1 and place in MAY_BE_NONE)
        assert is_taken(ran, lambda slot=slot: call(slot)) is fits, slot


def test_the_tail_of_a_pair_in_8_bits_lies_behind_the_states(ran):
    """Its slot is none of the state slab, so nothing is said against it."""
    item = Item(GAP, **{**GAP_ROW, "slot": SLOTS + 1})
    assert is_taken(ran, lambda: scan_int8([Item(LOAD), item]))


def test_every_op_that_is_told_runs_is_asked_here():
    told = {
        f"{node.name} {argument.arg}"
        for path in (PACKAGE / "kernels").glob("*/op.py")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.arg in ("items", "cold_runs", "runs")
    }
    assert told == set(RUNS) - {"short_conv table"}
