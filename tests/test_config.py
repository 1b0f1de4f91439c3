"""Settings: what they accept, what they refuse, and what follows from them."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk import config
from hypic_sdk.config import (
    DEFAULT_MODE,
    MODES,
    EngineConfig,
    ReuseConfig,
    SchedulerConfig,
    SeamRule,
    SeamWidths,
    ShadowConfig,
    StoreConfig,
    environment,
    keep_nccl_calm,
    launched_place,
    see_one_gpu,
)
from hypic_sdk.errors import ConfigError

fixed_seams = st.builds(SeamRule, st.integers(0, 4096), st.integers(0, 4096))
# hundredths of a percent: as many digits as a person writes
shares = st.integers(0, 10_000).map(lambda n: SeamRule(0, 0, n / 10_000))


@given(fixed_seams | shares)
def test_a_seam_rule_reads_what_it_writes(rule):
    again = SeamRule.parse(str(rule))
    assert str(again) == str(rule)
    assert all(again.resolve(n) == rule.resolve(n) for n in (1, 7, 64, 100, 1000))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("8", SeamRule(8, 0)),
        ("8+8", SeamRule(8, 8)),
        (" 3+0 ", SeamRule(3, 0)),
        ("0", SeamRule(0, 0)),
        ("5%", SeamRule(0, 0, 0.05)),
        ("2.5%", SeamRule(0, 0, 0.025)),
        ("1", SeamRule(1, 0)),
    ],
)
def test_seams_as_people_write_them(text, rule):
    assert SeamRule.parse(text) == rule


@pytest.mark.parametrize(
    "text", ["", "-1", "+8", "8+", "8%+8", "101%", "five", "8.5", "8 + 8", "5 %", "0x8", "nan%"]
)
def test_other_seams_are_refused(text):
    with pytest.raises(ConfigError):
        SeamRule.parse(text)


@given(st.integers(0, 100), st.integers(0, 100_000))
def test_a_share_is_rounded_up_and_falls_on_the_head(percent, num_tokens):
    widths = SeamRule.parse(f"{percent}%").resolve(num_tokens)
    assert widths == SeamWidths(math.ceil(num_tokens * percent / 100), 0)


@pytest.mark.parametrize("widths", [(-1, 0), (0, -1)])
def test_negative_widths_are_refused(widths):
    with pytest.raises(ConfigError, match="negative"):
        SeamWidths(*widths)
    with pytest.raises(ConfigError, match="negative"):
        SeamRule(*widths)


@pytest.mark.parametrize("share", [-0.01, 1.01, math.nan])
def test_shares_beyond_the_whole_are_refused(share):
    with pytest.raises(ConfigError):
        SeamRule(0, 0, share)


# transition, rotate, seam of the paper's ablations, then what the two baselines do without
SWITCHES = {
    "addition": ("segments", "chains"),
    "transition": ("segments", "chains", "transition"),
    "transition_rope": ("segments", "chains", "transition", "rotate"),
    "transition_rope_recompute": ("segments", "chains", "transition", "rotate", "seam"),
}


def test_modes_are_the_table_of_the_documentation():
    for name, on in SWITCHES.items():
        mode = dataclasses.asdict(MODES[name])
        assert mode.pop("name") == name
        assert {switch for switch, value in mode.items() if value} == set(on), name
    assert not MODES["prefix_cache"].segments
    assert MODES["prefix_cache"].chains
    assert not MODES["full_recompute"].segments
    assert not MODES["full_recompute"].chains
    assert set(MODES) == {*SWITCHES, "prefix_cache", "full_recompute"}


def test_the_default_mode_is_the_first():
    assert next(iter(MODES)) == DEFAULT_MODE == ReuseConfig().mode.name


def test_modes_cannot_be_edited():
    with pytest.raises(TypeError):
        MODES["addition"] = MODES[DEFAULT_MODE]
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODES["addition"].seam = True


@given(st.integers(0, 64), st.integers(0, 64), st.integers(1, 5000), st.integers(1, 8))
def test_only_the_seam_mode_widens_the_head_to_the_conv(head, tail, num_tokens, conv_width):
    rule = SeamRule(head, tail)
    widened = ReuseConfig(seam=rule).seam_widths(num_tokens, conv_width)
    assert widened == SeamWidths(max(head, conv_width - 1), tail)
    for name in ("addition", "transition", "transition_rope"):
        reuse = ReuseConfig(mode=MODES[name], seam=rule)
        assert reuse.seam_widths(num_tokens, conv_width) == SeamWidths(0, 0)


@given(data=st.data(), head=st.integers(0, 9), tail=st.integers(0, 9), conv_width=st.integers(1, 6))
def test_a_kept_segment_has_an_interior_that_fills_the_conv(data, head, tail, conv_width):
    """Design 3.4: else the conv tail would come from another segment's tokens."""
    needed = max(1, conv_width - 1)
    interior = needed + data.draw(st.sampled_from([-1, 0, 1, 50]), label="interior - needed")
    num_tokens = max(head, conv_width - 1) + interior + tail
    reuse = ReuseConfig(seam=SeamRule(head, tail), min_segment_tokens=1)
    assert reuse.keeps(num_tokens, conv_width) == (interior >= needed)


@given(st.integers(1, 300), st.sampled_from([-1, 0, 1]))
def test_a_short_segment_is_not_kept(min_tokens, more):
    reuse = ReuseConfig(seam=SeamRule(0, 0), min_segment_tokens=min_tokens)
    assert reuse.keeps(min_tokens + more, conv_width=1) == (more >= 0 and min_tokens + more > 0)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ReuseConfig(min_segment_tokens=0), "min_segment_tokens"),
        (lambda: StoreConfig(budget_bytes=0), "budget_bytes"),
        (lambda: StoreConfig(expected_segment_tokens=0), "expected_segment_tokens"),
        (lambda: StoreConfig(pair="fp8"), "pair"),
        (lambda: SchedulerConfig(step_tokens=0), "step_tokens"),
        (lambda: SchedulerConfig(step_tokens=100), "step_tokens"),
        (lambda: SchedulerConfig(chunk_tokens=65), "chunk_tokens"),
        (lambda: SchedulerConfig(max_requests=0), "max_requests"),
        (lambda: SchedulerConfig(max_waiting=0), "max_waiting"),
        (lambda: ShadowConfig(idle_s=-0.1), "idle_s"),
        (lambda: ShadowConfig(idle_s=float("inf")), "idle_s"),
        (lambda: ShadowConfig(share=0.0), "share"),
        (lambda: ShadowConfig(share=1.1), "share"),
        (lambda: ShadowConfig(max_reply_tokens=0), "max_reply_tokens"),
        (lambda: ShadowConfig(max_tokens=64), "max_tokens"),
        (lambda: ShadowConfig(window=0), "window"),
        (lambda: ShadowConfig(limit_kl=0.0), "limit_kl"),
        (lambda: ShadowConfig(limit_kl=float("nan")), "limit_kl"),
        (lambda: EngineConfig(dtype="int8"), "dtype"),
        (lambda: EngineConfig(graphs="on"), "graphs"),
        (lambda: EngineConfig(overlap="on"), "overlap"),
        (lambda: EngineConfig(overlap=1), "overlap"),
        (lambda: EngineConfig(capture_ahead_s=-1.0), "capture_ahead_s"),
        (lambda: EngineConfig(capture_ahead_s=float("inf")), "capture_ahead_s"),
        (lambda: EngineConfig(max_context_tokens=0), "max_context_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_cannot_work_are_refused_by_name(make, field):
    with pytest.raises(ConfigError, match=field):
        make()


def settings_classes():
    return [
        value
        for value in vars(config).values()
        if dataclasses.is_dataclass(value) and value.__module__ == config.__name__
    ]


CHECKED = [EngineConfig, ReuseConfig, SchedulerConfig, SeamRule, ShadowConfig, StoreConfig]


@pytest.mark.parametrize(
    ("settings", "field"),
    [(settings, one.name) for settings in CHECKED for one in dataclasses.fields(settings)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.parametrize(
    "value", ["many", b"8", [8], 8j, object()], ids=lambda value: type(value).__name__
)
def test_a_value_of_another_kind_is_refused_by_its_fields_name(settings, field, value):
    if field in ("device", "dtype", "graphs", "pair") and isinstance(value, str):
        return  # a text is of their kind; whether it is one that they know is tested above
    with pytest.raises(ConfigError, match=field):
        settings(**{field: value})


@pytest.mark.parametrize("value", [64.0, True, math.nan])
def test_a_number_of_tokens_is_whole(value):
    for settings, field in [
        (EngineConfig, "max_context_tokens"),
        (SchedulerConfig, "step_tokens"),
        (SeamRule, "head_tokens"),
        (StoreConfig, "expected_segment_tokens"),
    ]:
        with pytest.raises(ConfigError, match=field):
            settings(**{field: value})


def test_a_whole_number_of_seconds_is_fine():
    assert SchedulerConfig(admission_timeout_s=5).admission_timeout_s == 5


@pytest.mark.parametrize("settings", settings_classes(), ids=lambda settings: settings.__name__)
def test_settings_are_frozen_and_contain_each_other(settings):
    assert settings.__dataclass_params__.frozen
    assert hasattr(settings, "__slots__")
    assert settings.__bases__ == (object,)


def test_the_environment_is_read_under_our_prefix(monkeypatch):
    monkeypatch.setenv("HYPIC_HOME", "here")
    assert environment("home") == environment("HOME") == "here"
    monkeypatch.delenv("HYPIC_HOME")
    assert environment("home") is None
    assert environment("home", "elsewhere") == "elsewhere"


@pytest.mark.parametrize(
    ("shown", "num_gpus", "index", "seen"),
    [
        (None, 4, 0, "0"),
        (None, 4, 3, "3"),
        (None, 2, 5, "1"),
        ("2,3", 2, 1, "3"),
        ("GPU-a,GPU-b", 2, 2, "GPU-a"),
    ],
)
def test_each_worker_sees_a_gpu_of_its_own(monkeypatch, shown, num_gpus, index, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown or "")
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    see_one_gpu(index, num_gpus)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize("is_loopback", [True, False])
def test_nccl_never_ends_a_process(monkeypatch, is_loopback):
    torch_names = ("ASYNC_ERROR_HANDLING", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT")
    for name in (
        *(f"TORCH_NCCL_{name}" for name in torch_names), "NCCL_NVLS_ENABLE", "NCCL_SOCKET_IFNAME"
    ):  # fmt: skip
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    keep_nccl_calm(is_loopback=is_loopback)
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert os.environ.get("NCCL_SOCKET_IFNAME") == ("lo" if is_loopback else None)


@pytest.mark.parametrize(
    ("rank", "size", "place"), [("1", "4", (1, 4)), (None, "4", None), ("x", "4", None)]
)
def test_torchrun_says_which_of_its_processes_this_is(monkeypatch, rank, size, place):
    for name, value in (("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    assert launched_place() == place


class Cycle:
    """Collected, not counted out."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def _heap_as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_heap_as_it_was")
def test_what_a_process_keeps_is_not_looked_at_until_it_is_let_go():
    garbage = weakref.ref(Cycle())
    held = Cycle()
    config.keep_heap()
    assert garbage() is None, "nobody held it"
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold()[0] == config.COLLECT_FROM
    there = weakref.ref(held)
    del held
    gc.collect()
    assert there() is not None, "a collection passes it by"
    config.let_heap_go()
    assert there() is None
    assert gc.get_freeze_count() == 0
