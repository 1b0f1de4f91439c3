"""What is told where the pools are too small: names that exist, figures that are enough."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hypic_sdk.config import MIB, StoreConfig
from hypic_sdk.errors import ConfigError, PoolExhausted
from hypic_sdk.store.advice import OPTIONS
from hypic_sdk.store.entries import Need
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.store.store import Store
from tests.source_tree import PACKAGE, parsed, python_files
from tests.store.small_store import CPU, LAYOUTS, granted, small_layout, small_store, spec_of

# of a model large enough for a budget of some MiB
LAYOUT = replace(
    small_layout(transition_axes=(4, 32, 32)),
    num_heads=4, key_size=32, value_size=40, num_attention=2, num_kv_heads=2, head_size=24,
)  # fmt: skip


def store_of(config: StoreConfig, layout: StoreLayout = LAYOUT) -> Store:
    return Store(layout, config, device=CPU)


def refused(store: Store, need: Need) -> PoolExhausted:
    with pytest.raises(PoolExhausted) as caught:
        store.admit(need)
    return caught.value


def waited_too_long(store: Store, need: Need) -> PoolExhausted:
    assert store.admit(need) is None
    return store.no_room(need, "no room within 1 s", instead="try again later")


def both_kinds(config: StoreConfig, need: Need) -> list[PoolExhausted]:
    """The need where it can never fit, and a smaller one where it does not fit now."""
    store = store_of(config)
    sizes = store.sizes
    with granted(store, Need(state_rows=sizes.num_state_rows, kv_tokens=sizes.num_kv_slots)):
        return [
            refused(store, need),
            waited_too_long(store, Need(new_entries=(spec_of("x"),), state_rows=1, kv_tokens=3)),
        ]


CONFIG = StoreConfig(budget_bytes=2 * MIB, expected_segment_tokens=64)
NEEDS = {
    "kv": Need(kv_tokens=9000),
    "state rows": Need(state_rows=90),
    "transitions": Need(new_entries=tuple(spec_of(i, 1) for i in range(60))),
}


@pytest.mark.parametrize("need", NEEDS.values(), ids=NEEDS)
def test_every_refusal_names_options_and_settings_and_a_figure_for_each(need: Need) -> None:
    for error in both_kinds(CONFIG, need):
        details = error.details
        assert (details["setting"], details["option"]) == ("budget_bytes", "--cache-mib")
        assert (
            f"--cache-mib to {details['enough_mib']} (budget_bytes from {2 * MIB}" in error.message
        )
        assert f"to {details['enough_bytes']})" in error.message
        assert "--segment-tokens (expected_segment_tokens, now 64)" in error.message
        if details["enough_segment_tokens"] is not None:
            assert f"to {details['enough_segment_tokens']}, " in error.message
        assert str(details["needed_bytes"]) in error.message


@given(
    tokens=st.integers(0, 20_000),
    rows=st.integers(0, 200),
    entries=st.integers(0, 60),
    expected=st.integers(1, 400),
    budget=st.integers(MIB, 4 * MIB),
    held=st.integers(0, 30),
)
def test_every_figure_is_enough(
    tokens: int, rows: int, entries: int, expected: int, budget: int, held: int
) -> None:
    """Held against a store of that figure in which as much is in use."""
    config = StoreConfig(budget_bytes=budget, expected_segment_tokens=expected)
    assume(LAYOUT.least_bytes(config) <= budget)
    store, need = store_of(config), Need(
        new_entries=tuple(spec_of(i, 5) for i in range(entries)), state_rows=rows, kv_tokens=tokens
    )  # fmt: skip
    taken = Need(kv_tokens=min(30 * held, store.sizes.num_kv_slots))
    beside = granted(store, taken)
    try:
        lease = store.admit(need)
    except PoolExhausted as error:
        beside.close()
        taken, details = Need(), error.details
    else:
        assume(lease is None)
        details = store.no_room(need, "no room", instead="wait").details
    figures = [
        {"budget_bytes": details["enough_bytes"]},
        {"budget_bytes": details["enough_mib"] * MIB},
        {"expected_segment_tokens": details["enough_segment_tokens"]},
    ]
    assert details["enough_bytes"] > budget
    for figure in figures:
        if None not in figure.values():
            other = store_of(replace(config, **figure))
            granted(other, taken)
            granted(other, need)


def test_where_another_length_helps_it_is_the_nearest_that_was_tried() -> None:
    """A store cut for short segments has rows to spare, one for long ones has keys to spare."""
    store = store_of(replace(CONFIG, expected_segment_tokens=8))
    [keys] = [refused(store, Need(kv_tokens=store.sizes.num_kv_slots + 1))]
    assert keys.details["enough_segment_tokens"] == 16
    store = store_of(replace(CONFIG, expected_segment_tokens=400))
    [rows] = [refused(store, Need(state_rows=store.sizes.num_state_rows + 1))]
    assert rows.details["enough_segment_tokens"] == 200


def test_where_no_other_length_helps_that_is_said() -> None:
    error = refused(store_of(CONFIG), Need(kv_tokens=2 * MIB))
    assert error.details["enough_segment_tokens"] is None
    assert "no other --segment-tokens (expected_segment_tokens, now 64)" in error.message


def test_a_store_that_was_split_by_hand_knows_no_figure() -> None:
    error = refused(small_store(state_rows=2, transition_rows=1, kv_slots=9), Need(kv_tokens=10))
    assert "raise --cache-mib (budget_bytes, now " in error.message
    assert error.details["enough_mib"] is None


@pytest.mark.parametrize("kind", LAYOUTS)
def test_a_budget_that_can_not_be_split_is_told_by_option_and_setting(kind: str) -> None:
    layout = LAYOUTS[kind]
    config = StoreConfig(budget_bytes=1, expected_segment_tokens=3000)
    with pytest.raises(ConfigError) as caught:
        layout.split(config)
    said, least = caught.value.message, caught.value.details["least_bytes"]
    for words in ("budget_bytes", "expected_segment_tokens", "--segment-tokens", str(least)):
        assert words in said
    assert f"--cache-mib {-(-least // MIB)}," in said
    layout.split(replace(config, budget_bytes=least))


def test_what_the_device_does_not_give_is_told_by_option_and_setting() -> None:
    with pytest.raises(ConfigError, match=r"lower --cache-mib \(budget_bytes\)"):
        store_of(StoreConfig(budget_bytes=1 << 60, expected_segment_tokens=1 << 40))


def test_nobody_else_makes_such_an_error() -> None:
    makers = [
        path.relative_to(PACKAGE).as_posix()
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "PoolExhausted"
    ]
    assert makers == ["store/advice.py"]


def test_the_settings_are_those_of_the_store() -> None:
    assert set(OPTIONS) <= set(StoreConfig.__dataclass_fields__)
