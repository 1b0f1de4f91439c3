"""What a stranger stumbled over, each as a test of its kind."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypic_sdk import EngineConfig, LocalHypic, ReuseConfig, SchedulerConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import (
    ConfigError,
    ModelFileError,
    PromptTooLong,
    QueueFull,
    RequestError,
)

ASK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalHypic]:
    with LocalHypic() as one:
        yield one


def num_leases(local: LocalHypic) -> int:
    return local.worker.call(lambda engine: engine.usage()).num_leases


def wait_idle(local: LocalHypic, timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while num_leases(local):
        assert time.monotonic() < deadline_s, "a request that nobody reads still holds memory"
        time.sleep(0.02)
    local.worker.call(lambda engine: engine.check())


def test_a_stream_that_is_dropped_half_read_is_cancelled(local: LocalHypic) -> None:
    for _ in local.chat.completions.create(
        messages=ASK, stream=True, max_tokens=6000, ignore_eos=True
    ):
        break
    gc.collect()
    wait_idle(local)


def test_an_interrupted_wait_cancels(local: LocalHypic, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypic_sdk.service.reply import ReplyAssembler

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ReplyAssembler, "feed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            local.chat.completions.create(messages=ASK, max_tokens=6000, ignore_eos=True)
    wait_idle(local)


def test_a_warm_that_was_waited_for_is_warm_or_says_why_not(local: LocalHypic) -> None:
    with pytest.raises(PromptTooLong, match="8192"):
        local.segments.create("hello world " * 20_000, warm="wait")


@pytest.mark.parametrize(
    "fields",
    [
        {"documents": [5]},
        {"documents": [None]},
        {"documents": [b"abc"]},
        {"documents": "abc"},
        {"messages": "hello"},
        {"messages": {"role": "user"}},
        {"messages": None},
        {"messages": [5]},
        {"messages": [{"role": "user", "content": 5}]},
    ],
    ids=lambda fields: str(fields).replace(" ", ""),
)
def test_wrong_types_are_named(local: LocalHypic, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=r"documents|messages|content"):
        local.chat.completions.create(**{"messages": ASK, **fields})


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_metadata_that_no_reply_can_carry_is_refused(local: LocalHypic, value: object) -> None:
    with pytest.raises(RequestError, match="metadata"):
        local.segments.create("a text", metadata={"a": value})


def test_template_values_that_no_reply_can_carry_are_refused(local: LocalHypic) -> None:
    tool = {"function": {"name": "f"}, "a": "\ud800"}
    for field in ({"tools": [tool]}, {"chat_template_kwargs": {"a": "\ud800"}}):
        with pytest.raises(RequestError, match="surrogate"):
            local.chat.completions.create(messages=ASK, **field)


def test_documents_of_none_are_no_documents(local: LocalHypic) -> None:
    reply = local.chat.completions.create(messages=ASK, documents=None, max_tokens=1)
    assert reply.cache.segments == ()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EngineConfig(determinism="all"), "determinism"),
        (lambda: ReuseConfig(mode="off"), "mode"),
        (lambda: ReuseConfig(seam="8"), "seam"),
        (lambda: StoreConfig(budget_bytes="x"), "budget_bytes"),
        (lambda: StoreConfig(max_chain_entries_per_session=-1), "max_chain_entries"),
        (lambda: SchedulerConfig(admission_timeout_s=0.0), "admission_timeout_s"),
        (lambda: SchedulerConfig(admission_timeout_s=float("nan")), "admission_timeout_s"),
        (lambda: SchedulerConfig(max_overtakes=-1), "max_overtakes"),
        (lambda: LocalHypic(config=EngineConfig(device="tpu")), "tpu"),
        (lambda: LocalHypic(config=EngineConfig(device="")), "device"),
    ],
)
def test_settings_that_can_not_work_are_named(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_who_waits_for_a_place_is_not_told_of_room() -> None:
    scheduler = SchedulerConfig(max_requests=1, admission_timeout_s=0.5)
    with LocalHypic(config=EngineConfig(scheduler=scheduler)) as local:
        running = local.chat.completions.create(
            messages=ASK, stream=True, max_tokens=6000, ignore_eos=True
        )
        next(running)
        with pytest.raises(QueueFull, match="max_requests is 1"):
            local.chat.completions.create(messages=ASK, max_tokens=1)
        running.close()


def test_a_tokenizer_without_the_end_token_is_refused(tmp_path: Path) -> None:
    import json

    folder = tmp_path / "reader"
    shutil.copytree(reader_path(), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["added_tokens"] = []
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ModelFileError, match="belong together"):
        LocalHypic(folder)
    index_path = folder / "model.safetensors.index.json"
    index = json.loads(index_path.read_text(encoding="utf-8"))
    del index["metadata"]["tokenizer_sha256"]  # as in most checkpoints
    index_path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(ModelFileError, match="end"):
        LocalHypic(folder)
