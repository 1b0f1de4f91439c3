"""Blocks that cover an axis: the numbers that Triton's own functions give."""

from __future__ import annotations

import pytest

from hypic_sdk.kernels.blocks import cdiv, next_power_of_2


@pytest.mark.parametrize(
    ("length", "block", "blocks"),
    [(0, 16, 0), (1, 16, 1), (16, 16, 1), (17, 16, 2), (10_000, 1, 10_000)],
)
def test_blocks_cover_an_axis_and_no_block_is_spare(length, block, blocks):
    assert cdiv(length, block) == blocks


def test_a_width_is_the_least_power_of_two_that_holds_it():
    assert [next_power_of_2(number) for number in (1, 2, 3, 4, 5, 64, 65)] == [
        1,
        2,
        4,
        4,
        8,
        64,
        128,
    ]


def test_triton_gives_the_same_numbers():
    triton = pytest.importorskip("triton")
    for number in range(1, 300):
        assert next_power_of_2(number) == triton.next_power_of_2(number)
        assert cdiv(number, 16) == triton.cdiv(number, 16)
