"""Training: what is hidden, what is held slow, averaging, and going on after a stop."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.demo import reader_path
from hypic_sdk.demo import train as training
from hypic_sdk.demo.initial import SLOW_STEPS, hold_slow_decays, init_weights, slow_heads
from hypic_sdk.demo.optimizer import Average, Optimizer
from hypic_sdk.demo.prompts import (
    Hiding,
    PieceTokenizer,
    PromptEncoder,
    hidden_documents,
    interior_mask,
)
from hypic_sdk.demo.questions import make_example
from hypic_sdk.demo.reader_model import Layout, LinearLayer, Reader
from hypic_sdk.demo.scan import transition_norm
from hypic_sdk.demo.train import TOY, train
from hypic_sdk.demo.train_options import parse
from hypic_sdk.demo.training_data import draw_spec, stages
from hypic_sdk.demo.worlds import MIXES, Mix, WorldSpec

ENCODER = PromptEncoder(PieceTokenizer(reader_path()))
SMALL = replace(TOY, num_key_heads=2, num_value_heads=4)


@given(
    seed=st.integers(0, 2**31),
    num_documents=st.integers(1, 6),
    tokens=st.integers(60, 300),
    most_tokens=st.integers(0, 2000),
)
def test_keys_are_hidden_by_whole_documents(
    seed: int, num_documents: int, tokens: int, most_tokens: int
) -> None:
    one = ENCODER.encode(make_example(WorldSpec(num_documents, tokens), seed))
    kept = interior_mask(one)
    hiding = Hiding(documents=0.7, most_tokens=most_tokens)
    hidden = hidden_documents(one, kept, random.Random(seed), hiding)
    assert not (hidden & ~kept).any()
    assert hidden.sum() <= most_tokens
    for index in range(num_documents):
        own = kept & (one.documents == index)
        assert len(np.unique(hidden[own])) <= 1


def layers(reader: Reader) -> list[LinearLayer]:
    return [layer.mixer for layer in reader.layers if isinstance(layer.mixer, LinearLayer)]


def decays(mixer: LinearLayer) -> torch.Tensor:
    return torch.cat(
        [
            weight.detach().flatten(1) if weight.dim() > 1 else weight.detach()[:, None]
            for weight in mixer.decay_weights
        ],
        1,
    ).clone()


def test_slow_decays_stay_and_the_others_learn() -> None:
    reader = Reader(SMALL)
    init_weights(reader, 1)
    optimizer = Optimizer(reader)
    optimizer.rate.fill_(1e-2)
    num_slow = slow_heads(SMALL)
    before = [decays(mixer) for mixer in layers(reader)]
    tokens = torch.randint(0, 8000, (2, 64), generator=torch.Generator().manual_seed(1))
    layout = Layout.of(torch.zeros_like(tokens), torch.arange(64).expand(2, 64))
    for _ in range(3):
        loss = reader.logits(reader(tokens, layout)).logsumexp(-1).mean()
        for weight in reader.parameters():
            weight.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        hold_slow_decays(reader)
        optimizer.step()
    for old, mixer in zip(before, layers(reader), strict=True):
        assert torch.equal(decays(mixer)[:num_slow], old[:num_slow])
        assert (decays(mixer)[num_slow:] != old[num_slow:]).any(1).all()


def test_slow_heads_are_a_third_and_keep_their_state() -> None:
    reader = Reader(SMALL)
    init_weights(reader, 3)
    assert 3 * slow_heads(SMALL) >= SMALL.num_value_heads
    x = torch.randn(1, 256, SMALL.hidden_size, generator=torch.Generator().manual_seed(2))
    layout = Layout.of(torch.zeros(1, 256, dtype=torch.long), torch.arange(256)[None])
    for mixer in layers(reader):
        _, key, _, log_decay, beta = mixer.mix(10 * x, layout)
        slow = log_decay[..., : slow_heads(SMALL)]
        wanted = -torch.tensor(SLOW_STEPS).expand_as(slow)
        # fp32 softplus of an inverse softplus, near zero
        torch.testing.assert_close(slow, wanted, rtol=1e-3, atol=0.0)
        norms = transition_norm(key.repeat_interleave(2, 2), log_decay, torch.zeros_like(beta))
        assert (norms[:, : slow_heads(SMALL)] > 0.1).all()


def test_the_average_follows_then_averages() -> None:
    model = torch.nn.Linear(3, 2)
    average = Average(model, keep=0.75, start=0.5)
    trail = []
    for step in range(6):
        with torch.no_grad():
            model.weight.fill_(float(step))
        average.update(step / 6)
        trail.append(float(average.weights[0][0, 0]))
    # fp32 sums of small whole numbers and quarters
    assert trail == pytest.approx([0, 1, 2, 2.25, 2.6875, 3.265625])
    average.put_into(model)
    assert float(model.weight.detach()[0, 0]) == pytest.approx(3.265625)


FLAGS = (
    "--tiny --tokens-per-step 512 --longest 512 --workers 1 --eval-prompts 1 --log-every 1 "
    "--warmup 2 --look-every-s 1000"
)


def steps(folder: Path) -> list[int]:
    rows = [json.loads(text) for text in (folder / "log.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if "step" in row]


def test_a_run_goes_on_where_it_was_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_ARMS", training.LOOK_ARMS[:1])
    for until in (2, 3):
        train(parse(["--out", str(tmp_path), "--steps", str(until), *FLAGS.split()], None))
    assert steps(tmp_path) == [1, 2, 3]
    other = tmp_path / "other"
    other.mkdir()
    kept = ["--resume", str(tmp_path / "kept")]
    train(parse(["--out", str(other), "--steps", "4", *kept, *FLAGS.split()], None))
    assert steps(other) == [4]
    assert (other / "reader" / "config.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--minutes 0", "--minutes 0 and --steps 0"),
        ("--minutes -1", "--minutes -1"),
        ("--minutes nan", "--minutes nan"),
        ("--steps -2", "--steps -2"),
        ("--hide 2 0.5 100", "--hide 2 0.5 100"),
        ("--hide 0.5 -1 100", "--hide 0.5 -1 100"),
        ("--hide 0.5 0.5 nan", "--hide 0.5 0.5 nan"),
        ("--start /nowhere", "--start /nowhere: no reader is there"),
        ("--resume /nowhere", "--resume /nowhere: no reader is there"),
    ],
)
def test_what_no_training_could_begin_with_is_refused(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--out", "unused", *words.split()], None)
    assert told in capsys.readouterr().err
    assert not Path("unused").exists()


def test_a_training_that_is_ended_leaves_no_process_behind(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path), "--steps", "10000", *FLAGS.split()]
    command = [sys.executable, "-m", "hypic_sdk.demo.train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        assert training.stdout.readline(), "it has begun"
        children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
        assert children, "workers"
        training.terminate()
        assert training.wait(30) == 128 + signal.SIGTERM
    # those that are left over belong to another process, which has not waited for them yet
    left = [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert all(" Z " in Path(f"/proc/{pid}/stat").read_text() for pid in left)


def test_grown_prompts_are_long_from_the_start() -> None:
    first, *_ = stages(49152, is_grown=True)
    assert (first.length, first.max_documents) == (2048, 16)
    rng = random.Random(3)
    counts = [draw_spec(rng, first).num_documents for _ in range(400)]
    assert sum(count >= 8 for count in counts) > 100
    assert stages(49152)[0].length < first.length


def asked(mix: Mix) -> Counter[str]:
    rng = random.Random(11)
    long = stages(32768, is_grown=True)[0]
    specs = [draw_spec(rng, long, mix) for _ in range(150)]
    return Counter(
        question.kind
        for number, spec in enumerate(specs)
        for question in make_example(spec, number).questions
    )


def test_a_judge_is_asked_more_of_what_hangs_on_several_documents() -> None:
    reader, judge = asked(MIXES["reader"]), asked(MIXES["judge"])
    assert reader.total() > 1000 < judge.total()
    for kind in ("not_said", "two_hop", "first", "tally", "since", "turned", "latest"):
        share, before = judge[kind] / judge.total(), reader[kind] / reader.total()
        assert share > 1.15 * before > 0.0, kind
    assert judge["cut"] > 0.08 * judge.total()
    assert "cut" not in reader, "which was trained without"


def test_the_mix_of_order_asks_most_which_comes_first() -> None:
    judge, order = asked(MIXES["judge"]), asked(MIXES["order"])
    assert order["first"] / order.total() > 1.5 * judge["first"] / judge.total()
    assert all(order[kind] > 0 for kind in judge)


def test_a_mix_keeps_within_all_questions() -> None:
    assert MIXES["reader"].bounds == (0.10, 0.17, 0.21, 0.26, 0.34, 0.44, 0.44)
    with pytest.raises(AssertionError):
        Mix(not_said=80)
