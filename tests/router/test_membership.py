"""Who can be given work: random lives of workers against plain books."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.router.membership import Membership, WorkerState


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.members = Membership(silent_after_s=3.0, now_s=self.clock)
        self.born = 0
        self.tasks = 0
        self.state: dict[WorkerId, str] = {}
        self.heard: dict[WorkerId, float] = {}
        self.work: dict[WorkerId, dict[str, float]] = {}

    def any_worker(self, data: st.DataObject) -> WorkerId:
        return data.draw(st.sampled_from(sorted(self.state)))

    @rule()
    def join(self) -> None:
        worker = WorkerId(f"w{self.born}")
        self.born += 1
        self.members.join(worker)
        self.state[worker], self.work[worker] = "joining", {}
        self.heard[worker] = self.clock.now_s

    @precondition(lambda self: self.state)
    @rule(data=st.data(), what=st.sampled_from(["ready", "heard", "leaving"]))
    def change(self, data: st.DataObject, what: str) -> None:
        worker = self.any_worker(data)
        if what == "leaving":
            self.members.drain(worker)
            self.state[worker] = "leaving"
        elif what == "ready":
            self.members.ready(worker)
            self.state[worker], self.heard[worker] = "ready", self.clock.now_s
        else:
            self.members.heard(worker)
            self.heard[worker] = self.clock.now_s

    @precondition(lambda self: self.state)
    @rule(data=st.data(), cost=st.floats(0, 1e6))
    def begin(self, data: st.DataObject, cost: float) -> None:
        worker = self.any_worker(data)
        self.tasks += 1
        self.members.begin(worker, f"t{self.tasks}", cost)
        self.work[worker][f"t{self.tasks}"] = cost

    @precondition(lambda self: self.state)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        task = data.draw(st.sampled_from([*sorted(self.work[worker]), "unknown"]))
        self.members.end(worker, task)
        self.work[worker].pop(task, None)

    @precondition(lambda self: self.state)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = self.any_worker(data)
        assert set(self.members.leave(worker)) == set(self.work.pop(worker))
        del self.state[worker], self.heard[worker]
        assert self.members.leave(worker) == ()
        self.members.heard(worker)
        self.members.end(worker, "t1")

    @rule(seconds=st.sampled_from([0.5, 2.0, 4.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @invariant()
    def states_and_loads_agree(self) -> None:
        loads = self.members.loads_ms()
        states = self.members.states()
        assert set(states) == set(self.state)
        for worker, state in self.state.items():
            is_silent = self.clock.now_s - self.heard[worker] > 3.0
            expected = "silent" if state == "ready" and is_silent else state
            assert states[worker] is WorkerState(expected)
            assert (worker in loads) == (expected == "ready")
            if worker in loads:
                assert loads[worker] == pytest.approx(sum(self.work[worker].values()), abs=1e-3)
                assert self.work[worker] or loads[worker] == 0.0


TestLives = Lives.TestCase
