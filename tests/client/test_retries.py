"""What is tried again, and when."""

from __future__ import annotations

import pytest

from hypic_sdk.client.retries import Retries
from hypic_sdk.errors import (
    CapacityError,
    ConnectionFailed,
    HypicError,
    PoolExhausted,
    QueueFull,
    RequestError,
    RequestTimeout,
    WorkerLost,
)

FULL = Retries(max_retries=3, chance=lambda: 1.0)
NONE = Retries(max_retries=3, chance=lambda: 0.0)


@pytest.mark.parametrize(
    ("error", "always", "repeatable"),
    [
        (QueueFull("x"), True, True),
        (CapacityError("x"), True, True),
        (PoolExhausted("x"), True, True),
        (PoolExhausted("never", retryable=False), False, False),
        (ConnectionFailed("x", sent=False), True, True),
        (RequestTimeout("x", sent=False), True, True),
        (ConnectionFailed("x", sent=True), False, True),
        (WorkerLost("x"), False, True),
        (RequestTimeout("x", sent=True), False, False),
        (RequestError("x"), False, False),
        (HypicError("x"), False, False),
    ],
    ids=str,
)
def test_which_errors(error, always, repeatable):
    """A generation is begun again only if nothing can have begun."""
    for wanted, may_repeat in ((always, False), (repeatable, True)):
        wait_s = FULL.wait_s(error, num_tries=1, repeatable=may_repeat)
        assert (wait_s is not None) == wanted


def test_waits_double_up_to_a_limit_with_chance_in_them():
    many = Retries(max_retries=20, chance=lambda: 1.0)
    waits = [many.wait_s(QueueFull("x"), num_tries=n, repeatable=True) for n in range(1, 9)]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert NONE.wait_s(QueueFull("x"), num_tries=2, repeatable=True) == 0.25


def test_only_so_often():
    error = QueueFull("x")
    assert FULL.wait_s(error, num_tries=3, repeatable=True) is not None
    assert FULL.wait_s(error, num_tries=4, repeatable=True) is None


@pytest.mark.parametrize(
    ("told", "wait_s"),
    [("2", 2.0), ("0", 0.0), (None, 0.125), ("soon", 0.125), ("-1", 0.125), ("9999", 0.125)],
)
def test_the_server_s_word_comes_first(told, wait_s):
    assert NONE.wait_s(QueueFull("x"), num_tries=1, repeatable=True, retry_after=told) == wait_s
