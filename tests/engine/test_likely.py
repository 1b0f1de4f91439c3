"""What is captured before the first request: what most requests ask for, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product

import pytest
import torch

from hypic_sdk.config import EngineConfig, SchedulerConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.engine import likely
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graph_tables import ROWS, HostTables, plan_tables
from hypic_sdk.engine.graphs import Forward, GraphCounts
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.likely import Likely
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.engine.runner import Runner
from tests.engine.harness import answer, check_ended, drain, engine_of, events_of, request_of, warm
from tests.engine.prompts import inner, prompt_of, tokens
from tests.engine.replayed import kernels_in_interpreter, with_graphs

MAX_REPLIES = 40
LONGEST = 8192  # tokens, of the models here


def config(
    limit_s: float = 60.0, max_replies: int = MAX_REPLIES, per_request: int = 4
) -> EngineConfig:
    return EngineConfig(
        store=StoreConfig(expected_segment_tokens=16, segments_per_request=per_request),
        scheduler=SchedulerConfig(max_requests=max_replies),
        capture_ahead_s=limit_s,
    )


def never_run(forward: Forward) -> Forward:
    """A capture of which only the sizes are asked."""
    return forward


def ahead(
    capture: Callable[[Forward], Forward], limit_s: float = 60.0, **fields: object
) -> tuple[Engine, GraphCounts]:
    """An engine that captured what it could before its first request."""
    engine = engine_of(**fields)
    engine._runner.use_graphs(capture)
    engine.capture_ahead(config(limit_s))
    assert engine.graph_counts is not None
    return engine, engine.graph_counts


@pytest.mark.parametrize("family", ["gated_delta_rule", "lightning"])
def test_every_number_of_replies_finds_its_graph(family):
    engine, counts = ahead(never_run, family=family)
    runner = engine._runner._graphs
    buckets = set()
    # over long contexts the buckets between are captured when they are asked for again
    some = [*product(range(1, MAX_REPLIES + 1), (100, 1000)), (1, LONGEST)]
    some += [(min(size, MAX_REPLIES), LONGEST) for size in ROWS if size < MAX_REPLIES + 16]
    for num_rows, context in some:
        builder = engine._runner._new_builder()
        kv = KvTable(torch.arange(context), torch.device("cpu"))
        for row in range(num_rows):
            builder.add_decode(5, context - 1 - row, row, kv)
        tables = plan_tables(builder, runner._shape, runner._origin)
        assert isinstance(tables, HostTables)
        assert tables.bucket in runner._graphs, f"{num_rows} rows over {context} tokens"
        buckets.add(tables.bucket)
    # and one for a request that finds its segments cached
    assert counts.num_captured == len(buckets) + 1


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
def test_the_first_requests_find_their_graphs():
    """One whose segments are all cached, with a question of the usual length; two at once."""
    documents = [inner(tokens(seed, 16)) for seed in range(2)]
    with kernels_in_interpreter() as patch:
        patch.setattr(likely, "QUESTION_TOKENS", 9)
        engine = engine_of(dtype=torch.float32, pair="float16", step_tokens=128)
        counts = with_graphs(engine)
        engine.capture_ahead(config(max_replies=2, per_request=2))
        num_captured = counts.num_captured
        warm(engine, *documents)
        answer(engine, prompt_of(*documents, tokens(9, 9)), max_tokens=2)
        # prompts of so few rows are walked like decode rows, so theirs is no shape of its own
        messages = [request_of(prompt_of(tokens(n, 2)), max_tokens=2) for n in range(2)]
        for message in messages:
            engine.submit(message)
        events = drain(engine)
    for message in messages:
        check_ended(events_of(events, message.request_id))
    assert set(counts.eager) == {"cold rows"}, "the segments"
    assert counts.num_captured == num_captured
    assert counts.num_replayed == 2 + 2


@pytest.mark.parametrize(
    "shape",
    [
        {"segment_tokens": 256, "max_context_tokens": 100},
        {"segment_tokens": 8, "max_context_tokens": 100},
        {"segment_tokens": 256, "max_context_tokens": 1},
    ],
    ids=str,
)
def test_a_context_that_holds_less_has_what_it_can_hold(shape):
    engine, _ = ahead(never_run, 0.0)
    seam = engine.describe().settings.reuse.seam_widths(shape["segment_tokens"], 4)
    engine._runner.capture_ahead(Likely(max_replies=1, num_segments=4, seam=seam, **shape), 60.0)
    assert engine.graph_counts.num_captured in (1, 2)


@pytest.mark.parametrize("limit_s", [0.0, 0.01])
def test_no_capture_is_begun_once_the_time_is_over(limit_s):
    def slow(forward: Forward) -> Forward:
        time.sleep(0.02)
        return forward

    _, counts = ahead(slow, limit_s)
    assert counts.num_captured == (1 if limit_s else 0)


def test_a_capture_that_fails_is_logged_and_leaves_the_engine_eager(caplog):
    tried = []

    class Refused(Exception):
        """Not one of torch's: a compiler's, say."""

    def refuse(forward: Forward) -> Forward:
        tried.append(forward)
        raise Refused("no")

    engine, counts = ahead(refuse)
    assert "a forward could not be captured" in caplog.text
    answer(engine, prompt_of(tokens(1, 9)), max_tokens=3)
    assert (len(tried), counts.num_failed, counts.num_captured) == (1, 1, 0)
    assert dict(counts.eager) == {"a capture failed": 3}


def test_it_is_done_before_anybody_can_ask(monkeypatch):
    told = []
    monkeypatch.setattr(
        Runner, "capture_ahead", lambda self, expected, limit_s: told.append((expected, limit_s))
    )
    engine = load_engine(reader_path(), EngineConfig(device="cpu", capture_ahead_s=7.0))
    [(expected, limit_s)] = told
    assert limit_s == 7.0
    settings = engine.describe().settings
    assert expected.max_replies == SchedulerConfig().max_requests
    assert expected.num_segments == StoreConfig().segments_per_request
    assert expected.max_context_tokens == settings.max_context_tokens
    assert expected.seam == settings.reuse.seam_widths(256, settings.conv_width)


def test_without_graphs_there_is_nothing_to_do():
    engine = engine_of()
    engine.capture_ahead(config())
    assert engine.graph_counts is None
