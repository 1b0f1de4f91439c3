"""The same model by transformers: the arm from outside, with random weights of the same sizes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import torch

from hypic_sdk.bench.report import Spread
from hypic_sdk.bench.serving_model import SHAPES, Sizes

LENGTHS = (16_384, 8_192, 1_024)


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
            if name.endswith("dt_bias"):
                parameter.uniform_(-4, -2)
    return model.eval()


def peer_prefill(
    shape: str, device: torch.device, sizes: Sizes
) -> Iterator[tuple[str, str, Spread]]:
    """Tokens a second of one prompt by length, up to the first token's logits on the host."""
    model = peer_model(shape, device)
    vocabulary = model.config.get_text_config().vocab_size
    for length in LENGTHS:
        count, speeds = sizes.tokens(length), []
        for _ in range(4):
            ids = torch.randint(3, vocabulary, (1, count), device=device)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start_s = time.perf_counter()
            with torch.inference_mode():
                logits = model(ids, logits_to_keep=1, use_cache=True).logits
            int(logits[0, -1].argmax())
            speeds.append(count / (time.perf_counter() - start_s))
        yield f"transformers, prefill of {count}", "tokens/s", Spread.of(speeds[1:])
    del model
    gc.collect()
