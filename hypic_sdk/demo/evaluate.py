"""Exact match of the reader on worlds it has never seen.

    python -m hypic_sdk.demo.evaluate --model DIR [--quick] [--json FILE]

Greedy decoding gives the reference answer exactly when every token of it, its end included, is the
most likely one after the tokens before it. So one forward over prompt and reference scores exact
match.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from hypic_sdk.demo.prompts import (
    Batch,
    Encoded,
    PackedAnswer,
    PieceTokenizer,
    PromptEncoder,
    pack_stream,
)
from hypic_sdk.demo.reader_model import Layout, Reader, ReaderConfig, load_state
from hypic_sdk.demo.scan import transition_norm
from hypic_sdk.demo.worlds import (
    Example,
    WorldSpec,
    make_questions,
    make_world,
    mentioned_first,
    not_said,
    one_hop,
    tally,
    two_hop,
)

SEED = 20_000_003
MODES = ("full", "composed", "state_zeroed", "keys_removed")
Results = dict[str, dict[str, list[tuple[PackedAnswer, bool]]]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One set of prompts."""

    name: str
    held_names: bool = True
    held_templates: bool = True
    held_questions: bool | None = None  # as held_templates, where not said
    kind: str = "one_hop"
    counts: tuple[int, ...] = (2, 4, 8, 16)
    document_tokens: tuple[int, ...] = (60, 100, 180)


ARMS = (
    Arm("one_hop, held names, held templates"),
    Arm("one_hop, held names, seen templates", held_templates=False),
    Arm("one_hop, seen names, seen templates", held_names=False, held_templates=False),
    Arm("not_said, held names, held templates", kind="not_said"),
    Arm("closed_book, held names, held templates", kind="closed_book", counts=(2,)),
    Arm("latest, held names, seen templates", held_templates=False, kind="latest"),
    Arm("first, held names, seen templates", held_templates=False, kind="first"),
    Arm("tally, held names, seen templates", held_templates=False, kind="tally"),
    Arm("two_hop, held names, seen templates", held_templates=False, kind="two_hop"),
)


def quick_arms() -> tuple[Arm, ...]:
    """Return arms that a CPU scores in some minutes."""
    return tuple(
        replace(arm, counts=tuple(n for n in arm.counts if n <= 4), document_tokens=(60, 100))
        for arm in (ARMS[0], ARMS[1], ARMS[3])
    )


def make_arm(arm: Arm, per_count: int) -> list[Example]:
    """Make the prompts of an arm, one question each; gold documents go round all places."""
    found: list[Example] = []
    for num_documents in arm.counts:
        seed = SEED + 1_000_003 * num_documents
        have = 0
        while have < per_count:
            seed += 1
            example = _one(arm, num_documents, have % num_documents, seed)
            if example is not None:
                found.append(example)
                have += 1
    return found


def _one(arm: Arm, num_documents: int, place: int, seed: int) -> Example | None:
    rng = random.Random(seed)
    spec = WorldSpec(
        num_documents=num_documents,
        document_tokens=rng.choice(arm.document_tokens),
        held_names=arm.held_names,
        held_statements=arm.held_templates,
        held_questions=arm.held_templates if arm.held_questions is None else arm.held_questions,
        filler_share=rng.choice((0.1, 0.3)),
        updates=3 if arm.kind == "latest" else 0,
        events=2 if arm.kind == "tally" else 0,
        one_hop_only=True,
    )
    world, documents = make_world(spec, seed)
    if arm.kind in ("one_hop", "closed_book"):
        keys = [key for key, (_, gold) in world.truth.items() if gold == (place,)]
        question = one_hop(world, rng.choice(keys)) if keys else None
    elif arm.kind == "latest":
        question = one_hop(world, rng.choice(sorted(world.updated))) if world.updated else None
    elif arm.kind == "first":
        question = mentioned_first(world, documents)
    else:
        question = {"not_said": not_said, "tally": tally, "two_hop": two_hop}[arm.kind](world)
    if question is None:
        return None
    if arm.kind == "closed_book":
        return Example("Answer from the documents.", (), (), (question,))
    return Example("Answer from the documents.", documents, ("\n\n",) * num_documents, (question,))


def mixed_examples(count: int, num_documents: int, document_tokens: int) -> list[Example]:
    """A small mixture with several questions a prompt."""
    out = []
    for seed in range(SEED, SEED + count):
        spec = WorldSpec(
            num_documents,
            document_tokens,
            held_names=True,
            held_statements=True,
            held_questions=True,
            updates=1,
            events=1,
        )
        world, documents = make_world(spec, seed)
        questions = make_questions(world, documents)
        out.append(
            Example("Answer from the documents.", documents, ("\n\n",) * num_documents, questions)
        )
    return out


def batches(
    encoder: PromptEncoder, found: Iterable[Example], rows: int, length: int
) -> list[Batch]:
    """Encode and pack."""
    encoded: list[Encoded] = [encoder.encode(example) for example in found]
    longest = max(len(one) for one in encoded)
    length = max(length, -(-longest // 64) * 64)
    return list(pack_stream(iter(encoded), rows, length))


def tensors(batch: Batch, device: str) -> dict[str, torch.Tensor]:
    """Move a batch to the device; integers become int64."""
    names = (
        "tokens",
        "targets",
        "target_class",
        "example",
        "position",
        "stretch",
        "stretch_position",
        "interior",
        "hidden",
    )
    return {
        name: torch.from_numpy(array if array.dtype == bool else array.astype("int64")).to(device)
        for name, array in ((name, getattr(batch, name)) for name in names)
    }


def hidden_states(reader: Reader, fields: dict[str, torch.Tensor], mode: str) -> torch.Tensor:
    """Run one forward in a mode of `MODES`."""
    if mode == "full":
        return reader(fields["tokens"], Layout.of(fields["example"], fields["position"]))
    isolated = Layout.of(fields["stretch"], fields["stretch_position"])
    interior = fields["interior"]
    visible = ~interior[:, None, :] if mode == "keys_removed" else None
    live = Layout.of(fields["example"], fields["position"], visible)
    if mode == "state_zeroed":
        after_gap = torch.zeros_like(interior)
        after_gap[:, 1:] = interior[:, :-1] & ~interior[:, 1:]
        live = Layout(live.position, live.start | after_gap, live.history, live.mask)
    return reader.composed(fields["tokens"], isolated, live, interior)


@torch.no_grad()
def score(
    reader: Reader, found: Sequence[Batch], mode: str, device: str
) -> list[tuple[PackedAnswer, bool]]:
    """Tell for every answer whether greedy decoding would give it exactly."""
    results = []
    for batch in found:
        fields = tensors(batch, device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            hidden = hidden_states(reader, fields, mode)
        wanted = fields["target_class"] == 2
        best = reader.logits(hidden[wanted].float()).argmax(-1)
        right = torch.ones_like(wanted)
        right[wanted] = best == fields["targets"][wanted]
        for answer in batch.answers:
            results.append((answer, bool(right[answer.row, answer.start : answer.stop].all())))
    return results


def interval(right: Sequence[bool], seed: int = 0, draws: int = 1000) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the share of right answers, in percent."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(right, dtype=torch.float32)
    picks = torch.randint(len(values), (draws, len(values)), generator=generator)
    means = values[picks].mean(1).sort().values
    return float(100 * means[int(0.025 * draws)]), float(100 * means[int(0.975 * draws)])


def transition_norms(
    reader: Reader, batch: Batch, device: str, num_tokens: int = 256
) -> list[list[float]]:
    """Median spectral norm of the transition over a window, for every linear layer and head."""
    norms: list[list[float]] = []
    fields = tensors(batch, device)
    layout = Layout.of(fields["example"], fields["position"])
    groups = reader.config.num_value_heads // reader.config.num_key_heads
    with torch.no_grad():
        hidden = reader.model.embed_tokens(fields["tokens"])
        for layer in reader.layers:
            x = layer.input_layernorm(hidden)
            mixed = layer.mixer.mix(x, layout)
            if hasattr(layer, "linear_attn"):
                _, key, _, log_decay, beta = (t[:, 32 : 32 + num_tokens] for t in mixed)
                key = key.repeat_interleave(groups, 2)
                norms.append(transition_norm(key, log_decay, beta).median(0).values.tolist())
            hidden = layer.finish(hidden, layer.mixer.read(x, mixed, layout))
    return norms


def load_reader(folder: Path, device: str) -> Reader:
    """Load a reader folder in fp32."""
    raw = json.loads((folder / "config.json").read_text())
    config = ReaderConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        full_every=raw["full_attention_interval"],
        num_heads=raw["num_attention_heads"],
        num_kv_heads=raw["num_key_value_heads"],
        head_dim=raw["head_dim"],
        rotary_dim=round(raw["head_dim"] * raw["rope_parameters"]["partial_rotary_factor"]),
        rope_theta=raw["rope_parameters"]["rope_theta"],
        num_key_heads=raw["linear_num_key_heads"],
        num_value_heads=raw["linear_num_value_heads"],
        key_dim=raw["linear_key_head_dim"],
        value_dim=raw["linear_value_head_dim"],
        conv_width=raw["linear_conv_kernel_dim"],
    )
    state: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        state.update(load_file(shard))
    reader = Reader(config)
    load_state(reader, {name: weight.float() for name, weight in state.items()})
    return reader.to(device).eval()


def machine_line() -> str:
    """Name the machine, versions and commit."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    where = Path(__file__).resolve().parent
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or "unknown"
    python = platform.python_version()
    return (
        f"{platform.machine()}, {gpu}, python {python}, torch {torch.__version__}, commit {commit}"
    )


def table(results: Results) -> tuple[str, list[dict[str, object]]]:
    """Format results as lines of text and as rows of data."""
    lines, rows = [], []
    for arm, by_mode in results.items():
        for mode, scored in by_mode.items():
            right = [ok for _, ok in scored]
            low, high = interval(right)
            counts: dict[int, list[bool]] = defaultdict(list)
            places: dict[str, list[bool]] = defaultdict(list)
            for answer, ok in scored:
                counts[answer.num_documents].append(ok)
                if answer.gold_place >= 0 and answer.num_documents > 1:
                    third = 3 * answer.gold_place // answer.num_documents
                    places[("first", "middle", "last")[third]].append(ok)
            by_count = {str(n): round(100 * sum(r) / len(r), 1) for n, r in sorted(counts.items())}
            by_place = {n: round(100 * sum(r) / len(r), 1) for n, r in places.items()}
            em = 100 * sum(right) / len(right)
            rows.append(
                {
                    "arm": arm,
                    "mode": mode,
                    "n": len(right),
                    "em": round(em, 2),
                    "low": round(low, 2),
                    "high": round(high, 2),
                    "by_documents": by_count,
                    "by_gold_third": by_place,
                }
            )
            lines.append(
                f"{arm:42s} {mode:12s} EM {em:6.2f} [{low:6.2f}, {high:6.2f}] n {len(right):5d} "
                f"documents {by_count} gold {by_place}"
            )
    return "\n".join(lines), rows


def prepare(
    encoder: PromptEncoder, per_count: int, arms: Sequence[Arm] = ARMS, rows: int = 1
) -> dict[str, list[Batch]]:
    """Make, encode and pack the prompts of every arm."""
    return {arm.name: batches(encoder, make_arm(arm, per_count), rows, 2048) for arm in arms}


def run(
    reader: Reader, prepared: dict[str, list[Batch]], device: str, modes: Sequence[str]
) -> Results:
    """Score every arm in every mode; without documents there is but one mode."""
    return {
        name: {
            mode: score(reader, packed, mode, device)
            for mode in (("full",) if name.startswith("closed_book") else modes)
        }
        for name, packed in prepared.items()
    }


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument(
        "--quick", action="store_true", help="few short prompts, two modes: for a CPU"
    )
    parser.add_argument(
        "--per-count", type=int, default=250, help="prompts for each number of documents"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    args = arguments(argv)
    started = time.monotonic()
    reader = load_reader(args.model, args.device)
    encoder = PromptEncoder(PieceTokenizer(args.model))
    modes = MODES[:2] if args.quick else MODES
    rows = 16 if args.device == "cuda" else 1
    arms = quick_arms() if args.quick else ARMS
    prepared = prepare(encoder, 8 if args.quick else args.per_count, arms, rows)
    results = run(reader, prepared, args.device, modes)
    text, data = table(results)
    window = batches(encoder, mixed_examples(16, 4, 120), 4, 1024)[0]
    norms = transition_norms(reader, window, args.device)
    flat = [n for layer in norms for n in layer]
    share = sum(n > 0.1 for n in flat) / len(flat)
    write = sys.stdout.write
    write(f"{machine_line()}\n{text}\n")
    write(
        f"spectral norm of transitions over 256 tokens: {share:.0%} of {len(flat)} heads over 0.1\n"
    )
    for index, layer in enumerate(norms):
        write(f"  linear layer {index}: {' '.join(f'{n:.3f}' for n in layer)}\n")
    write(f"{time.monotonic() - started:.0f} s\n")
    if args.json:
        report = {
            "machine": machine_line(),
            "seed": SEED,
            "rows": data,
            "transition_norms": norms,
            "arms": [asdict(arm) for arm in arms],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
