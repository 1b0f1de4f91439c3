"""Names and shapes of the tensors of Qwen3.5, Qwen3.5 MoE and Qwen3-Next checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hypic_sdk.layers.full_attention import AttentionLayout
from hypic_sdk.layers.moe import MoELayout
from hypic_sdk.models.base import LayerKind
from hypic_sdk.models.checkpoint import CheckpointPlan, Piece, TensorPlace
from hypic_sdk.models.qwen_config import Config

Named = Iterator[tuple[str, TensorPlace]]

# the vision tower and the multi-token-prediction head: other computations than ours
_SKIPPED = re.compile(r"^(?:mtp|model\.visual|visual)\.")
_IMAGE_TEXT_PREFIX = "model.language_model."
# an expert's weight on its own; otherwise all experts of a layer lie in two tensors
_ONE_EXPERT = re.compile(r"^model\.layers\.(\d{1,6})\.mlp\.experts\.(\d{1,9})\.")


def checkpoint_plan(config: Config, stored: Iterable[str] = ()) -> CheckpointPlan:
    """Names and shapes of the text tensors, as the text-only layout writes them.

    Args:
        stored: names in the files; they tell which layers keep their experts one by one.
    """
    width = config.width
    places = {
        "model.embed_tokens.weight": TensorPlace("embedding.weight", (config.vocab_size, width)),
        "model.norm.weight": TensorPlace("norm.weight", (width,)),
    }
    tied = {}
    if config.tied:
        tied["lm_head.weight"] = "model.embed_tokens.weight"
    else:
        places["lm_head.weight"] = TensorPlace("head.weight", (config.vocab_size, width))
    one_by_one, absent = _stored_experts(config, stored)
    for i in range(len(config.layers)):
        for name, place in _layer_places(config, i, one_by_one.get(i)):
            places[f"model.layers.{i}.{name}"] = replace(
                place, parameter=f"layers.{i}.{place.parameter}"
            )
    return CheckpointPlan(places, tied, _rename, config.blocks, absent)


def _stored_experts(
    config: Config, stored: Iterable[str]
) -> tuple[dict[int, list[int]], tuple[str, ...]]:
    """The experts that are stored one by one, by layer, and in words which of them are absent.

    A plan may not grow beyond what its files hold, whatever a config says: it has places for the
    experts that are there, and one line for all the others of a layer.
    """
    found: dict[int, set[int]] = {}
    for name in stored:
        if match := _ONE_EXPERT.match(_rename(name) or ""):
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    if config.moe is None:
        return {}, ()
    count, absent, experts = config.moe.num_experts, [], {}
    for i in sorted(config.sparse_layers & found.keys()):
        experts[i] = sorted(e for e in found[i] if e < count)
        if len(experts[i]) < count:
            first = next(e for e in range(count) if e not in found[i])
            absent.append(
                f"model.layers.{i}.mlp.experts.{first} "
                f"({len(experts[i])} experts are stored, num_experts is {count})"
            )
    return experts, tuple(absent)


def _rename(name: str) -> str | None:
    if _SKIPPED.match(name):
        return None
    if name.startswith(_IMAGE_TEXT_PREFIX):
        return "model." + name.removeprefix(_IMAGE_TEXT_PREFIX)
    return name


def _layer_places(config: Config, i: int, one_by_one: list[int] | None) -> Named:
    width = config.width
    yield "input_layernorm.weight", TensorPlace("mixer_norm.weight", (width,))
    yield "post_attention_layernorm.weight", TensorPlace("mlp_norm.weight", (width,))
    if config.moe is not None and i in config.sparse_layers:
        yield from _moe_places(config.moe, width, one_by_one)
    else:
        yield from mlp_places("mlp", "mlp", config.inner, width)
    if config.layers[i] is LayerKind.LINEAR:
        yield from _linear_places(config)
    else:
        yield from attention_places(config.attention)


def mlp_places(name: str, module: str, inner: int, width: int) -> Named:
    """A gated feed-forward block."""
    yield f"{name}.gate_proj.weight", TensorPlace(f"{module}.gate_up.weight", (inner, width))
    yield f"{name}.up_proj.weight", TensorPlace(f"{module}.gate_up.weight", (inner, width), inner)
    yield f"{name}.down_proj.weight", TensorPlace(f"{module}.down.weight", (width, inner))


def _moe_places(moe: MoELayout, width: int, one_by_one: list[int] | None) -> Named:
    gate_up, router, gate = moe.projected
    rows = "mlp.input.weight"
    shared, shape = "mlp.shared_expert", (moe.shared_inner, width)
    yield f"{shared}.gate_proj.weight", TensorPlace(rows, shape)
    yield f"{shared}.up_proj.weight", TensorPlace(rows, shape, moe.shared_inner)
    yield f"{shared}.down_proj.weight", TensorPlace("mlp.shared_down.weight", shape[::-1])
    yield "mlp.gate.weight", TensorPlace(rows, (router, width), gate_up)
    # the one row of this gate fills all that are left
    copies = tuple(Piece(0, gate_up + router + i, 1) for i in range(gate))
    yield "mlp.shared_expert_gate.weight", TensorPlace(rows, (1, width), scattered=copies)
    count, inner = moe.num_experts, moe.inner
    if one_by_one is None:
        yield "mlp.experts.gate_up_proj", TensorPlace("mlp.gate_up", (count, 2 * inner, width))
        yield "mlp.experts.down_proj", TensorPlace("mlp.down", (count, width, inner))
        return
    for e in one_by_one:
        name, shape = f"mlp.experts.{e}", (inner, width)
        yield f"{name}.gate_proj.weight", TensorPlace("mlp.gate_up", shape, expert=e)
        yield f"{name}.up_proj.weight", TensorPlace("mlp.gate_up", shape, inner, expert=e)
        yield f"{name}.down_proj.weight", TensorPlace("mlp.down", (width, inner), expert=e)


def _linear_places(config: Config) -> Named:
    yield from _packed_places(config) if config.packed else _separate_places(config)
    channels, heads = config.mixed_channels, config.num_heads
    conv_shape = (channels, 1, config.conv_width)
    yield "linear_attn.conv1d.weight", TensorPlace("mixer.conv.weight", conv_shape)
    yield "linear_attn.A_log", TensorPlace("mixer.A_log", (heads,))
    yield "linear_attn.dt_bias", TensorPlace("mixer.dt_bias", (heads,))
    yield "linear_attn.norm.weight", TensorPlace("mixer.norm.weight", (config.value_size,))
    out_shape = (config.width, heads * config.value_size)
    yield "linear_attn.out_proj.weight", TensorPlace("mixer.output.weight", out_shape)


def _separate_places(config: Config) -> Named:
    row = 0
    for part, size in zip(("qkv", "z", "b", "a"), config.projected, strict=True):
        shape = (size, config.width)
        yield f"linear_attn.in_proj_{part}.weight", TensorPlace("mixer.input.weight", shape, row)
        row += size


def _packed_places(config: Config) -> Named:
    """Each key head's rows lie together: [query | key | values | gates], [strengths | decays]."""
    key_channels = config.num_key_heads * config.key_size
    mixed, gated, heads, _ = config.projected
    group = config.num_heads // config.num_key_heads
    values = group * config.value_size
    # where a part starts in memory, and how many of its rows belong to one key head
    qkvz = [
        (0, config.key_size),
        (key_channels, config.key_size),
        (2 * key_channels, values),
        (mixed, values),
    ]
    ba = [(mixed + gated, group), (mixed + gated + heads, group)]
    for name, parts in (("qkvz", qkvz), ("ba", ba)):
        pieces = _unpacked(parts, config.num_key_heads)
        shape = (sum(piece.num_rows for piece in pieces), config.width)
        yield (
            f"linear_attn.in_proj_{name}.weight",
            TensorPlace("mixer.input.weight", shape, scattered=pieces),
        )


def _unpacked(parts: list[tuple[int, int]], num_key_heads: int) -> tuple[Piece, ...]:
    pieces, source = [], 0
    for head in range(num_key_heads):
        for start, size in parts:
            pieces.append(Piece(source, start + head * size, size))
            source += size
    return tuple(pieces)


def attention_places(layout: AttentionLayout) -> Named:
    """Projections and head norms of a full-attention layer."""
    row = 0
    kinds = ("weight", "bias") if layout.bias else ("weight",)
    for part, size in zip(("q", "k", "v"), layout.projected, strict=True):
        for kind in kinds:
            shape = (size, layout.width) if kind == "weight" else (size,)
            yield f"self_attn.{part}_proj.{kind}", TensorPlace(f"mixer.qkv.{kind}", shape, row)
        row += size
    for kind in kinds:
        out_shape = (layout.width, layout.num_query_heads * layout.head_size)
        shape = out_shape if kind == "weight" else out_shape[:1]
        yield f"self_attn.o_proj.{kind}", TensorPlace(f"mixer.output.{kind}", shape)
    for part, name in (("q", "query"), ("k", "key")):
        place = TensorPlace(f"mixer.{name}_norm.weight", (layout.head_size,))
        yield f"self_attn.{part}_norm.weight", place
