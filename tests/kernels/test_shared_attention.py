"""Keys that lie in their segment's own slots: the same as a full copy at the right positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.live_attention import plan as stretches
from hypic_sdk.kernels.live_attention import reference as private
from hypic_sdk.kernels.rotation import RotarySpec, rotary_angles, rotate
from hypic_sdk.kernels.shared_attention import kernel, plan
from hypic_sdk.kernels.shared_attention.op import shared_attention
from hypic_sdk.kernels.shared_attention.plan import SharedInterior, SharedRun, plan_shared
from tests.closeness import assert_close

NUM_SLOTS = 200
# as for live_attention; bf16 and fp16: one more rounding of queries or keys
BOUNDS = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 2**-9}


class Scene:
    """Two requests over cached interiors; what each arm reads, and the plain definition."""

    def __init__(self, seed: int, interiors: list[int], heads: tuple[int, int], E: int, F: int):
        rng = torch.Generator().manual_seed(seed)
        Q, G = heads
        self.scale, self.count = E**-0.5, 0

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=rng, dtype=torch.float64)

        self.slots = iter(torch.randperm(NUM_SLOTS, generator=rng))
        cached = [(n, 1 + i, self._take(n)) for i, n in enumerate(interiors)]
        self.raw, self.values = draw(NUM_SLOTS, G, E), draw(NUM_SLOTS, G, E)
        self.cos, self.sin = rotary_angles(
            RotarySpec(100.0, 2 * F), torch.arange(400), torch.float64
        )
        self.local, self.unrotated = self.raw.clone(), self.raw.clone()
        for n, head, slots in cached:
            self.local[slots] = self._turn(self.raw[slots], torch.arange(head, head + n))
        self.runs: list[SharedRun] = []
        self.wanted: list[torch.Tensor] = []
        self.query = draw(2 * (3 * len(cached) + 5), Q, E)
        for order in (cached, cached[::-1]):
            self._request(order)

    def _take(self, n: int) -> torch.Tensor:
        return torch.stack([next(self.slots) for _ in range(n)]) if n else torch.zeros(0).long()

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return rotate(x, self.cos[positions], self.sin[positions])

    def _request(self, order: list[tuple[int, int, torch.Tensor]]) -> None:
        """Three live rows before each interior, of which `head` are its seam; five at the end."""
        live = self._take(3 * len(order) + 5)
        position, done, seen = 0, 0, []
        places: list[tuple[torch.Tensor, torch.Tensor]] = []  # slots, positions
        for n, head, slots in [*order, (0, 0, None)]:
            rows = 3 if n else 5
            own, at = live[done : done + rows], torch.arange(position, position + rows)
            for slab in (self.local, self.unrotated):
                slab[own] = self._turn(self.raw[own], at)
            places.append((own, at))
            self.runs.append(
                SharedRun(self.count, self.count + rows, position, live, done, tuple(seen))
            )
            self._want(position, rows, places)
            position, done = position + rows, done + rows
            if n:
                seen.append(SharedInterior(position, head, slots))
                places.append((slots, torch.arange(position, position + n)))
                position += n

    def _want(self, position: int, rows: int, places: list) -> None:
        slots, at = (torch.cat(x) for x in zip(*places, strict=True))
        query = self._turn(
            self.query[self.count : self.count + rows], torch.arange(position, position + rows)
        )
        keys, out = self._turn(self.raw[slots], at), torch.empty_like(query)
        run = AttentionRun(0, rows, len(slots) - rows, torch.arange(len(slots)))
        private.live_attention(
            query, [run], keys, self.values[slots], scale=self.scale, out_LQE=out
        )
        self.wanted.append(out)
        self.count += rows

    def arguments(self, turn: plan.Turn, dtype: torch.dtype) -> tuple[tuple, dict]:
        keys = self.local if turn == "query" else self.unrotated
        wide = torch.promote_types(dtype, torch.float32)
        tensors = (x.to(dtype) for x in (self.query, keys, self.values))
        query, keys, values = tensors
        angles = {"cos": self.cos.to(wide), "sin": self.sin.to(wide)}
        return (query, self.runs, keys, values), {**angles, "turn": turn, "scale": self.scale}

    @property
    def want(self) -> torch.Tensor:
        return torch.cat(self.wanted)


scenes = {
    "seed": st.integers(0, 2**31),
    "interiors": st.lists(st.sampled_from([1, 2, 7, 19]), max_size=3),
    "heads": st.sampled_from([(1, 1), (4, 4), (6, 2)]),
    "dims": st.sampled_from([(4, 1), (21, 4), (32, 16)]),
    "turn": st.sampled_from(["query", "key"]),
}


@settings(max_examples=50)
@given(**scenes, dtype=st.sampled_from(list(BOUNDS)))
def test_both_ways_agree_with_rotated_private_copies(seed, interiors, heads, dims, turn, dtype):
    scene = Scene(seed, interiors, heads, *dims)
    arguments, options = scene.arguments(turn, dtype)
    got = shared_attention(*arguments, **options)
    assert got.dtype == dtype
    assert_close("attention", got, scene.want, rel_rms=BOUNDS[dtype])


@settings(max_examples=12)  # the interpreter runs one program at a time
@given(
    **scenes,
    dtype=st.sampled_from([torch.float32, torch.float16]),
    split=st.sampled_from([(4, 64), (4, 4), (1024, 64)]),
    is_kept=st.booleans(),
)
def test_the_kernel_agrees_with_them_too(seed, interiors, heads, dims, turn, dtype, split, is_kept):
    scene = Scene(seed, interiors, heads, *dims)
    arguments, options = scene.arguments(turn, dtype)
    out = torch.full_like(arguments[0], torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "SPLIT_KEYS", split[0])
        patch.setattr(stretches, "FEW_KEYS", split[0])
        patch.setattr(stretches, "SPLIT_ROWS", split[1])
        if is_kept:  # one table for all layers
            group, is_wide = heads[0] // heads[1], dtype == torch.float32
            options["table"] = plan.SharedTable.of(scene.runs, group, turn, is_wide=is_wide)
        kernel.shared_attention(*arguments, **options, out_LQE=out)
    assert_close("attention", out, scene.want, rel_rms=BOUNDS[dtype])


@pytest.mark.parametrize("turn", ["query", "key"])
@pytest.mark.parametrize("run_it", ["reference", "kernel"])
def test_a_shifted_interior_is_seen(turn, run_it):
    """The offset takes part: one position off, and the answer is another."""
    scene = Scene(5, [19, 7], (6, 2), 32, 16)
    (query, runs, keys, values), options = scene.arguments(turn, torch.float32)
    wrong = [
        replace(run, interiors=tuple(replace(x, position=x.position + 1) for x in run.interiors))
        for run in runs
    ]
    if turn == "query":  # positions may not fall below zero
        wrong = [run for run in wrong if run.interiors]
    if run_it == "kernel":
        out = torch.zeros_like(query)
        kernel.shared_attention(query, wrong, keys, values, **options, out_LQE=out)
    else:
        out = shared_attention(query, wrong, keys, values, **options)
    last = slice(runs[-1].row_start, runs[-1].row_stop)
    with pytest.raises(AssertionError, match="attention"):
        assert_close("attention", out[last], scene.want[last], rel_rms=1e-3)


@settings(max_examples=30)
@given(**{name: scenes[name] for name in ("seed", "interiors", "turn")})
def test_tasks_cover_every_row_and_key_once(seed, interiors, turn):
    scene = Scene(seed, interiors, (4, 2), 4, 1)
    starts = [1000 * i for i in range(len(scene.runs))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "SPLIT_KEYS", 5)
        patch.setattr(stretches, "FEW_KEYS", 3)
        tasks, merges = plan_shared([*zip(scene.runs, starts, strict=True)], 2, turn)
    found = [
        (row, task.slots_start + key)
        for task in tasks
        for row in range(task.row, task.row + task.num_rows)
        for key in range(task.first_key, task.stop_key)
        if key <= task.last_key + row - task.row
    ]
    assert len(found) == len(set(found))
    want = {
        (run.row_start + i, start + key)
        for run, start in zip(scene.runs, starts, strict=True)
        for i in range(run.num_rows)
        for key in (
            *range(run.first_live + i + 1),
            *range(
                len(run.live_slots), len(run.live_slots) + sum(len(x.slots) for x in run.interiors)
            ),
        )
    }
    assert set(found) == want
    assert {task.partial for task in tasks if task.partial >= 0} == set(
        range(sum(merge.num_partials for merge in merges if merge.place == 0))
    )


def test_wrong_shapes_are_named():
    scene = Scene(0, [7], (6, 2), 8, 2)
    (query, runs, keys, values), options = scene.arguments("key", torch.float32)
    with pytest.raises(ValueError, match=r"\(200, 2, 7\)"):
        shared_attention(query, runs, keys, values[..., 1:], **options)
    cut = {**options, "cos": options["cos"][:9], "sin": options["sin"][:9]}
    with pytest.raises(ValueError, match="position 15 of 9"):
        shared_attention(query, runs, keys, values, **cut)
    with pytest.raises(ValueError, match="heads of 2"):
        shared_attention(query[..., :2], runs, keys[..., :2], values[..., :2], **options)
    with pytest.raises(ValueError, match="5 live keys in 4 slots"):
        SharedRun(0, 5, 0, torch.arange(4), 0, ())
    with pytest.raises(ValueError, match="no run"):
        SharedRun(3, 3, 0, torch.arange(4), 0, ())
