"""Forwards over fixed buffers: run again with other numbers in them they equal the eager ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hypic_sdk.bench.serving_model import SHAPES
from hypic_sdk.config import SeamWidths
from hypic_sdk.engine import graph_tables
from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.graph_tables import GraphShape
from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.plan import Gap, LiveRun
from hypic_sdk.engine.run_table import LiveStretch, SaveState, TableBuilder
from hypic_sdk.engine.splice import SpliceGap
from hypic_sdk.kernels.experts import op as experts_op
from hypic_sdk.kernels.live_attention.table import block_sizes
from hypic_sdk.kernels.rotation import RotarySpec
from hypic_sdk.models.qwen3_5 import Model
from hypic_sdk.models.qwen_config import Config
from hypic_sdk.models.tiny_hybrid import build_tiny
from hypic_sdk.prompt.segment import SegmentKey
from hypic_sdk.store.entries import SegmentEntry
from hypic_sdk.transport.control import Ask, Question
from tests.closeness import assert_close
from tests.engine.harness import ALL_FAMILIES, engine_of
from tests.engine.prompts import VOCAB
from tests.engine.replayed import answers, kernels_in_interpreter, prompts, with_graphs

CPU = torch.device("cpu")
KEY = SegmentKey(b"k" * 32)
WAITS = "sequences that wait for each other"


@pytest.fixture(autouse=True)
def patch() -> Iterator[pytest.MonkeyPatch]:
    with kernels_in_interpreter() as patch:
        yield patch


def engine(family: str, **fields: object) -> Engine:
    fields = {"dtype": torch.float32, "pair": "float16", "step_tokens": 128, **fields}
    return engine_of(family, **fields)


def test_few_rows_of_a_bucket_are_run_for_nothing():
    for num_rows in range(1, graph_tables.ROWS[-1] + 1):
        size = min(rows for rows in graph_tables.ROWS if rows >= num_rows)
        assert size % 16 == 0
        assert size - num_rows < 16 or size - num_rows <= 0.2 * size


@pytest.mark.parametrize(
    ("num_requests", "num_segments", "segment_tokens"),
    [(1, 4, 4096), (1, 20, 1024), (8, 4, 4096), (8, 20, 1024), (16, 4, 2048)],
)
def test_requests_that_find_their_segments_cached_have_a_graph_together(
    num_requests, num_segments, segment_tokens, patch
):
    """Eight query heads a key head, as in the models served; tables as large as they are there."""
    patch.undo()
    shape = GraphShape(
        conv_width=4, num_slots=999, group=8, is_wide=False, gap_rotation=RotarySpec(1e4, 8)
    )
    kv, first_token = KvTable(torch.arange(num_segments * segment_tokens + 92), CPU), 24
    builder = TableBuilder(has_attention=True, rotate_gaps=True, device=CPU)
    for number in range(num_requests):
        steps = [LiveRun(0, first_token), SaveState(100 + 3 * number)]
        for start in range(first_token, num_segments * segment_tokens, segment_tokens):
            gap = Gap(KEY, 1, start, segment_tokens, SeamWidths(8, 0))
            slots = torch.arange(segment_tokens - 8)
            entry = SegmentEntry(KEY, segment_tokens, SeamWidths(8, 0), 7, 8, slots, 0)
            steps += [LiveRun(start, start + 8), SpliceGap(gap, entry)]
        end = first_token + num_segments * segment_tokens
        steps += [LiveRun(end, end + 60), SaveState(101 + 3 * number), LiveRun(end + 60, end + 64)]
        num_rows = sum(step.stop - step.start for step in steps if isinstance(step, LiveRun))
        slots = [102 + 3 * number]
        builder.add_live(LiveStretch([5] * num_rows, steps, -1, slots, kv, wants_logits=True))
    assert graph_tables.why_eager(builder) is None
    tables = graph_tables.plan_tables(builder, shape, kv.slots)
    assert isinstance(tables, graph_tables.HostTables), tables
    assert tables.bucket.sequences >= num_requests
    tasks = dict(zip(shape.block_sizes, tables.bucket.tasks, strict=True))
    used = {block for block, count in tasks.items() if count}
    assert used == {128}, "nothing is launched for blocks that nobody has"


@pytest.mark.parametrize("is_wide", [False, True])
@pytest.mark.parametrize("group", [1, 8, 12, 64, 100])
@pytest.mark.parametrize("sequences", [16, 48, 256])
def test_tasks_of_a_bucket_are_few_or_many_and_what_they_find_has_a_bound(
    group, is_wide, sequences, patch
):
    """Two key heads of 256 channels, in fp32; a size that nobody has is not launched."""
    patch.undo()
    blocks = block_sizes(group, is_wide=is_wide)
    for block in blocks:
        counts = graph_tables._task_counts(block, blocks, sequences)
        assert all(count * block * 2 * 256 * 4 <= 832 << 20 for count in counts)
        assert (0 in counts) == (len(blocks) > 1)
        if block != blocks[0] or len(blocks) == 1:
            assert max(counts) >= 3328, "several requests that find their segments cached"
        elif sequences <= 48 and block == 16:
            assert max(counts) >= sequences * 32 * 1024 // 128, "decode behind 32k of context"


@pytest.mark.slow
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_replays_equal_eager_forwards_bit_for_bit(family):
    """Decode rows, runs and gaps of three requests together; then of others."""
    batches = [prompts(20), prompts(30)[1:]]
    replaying = engine(family)
    counts = with_graphs(replaying)
    got, want = answers(replaying, batches), answers(engine(family), batches)
    for mine, right in zip(got, want, strict=True):
        assert torch.equal(mine, right)
    assert counts.num_replayed > counts.num_captured >= 2
    assert set(counts.eager) <= {"cold rows", WAITS}


@pytest.mark.slow
def test_a_mixture_of_experts_replays(patch):
    """A model of Qwen3.5's kind; its products on a CPU are the library's, whose bits may differ."""
    torch.manual_seed(0)
    model = Model(Config.from_hf(SHAPES["tiny"]), torch.float32)
    for name, parameter in model.named_parameters():
        parameter.copy_(torch.rand_like(parameter) if "A_log" in name else _drawn(parameter))
    patch.setattr(experts_op, "suits_grouped", lambda *tensors: True)
    patch.setattr("tests.engine.harness.VOCAB", 500)
    batches, found = [prompts(20)[1:], prompts(30)[1:]], []
    for has_graphs in (True, False):
        made = engine("gated_delta_rule", model=model)
        counts = with_graphs(made) if has_graphs else None
        found.append(answers(made, batches))
        assert counts is None or counts.num_replayed > counts.num_captured >= 2
    for mine, right in zip(*found, strict=True):
        assert_close("logprobs", mine, right, rel_rms=1e-5)


def _drawn(parameter: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(parameter) / max(1, parameter.shape[-1]) ** 0.5


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")  # of the interpreter's numpy
@pytest.mark.parametrize(
    ("family", "dtype"),
    [("gated_delta_rule", torch.float16), ("lightning", torch.float32)],
    ids=str,
)
def test_what_stands_in_padding_changes_nothing(family, dtype, patch):
    """Padding rows are a token whose embedding is not a number, at some position.

    In 16 bits attention has two sizes of block, one of which a step of decode rows has no task of.
    """
    sizes = graph_tables._sizes

    def poisoned(bucket, shape):
        fields = sizes(bucket, shape)
        fields["ids"] = graph_tables.Field(bucket.rows, (VOCAB - 1,))
        fields["positions"] = graph_tables.Field(bucket.rows, (77,))
        return fields

    model = build_tiny(family, seed=1, layers="LAL", dtype=dtype)
    batches = [prompts(20)[2:], prompts(40)[2:]]
    want = answers(engine(family, model=model), batches, 3)
    model.embedding.weight[VOCAB - 1] = torch.nan
    patch.setattr(graph_tables, "_sizes", poisoned)
    replaying = engine(family, model=model)
    counts = with_graphs(replaying)
    got = answers(replaying, batches, 3)
    assert not counts.eager
    for mine, right in zip(got, want, strict=True):
        assert torch.equal(mine, right)
    assert counts.num_replayed >= 4
    told = answer_of(Ask(0, Question.USAGE), replaying)["graphs"]
    assert told["num_replayed"] == counts.num_replayed
    assert told["num_captured"] == counts.num_captured >= 1
