"""Tables that layers share: the same tuples, and nothing that is merely equal to them."""

from __future__ import annotations

from collections.abc import Sequence

from hypic_sdk.kernels.kept import kept_for_same


def test_the_same_tuple_again_is_the_same_table_and_an_equal_one_is_not():
    made = []

    @kept_for_same(maxsize=2)
    def make(items: Sequence[int], size: int) -> list[int]:
        made.append((items, size))
        return [*items, size]

    one, equal = (1000, 1001), tuple(range(1000, 1002))
    assert one is not equal
    first = make(one, 3)
    assert make(one, 3) is first
    assert make(equal, 3) is not first
    assert make(one, 4) == [1000, 1001, 4]
    assert len(made) == 3


def test_a_list_may_be_changed_and_handed_over_again():
    @kept_for_same(maxsize=2)
    def make(items: Sequence[int]) -> int:
        return len(items)

    items = [1]
    assert make(items) == 1
    items.append(2)
    assert make(items) == 2


def test_several_sequences_must_all_be_the_same():
    @kept_for_same(maxsize=4, num_sequences=2)
    def make(one: Sequence[int], other: Sequence[int], size: int) -> list[object]:
        return [one, other, size]

    one, other, equal = (1, 2), (3, 4), tuple(range(3, 5))
    first = make(one, other, 0)
    assert make(one, other, 0) is first
    assert make(one, equal, 0) is not first
    assert make(other, one, 0) == [other, one, 0]
    assert make(one, [3, 4], 0) is not make(one, [3, 4], 0)


def test_what_is_kept_outlives_no_limit():
    num_made = 0

    @kept_for_same(maxsize=1)
    def make(items: Sequence[int]) -> int:
        nonlocal num_made
        num_made += 1
        return num_made

    one, other = (1,), (2,)
    assert [make(one), make(other), make(one)] == [1, 2, 3]
