from __future__ import annotations

import torch

from hypic_sdk.kernels.alignment import aligned


def test_fresh_memory_is_handed_back_as_it_is():
    x = torch.randn(3, 5)
    assert aligned(x) is x
    assert aligned(x[:2]).data_ptr() == x.data_ptr()


def test_other_views_are_copied_to_an_aligned_address():
    x = torch.randn(40, 5)
    for view in (x[1:], x[3:20], x[:, 1:4], x.t(), x[::2]):
        copy = aligned(view)
        assert torch.equal(copy, view)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0


def test_an_aligned_offset_is_no_reason_to_copy():
    x = torch.randn(40, 5)
    assert aligned(x[16:]).data_ptr() == x[16:].data_ptr()  # 16 rows of 20 bytes
