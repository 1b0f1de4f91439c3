"""One arithmetic for all workers: that of the first, until all of it are gone."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hypic_sdk.errors import ConfigError
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.server.likeness import Likeness
from hypic_sdk.transport.control import EngineReady

CPU = (
    "AMD EPYC, AVX2, 1 threads, products 0a; torch 2.13.0; hypic 0.1.0; "
    "deterministic=all; chunk=256; pair=float32"
)
FIRST = EngineReady("model", 500, 4096, (2,), 4, 0.1, CPU, "float32")
A, B, C = WorkerId("a-0"), WorkerId("b-1"), WorkerId("c-2")


def computing(**changes: str) -> EngineReady:
    """The first worker's like, but for pieces of its fingerprint."""
    fingerprint = CPU
    for old, new in changes.values():
        assert old in fingerprint
        fingerprint = fingerprint.replace(old, new)
    return replace(FIRST, compute_fingerprint=fingerprint)


@pytest.fixture
def likeness() -> Likeness:
    one = Likeness(guests_may_set=True)
    one.admit(A, FIRST, is_guest=True)
    return one


@pytest.mark.parametrize(
    ("other", "here", "others"),
    [
        (computing(it=("1 threads", "2 threads")), ["2 threads"], ["1 threads"]),
        (computing(it=("AVX2", "AVX512")), ["AVX512"], ["AVX2"]),
        (computing(it=("AMD EPYC", "Other CPU")), ["Other CPU"], ["AMD EPYC"]),
        (computing(it=("torch 2.13.0", "torch 2.14.0")), ["torch 2.14.0"], ["torch 2.13.0"]),
        (computing(it=("pair=float32", "pair=int8")), ["pair=int8"], ["pair=float32"]),
        (computing(it=("products 0a", "products 0b")), ["products 0b"], ["products 0a"]),
        (
            computing(it=("AMD EPYC, AVX2, 1 threads, products 0a", "NVIDIA H200")),
            ["NVIDIA H200"],
            ["AMD EPYC", "AVX2", "1 threads", "products 0a"],
        ),
        (replace(FIRST, dtype="bfloat16"), ["dtype bfloat16"], ["dtype float32"]),
        (
            replace(computing(it=("1 threads", "2 threads")), dtype="float64"),
            ["dtype float64", "2 threads"],
            ["dtype float32", "1 threads"],
        ),
    ],
)
def test_other_arithmetic_is_refused_and_what_differs_is_named(
    likeness: Likeness, other: EngineReady, here: list[str], others: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        likeness.admit(B, other, is_guest=True)
    assert refused.value.details == {"here": here, "others": others}
    said = f"{', '.join(here)} here, {', '.join(others)} there"
    assert said in refused.value.message
    assert "OMP_NUM_THREADS" in refused.value.message
    assert not refused.value.retryable
    likeness.admit(C, replace(FIRST, load_s=9.0), is_guest=True)  # the same arithmetic


def test_a_fingerprint_that_only_has_fewer_pieces_is_another(likeness: Likeness) -> None:
    short = replace(FIRST, compute_fingerprint=CPU.partition("; chunk")[0])
    with pytest.raises(ConfigError, match="nothing more here, chunk=256, pair=float32 there"):
        likeness.admit(B, short, is_guest=True)


def test_when_all_are_gone_the_next_sets_it(likeness: Likeness) -> None:
    other = computing(it=("1 threads", "2 threads"))
    likeness.admit(B, FIRST, is_guest=True)
    likeness.leave(A)
    with pytest.raises(ConfigError):
        likeness.admit(C, other, is_guest=True)
    likeness.leave(C)  # it never counted
    with pytest.raises(ConfigError):
        likeness.admit(C, other, is_guest=True)
    likeness.leave(B)
    likeness.admit(C, other, is_guest=True)
    with pytest.raises(ConfigError, match="1 threads here, 2 threads there"):
        likeness.admit(A, FIRST, is_guest=True)


def test_where_a_host_has_own_workers_no_guest_sets_it_while_they_are_started_again() -> None:
    likeness = Likeness(guests_may_set=False)
    likeness.admit(A, FIRST, is_guest=False)
    likeness.leave(A)
    other = computing(it=("1 threads", "2 threads"))
    with pytest.raises(ConfigError):
        likeness.admit(B, other, is_guest=True)
    likeness.admit(C, FIRST, is_guest=True)
    with pytest.raises(ConfigError):
        likeness.admit(A, other, is_guest=False)
    likeness.leave(C)
    likeness.admit(A, other, is_guest=False)  # its own may, of new versions for example
    with pytest.raises(ConfigError):
        likeness.admit(C, FIRST, is_guest=True)


def test_the_model_is_the_first_one_s_for_good(likeness: Likeness) -> None:
    likeness.leave(A)
    for changed in ({"model_fingerprint": "x" * 64}, {"vocab_size": 501}, {"conv_width": 3}):
        ((name, value),) = changed.items()
        shown = value if name != "model_fingerprint" else "x" * 16 + "..."
        text = f"{name} {shown} (the others: {getattr(FIRST, name)})"
        with pytest.raises(ConfigError, match=re.escape(text)):
            likeness.admit(B, replace(FIRST, **changed), is_guest=True)  # type: ignore[arg-type]
