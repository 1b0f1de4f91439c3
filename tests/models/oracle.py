"""transformers as the oracle: tiny random checkpoints, saved by transformers itself."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# with Triton importable and no GPU, transformers would choose FLA and fail at the first forward
sys.modules.setdefault("fla", None)  # type: ignore[arg-type]

from transformers import (  # noqa: E402 - only after FLA is hidden
    Qwen3_5Config,
    Qwen3_5ForCausalLM,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForCausalLM,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

# a tie between experts turns rounding into another expert: logits nearer than this are not compared
LEAST_MARGIN = 1e-4
# K != V, Hk < H, G < Q, nothing a power of two where it need not be
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 512,
    "eos_token_id": 5,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 28,
}
MOE_SIZES = {**{k: v for k, v in SIZES.items() if k != "intermediate_size"}, **EXPERTS}
NEXT_SIZES = {**SIZES, **EXPERTS}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 36,
    "num_position_embeddings": 16,
}


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights under which everything matters: transformers' own forget within a few tokens."""
    rng = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if name.endswith("A_log"):
            value = torch.empty(shape).uniform_(0.2, 1.0, generator=rng).log()
        elif name.endswith("dt_bias"):
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=rng).exp()
            value = step.expm1().log()
        elif parameter.ndim == 1:
            # zero-centred norms, biases; the gated norm stays near 1
            centre = 1.0 if "linear_attn.norm" in name else 0.0
            value = centre + 0.3 * torch.randn(shape, generator=rng)
        elif "embed_tokens" in name:
            value = torch.randn(shape, generator=rng)
        else:
            value = torch.randn(shape, generator=rng) * 1.5 / math.sqrt(shape[-1] * 1.0)
        parameter.data.copy_(value)


def text_model(seed: int = 0, **changes: Any) -> Qwen3_5ForCausalLM:
    """A text-only model in fp32."""
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{**SIZES, **changes}))
    randomise(model, seed)
    return model.eval()


def image_text_model(seed: int = 0, **changes: Any) -> Qwen3_5ForConditionalGeneration:
    """The same sizes in the image-text layout, with a vision tower."""
    text = Qwen3_5TextConfig(**{**SIZES, **changes})
    config = Qwen3_5Config(
        text_config=text.to_dict(),
        vision_config=dict(VISION),
        tie_word_embeddings=text.tie_word_embeddings,
    )
    model = Qwen3_5ForConditionalGeneration(config)
    randomise(model, seed)
    return model.eval()


def moe_model(seed: int = 0, **changes: Any) -> Qwen3_5MoeForCausalLM:
    """Qwen3.5 MoE, text-only, in fp32; experts run one after the other."""
    config = Qwen3_5MoeTextConfig(**{**MOE_SIZES, **changes})
    config._experts_implementation = "eager"
    model = Qwen3_5MoeForCausalLM(config)
    randomise(model, seed)
    return model.eval()


def image_text_moe_model(seed: int = 0, **changes: Any) -> Qwen3_5MoeForConditionalGeneration:
    """The same sizes in the image-text layout, with a vision tower."""
    text = Qwen3_5MoeTextConfig(**{**MOE_SIZES, **changes})
    config = Qwen3_5MoeConfig(
        text_config=text.to_dict(),
        vision_config=dict(VISION),
        tie_word_embeddings=text.tie_word_embeddings,
    )
    config._experts_implementation = "eager"
    model = Qwen3_5MoeForConditionalGeneration(config)
    randomise(model, seed)
    return model.eval()


def next_model(seed: int = 0, **changes: Any) -> Qwen3NextForCausalLM:
    """Qwen3-Next in fp32."""
    config = Qwen3NextConfig(**{**NEXT_SIZES, **changes})
    config._experts_implementation = "eager"
    model = Qwen3NextForCausalLM(config)
    randomise(model, seed)
    return model.eval()


def save(model: torch.nn.Module, folder: Path, **options: Any) -> Path:
    """Save as transformers does; `max_shard_size` makes shards and an index."""
    model.save_pretrained(folder, **options)  # type: ignore[operator]
    return folder


@torch.no_grad()
def oracle_logits(
    model: Any, token_ids: Sequence[int], *, prefill: int | None = None
) -> torch.Tensor:
    """Logits [L, vocab] in one forward, or after `prefill` tokens one at a time from the cache."""
    ids = torch.tensor([list(token_ids)])
    if prefill is None:
        return model(input_ids=ids, use_cache=False).logits[0].float()
    known = inspect.signature(model.forward).parameters
    argument = "cache" if "cache" in known else "past_key_values"
    out = model(input_ids=ids[:, :prefill], use_cache=True)
    rows = [out.logits[0]]
    for i in range(prefill, len(token_ids)):
        cache = getattr(out, argument)
        out = model(input_ids=ids[:, i : i + 1], use_cache=True, **{argument: cache})
        rows.append(out.logits[0])
    return torch.cat(rows).float()


def routers(oracle: torch.nn.Module) -> list[torch.nn.Module]:
    """The routers of transformers' expert layers, first layer first."""
    return [m for m in oracle.modules() if type(m).__name__.endswith("TopKRouter")]


@contextmanager
def router_margins(oracle: torch.nn.Module) -> Iterator[list[float]]:
    """How near the best expert left out came to the worst one chosen, at every choice."""
    margins: list[float] = []

    def look(module: Any, _: object, out: tuple[torch.Tensor, ...]) -> None:
        ranked = out[0].sort(dim=-1, descending=True).values
        if module.top_k < ranked.shape[1]:
            gap = ranked[:, module.top_k - 1] - ranked[:, module.top_k]
            margins.append(float(gap.min()))

    handles = [router.register_forward_hook(look) for router in routers(oracle)]
    yield margins
    for handle in handles:
        handle.remove()


def token_ids(count: int, seed: int = 0, vocab_size: int = 97) -> list[int]:
    """Random tokens."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (count,), generator=rng).tolist()
