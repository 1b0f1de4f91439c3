from __future__ import annotations

import pytest
import torch

from hypic_sdk.kernels.attention_run import AttentionRun, contiguous_start


@pytest.mark.parametrize(
    ("slots", "want"),
    [
        ([5], 5),
        ([0, 1, 2], 0),
        ([7, 8, 9, 10], 7),
        ([7, 8, 10], None),
        ([3, 2, 1], None),
        ([3, 3], None),
        ([1, 3, 2, 4], None),  # first and last alone look contiguous
    ],
)
def test_contiguous_slots_are_told(slots, want):
    assert contiguous_start(torch.tensor(slots)) == want


def test_only_the_slots_that_are_seen_count():
    run = AttentionRun.over(2, 4, 1, torch.tensor([4, 5, 6, 0, 9]))
    assert (run.num_rows, run.num_keys, run.contiguous_start) == (2, 3, 4)
    assert run.slots.tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("row_start", "row_stop", "first_position", "num_slots"),
    [(2, 2, 0, 9), (3, 2, 0, 9), (-1, 2, 0, 9), (0, 2, -1, 9), (0, 3, 4, 6)],
)
def test_what_is_no_run_is_refused(row_start, row_stop, first_position, num_slots):
    with pytest.raises(ValueError, match=r"no run|do not fit"):
        AttentionRun(row_start, row_stop, first_position, torch.arange(num_slots))
