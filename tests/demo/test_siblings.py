"""Siblings of the reader: exported, loaded and served as they were trained."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hypic_sdk.bench.probe import Probe
from hypic_sdk.config import MODES, EngineConfig, ReuseConfig, StoreConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.demo import train as training
from hypic_sdk.demo.evaluate import hidden_states, load_reader, tensors, transition_norms
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.initial import begin_as, hold_slow_decays, init_weights, slow_rows
from hypic_sdk.demo.linear_layers import LINEAR_LAYERS
from hypic_sdk.demo.losses import Weights, losses
from hypic_sdk.demo.optimizer import Optimizer
from hypic_sdk.demo.prompts import Batch, Encoded, PieceTokenizer, PromptEncoder, pack
from hypic_sdk.demo.questions import make_example
from hypic_sdk.demo.reader_config import FAMILIES, ReaderConfig
from hypic_sdk.demo.reader_model import Layout, LinearLayer, Reader
from hypic_sdk.demo.train import TOY, train
from hypic_sdk.demo.train_options import parse
from hypic_sdk.demo.worlds import WorldSpec
from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import loader, tiny_checkpoint
from hypic_sdk.models.base import CausalLM
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt, segment_id
from tests.closeness import assert_close
from tests.plain_context import PlainContext

ENCODER = PromptEncoder(PieceTokenizer(reader_path()))
SMALL = replace(TOY, num_key_heads=2, num_value_heads=4)
NUM_FORCED = 24  # last tokens of a prompt, whose logits are compared


def loud(reader: Reader) -> Reader:
    """Weights larger than training begins with, so that every part of a layer is felt."""
    generator = torch.Generator().manual_seed(5)
    for name, weight in reader.named_parameters():
        if weight.dim() == 2 and not name.endswith("_bias"):
            size = 1.0 if "embed" in name else weight.shape[1] ** -0.5
            weight.data.normal_(0.0, size, generator=generator)
        elif name.endswith(("norm.weight", "strength_bias")):
            weight.data += 0.3 * torch.randn(weight.shape, generator=generator)
    return reader


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    reader = Reader(replace(SMALL, family=request.param, full_layers=(1,)))
    init_weights(reader, 3)
    out: Path = tmp_path_factory.mktemp(request.param) / "sibling"
    save_reader(loud(reader), reader_path(), out)
    return out


def encoded(seed: int = 11) -> Encoded:
    """Three documents, the second too short to be kept."""
    long = ENCODER.encode(make_example(WorldSpec(3, 110), seed))
    keep = np.ones(len(long), bool)
    keep[np.flatnonzero(long.documents == 1)[40:]] = False
    arrays = {name: getattr(long, name)[keep] for name in ("tokens", "documents", "targets")}
    return replace(long, **arrays, offsets=long.offsets[keep], answers=())


def parts_of(one: Encoded) -> tuple[PromptPart, ...]:
    cuts = [0, *(np.flatnonzero(np.diff(one.documents)) + 1).tolist(), len(one) - NUM_FORCED]
    parts = []
    for start, stop in itertools.pairwise(cuts):
        ids = tuple(one.tokens[start:stop].tolist())
        if one.documents[start] >= 0:
            parts.append(PromptPart(Role.INNER, ids, segment_id(str(ids))))
        else:
            role = Role.TRAILING if stop == cuts[-1] else Role.GLUE if parts else Role.LEADING
            parts.append(PromptPart(role, ids))
    return tuple(parts)


def own_logits(reader: Reader, batch: Batch, mode: str) -> torch.Tensor:
    with torch.no_grad():
        hidden = hidden_states(reader, tensors(batch, "cpu"), mode)
        return reader.logits(hidden)[0]


def served(folder: Path) -> CausalLM:
    return loader.load_model(folder, device="cpu", dtype=torch.float32).model


def test_full_recompute_of_a_loaded_sibling_is_the_plain_forward(folder: Path) -> None:
    one = encoded()
    wanted = own_logits(load_reader(folder, "cpu"), pack([[one]], len(one)), "full")
    got = PlainContext().logits(served(folder), one.tokens.tolist())
    # fp32 on both sides, angles and sums in another order
    assert_close("logits", got, wanted, rel_rms=1e-4)


def test_the_engine_composes_as_training_did(folder: Path) -> None:
    one = encoded()
    batch = pack([[one]], len(one))
    reader = load_reader(folder, "cpu")
    wanted = own_logits(reader, batch, "composed")[-NUM_FORCED - 1 :]
    reuse = ReuseConfig(MODES["transition_rope_recompute"])
    config = EngineConfig(device="cpu", reuse=reuse, store=StoreConfig(32 << 20, 128, "float32"))
    probe = Probe(served(folder), "sibling", config)
    forced = probe.force(SegmentedPrompt(parts_of(one)), one.tokens[-NUM_FORCED:].tolist())
    assert forced.report.segment_tokens == int(batch.interior.sum()) > 0
    assert_close("logits", forced.logits_NV, wanted, rel_rms=1e-4)
    # else a sibling that composes nothing would do as well
    full = own_logits(reader, batch, "full")[-NUM_FORCED - 1 :]
    assert (full - wanted).norm() > 1e-2 * wanted.norm()


def test_a_sibling_is_read_back_as_it_was_written(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert ReaderConfig.of_json(config) == load_reader(folder, "cpu").config
    assert load_reader(folder, "cpu").config.full_layers == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"family": "mamba1"},
        {"family": "gla", "linear_rotary_dim": 16},
        {"linear_rotary_dim": 3},
        {"head_scale": 2.0},
        {"rms_norm_eps": 1e-5},
    ],
)
def test_a_config_that_means_something_else_is_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    config = replace(TOY, family="lightning").to_json(1, 0)
    tiny_checkpoint.Config.from_hf(config)
    with pytest.raises(ModelFileError, match=list(change)[-1]):
        tiny_checkpoint.Config.from_hf(config | change)


def linear_layers(reader: Reader) -> Iterator[LinearLayer]:
    return (layer.mixer for layer in reader.layers if isinstance(layer.mixer, LinearLayer))


@pytest.mark.parametrize("family", FAMILIES)
def test_slow_decays_stay_and_the_others_learn(family: str) -> None:
    reader = Reader(replace(SMALL, family=family))
    init_weights(reader, 1)
    optimizer = Optimizer(reader)
    optimizer.rate.fill_(1e-2)
    before = [[w.detach().clone() for w in m.decay_weights] for m in linear_layers(reader)]
    tokens = torch.randint(0, 8000, (2, 64), generator=torch.Generator().manual_seed(1))
    layout = Layout.of(torch.zeros_like(tokens), torch.arange(64).expand(2, 64))
    for _ in range(3):
        loss = reader.logits(reader(tokens, layout)).logsumexp(-1).mean()
        for weight in reader.parameters():
            weight.grad = None
        loss.backward()
        hold_slow_decays(reader)
        optimizer.step()
    assert any(before) == (family != "lightning")
    for old, mixer in zip(before, linear_layers(reader), strict=True):
        for was, now in zip(old, mixer.decay_weights, strict=True):
            slow = slow_rows(SMALL, now)
            assert torch.equal(now[:slow], was[:slow])
            assert (now[slow:] != was[slow:]).any()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_third_of_the_heads_remember(family: str) -> None:
    reader = Reader(replace(SMALL, family=family))
    init_weights(reader, 3)
    one = ENCODER.encode(make_example(WorldSpec(3, 110), 4))
    norms = transition_norms(reader, pack([[one]], len(one)), "cpu")
    assert len(norms) == len(list(linear_layers(reader)))
    for layer in norms:
        assert 3 * sum(norm > 0.1 for norm in layer) >= len(layer)
        assert all(0.0 <= norm <= 1.0 for norm in layer)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("composed", [False, True])
def test_every_weight_learns(family: str, composed: bool) -> None:
    reader = loud(Reader(replace(SMALL, family=family)))
    one = encoded()
    batch = pack([[replace(one, targets=np.ones_like(one.targets) * 2)]], len(one))
    parts = losses(reader, tensors(batch, "cpu"), composed, Weights())
    parts[0].backward()
    for name, weight in reader.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.isfinite().all()), name
        assert float(weight.grad.abs().sum()) > 0.0, name


def test_every_family_has_a_layer() -> None:
    assert set(LINEAR_LAYERS) == set(FAMILIES)


FLAGS = (
    "--tiny --steps 30 --tokens-per-step 2048 --longest 1024 --workers 1 --eval-prompts 1 "
    "--log-every 5 --warmup 5 --look-every-s 1000 --composed-from 0.5 --composed-share 0.5"
)


@pytest.mark.parametrize("family", FAMILIES[1:])
def test_thirty_steps_lower_the_loss(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_ARMS", training.LOOK_ARMS[:1])
    train(parse(["--out", str(tmp_path), "--family", family, *FLAGS.split()], None))
    rows = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "step" in row]
    assert rows[-1]["skipped"] == 0
    texts = [row["plain_text"] for row in rows if "plain_text" in row]
    assert texts[-1] < texts[0] - 0.5
    assert any("composed_answer" in row for row in rows)
    assert load_reader(tmp_path / "reader", "cpu").config.family == family


def begun_as_the_delta_rule(family: str) -> tuple[Reader, Reader, list[str]]:
    families = (FAMILIES[0], family)
    readers = [Reader(replace(SMALL, family=name, full_layers=(1,))) for name in families]
    for seed, reader in enumerate(readers):
        init_weights(reader, seed)
        loud(reader)
    other, reader = readers
    return other, reader, begin_as(reader, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sibling_begins_with_all_of_another_reader_that_fits(family: str) -> None:
    other, reader, kept = begun_as_the_delta_rule(family)
    found = other.state_dict()
    for name, weight in reader.state_dict().items():
        like = found.get(name)
        if like is not None and like.shape == weight.shape:
            assert torch.equal(weight, like), name
    own = {name.rpartition("linear_attn.")[2] for name in kept}
    drawn = {
        "gated_delta_rule": set(),
        "lightning": {"log_decay"},
        "gla": {"gate_bias", "in_proj_a.weight"},
        "kda": {"strength_bias"},
    }
    assert own == drawn[family]


@torch.no_grad()
def test_kda_begins_with_the_decays_and_strengths_of_the_delta_rule() -> None:
    other, reader, _ = begun_as_the_delta_rule("kda")
    layers = [one.layers[0].mixer for one in (other, reader)]
    x = torch.randn(2, 9, SMALL.hidden_size)
    layout = Layout.of(torch.zeros(2, 9).long(), torch.arange(9).expand(2, 9))
    layers[1].strength_bias.data.zero_()
    (*_, decay, strength), (*_, by_channel, as_strong) = (layer.mix(x, layout) for layer in layers)
    assert_close("decays", by_channel, decay[..., None].expand_as(by_channel), rel_rms=1e-6)
    assert_close("strengths", as_strong, strength, rel_rms=1e-6)


def test_a_training_begins_with_a_reader_of_another_family(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "LOOK_ARMS", training.LOOK_ARMS[:1])
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one_step = [*FLAGS.split(), "--steps", "1"]
    train(parse(["--out", str(first), *one_step], None))
    start = ["--start", str(first / "reader"), "--family", "kda"]
    train(parse(["--out", str(second), *start, *one_step], None))
    assert "so drawn: model.layers.0.linear_attn.strength_bias" in capsys.readouterr().out
    config = json.loads((second / "reader" / "config.json").read_text())
    assert config["family"] == "kda"
