"""The same model by transformers: the arm from outside, with random weights of the same sizes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_decays import fill_decays
from hypic_sdk.bench.serving_model import (
    LEADING_TOKENS,
    QUESTION_TOKENS,
    SHAPES,
    Bench,
)
from hypic_sdk.bench.serving_report import Absent, Row, over
from hypic_sdk.bench.serving_targets import TARGETS

LENGTHS = (16_384, 8_192, 1_024)
NUM_RUNS = 4  # the first is not counted
OWN = "full recompute, prefill of {}"
PEER = "transformers, prefill of {}"


def peer_model(shape: str, device: torch.device) -> Any:
    """transformers' own class of this shape, in bf16, in eval mode.

    Raises:
        ImportError: transformers is not installed.
    """
    import transformers
    from transformers.initialization import no_init_weights

    fields = dict(SHAPES[shape])
    model_type = fields.pop("model_type")
    config = transformers.AutoConfig.for_model(model_type, **fields)
    config._experts_implementation = "grouped_mm" if device.type == "cuda" else "eager"
    with torch.device(device), no_init_weights():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            std = 0.05 if "norm" in name else parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if name.endswith("linear_attn.norm.weight") else 0.0, std)
        fill_decays(model)
    return model.eval()


def peer_prefill(model: Any, bench: Bench, length: int) -> Spread:
    """Tokens a second of one prompt, up to the first token's choice on the host."""
    vocabulary = model.config.get_text_config().vocab_size
    count, speeds = bench.sizes.tokens(length), []
    for _ in range(NUM_RUNS):
        ids = torch.randint(3, vocabulary, (1, count), device=bench.device)
        bench.wait()
        start_s = time.perf_counter()
        with torch.inference_mode():
            logits = model(ids, logits_to_keep=1, use_cache=True).logits
        int(logits[0, -1].argmax())
        speeds.append(count / (time.perf_counter() - start_s))
    return Spread.of(speeds[1:])


def helpers() -> dict[str, str]:
    """Versions of the libraries that transformers takes its fast paths from, where they are."""
    found = {}
    for package in ("transformers", "flash-linear-attention", "causal-conv1d"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def own_prefill(bench: Bench) -> Iterator[Row | Absent]:
    """Full recompute of one prompt by length, as the arm from outside is measured."""
    for length in LENGTHS:
        name, count = OWN.format(length), bench.sizes.tokens(length)
        document_tokens = max(1, count - LEADING_TOKENS - QUESTION_TOKENS)
        if absent := bench.absent(name, bench.needs(1, document_tokens, kept=False)):
            yield absent
            continue
        engine, speeds = bench.engine(), []
        for i in range(NUM_RUNS):
            document = bench.segments(bench.fresh_seed(), 1, document_tokens)
            prompt = bench.prompt(document, 60_000 + i)
            ms, _ = bench.first_token(engine, prompt, reuse=False)
            speeds.append(1e3 * prompt.num_tokens / ms)
        yield Row(name, "tokens/s", Spread.of(speeds[1:]))


def over_peer(own: Sequence[Row], bench: Bench) -> Iterator[Row | Absent]:
    """The arm from outside, and how many times its tokens a second ours were.

    Args:
        own: rows of `own_prefill`, of this run.
        bench: that has given up its memory.
    """
    found, model = {row.name: row.found for row in own}, None
    for length in LENGTHS:
        name, ratio = PEER.format(length), f"full recompute over {PEER.format(length)}"
        if absent := bench.absent(name):
            yield absent
            yield Absent(ratio, absent.reason)
            continue
        model = peer_model(bench.shape, bench.device) if model is None else model
        peer = peer_prefill(model, bench, length)
        yield Row(name, "tokens/s", peer, notes=helpers())
        ours = found.get(OWN.format(length))
        if ours is None:
            yield Absent(ratio, f"there is no row {OWN.format(length)!r} to compare with")
            continue
        yield Row(ratio, "x", over(ours, peer), target=TARGETS.get(ratio), is_upper=False)
    del model
    gc.collect()
