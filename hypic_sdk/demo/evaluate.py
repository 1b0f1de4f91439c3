"""Exact match of the reader on worlds it has never seen.

    python -m hypic_sdk.demo.evaluate --model DIR [--quick] [--json FILE]

Greedy decoding gives the reference answer exactly when every token of it, its end included, is the
most likely one after the tokens before it. So one forward over prompt and reference scores exact
match.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hypic_sdk.demo.eight_bits import from_eight_bits
from hypic_sdk.demo.evaluation_data import (
    ARMS,
    SEED,
    mixed_examples,
    pack_all,
    prepare,
    quick_arms,
)
from hypic_sdk.demo.prompts import ARRAYS, Batch, PackedAnswer, PieceTokenizer, PromptEncoder
from hypic_sdk.demo.reader_model import Layout, LinearLayer, Reader, ReaderConfig, load_state
from hypic_sdk.demo.scan import transition_norm

FIELDS = (*ARRAYS, "example", "interior", "hidden")
MODES = ("full", "composed", "state_zeroed", "keys_removed")
Scores = dict[str, list[tuple[PackedAnswer, bool]]]  # by mode


def tensors(batch: Batch, device: str) -> dict[str, torch.Tensor]:
    """Move a batch to the device; integers become int64."""
    return {
        name: torch.from_numpy(array if array.dtype == bool else array.astype("int64")).to(device)
        for name, array in ((name, getattr(batch, name)) for name in FIELDS)
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
    window = slice(32, 32 + num_tokens)
    with torch.no_grad():
        hidden = reader.model.embed_tokens(fields["tokens"])
        for layer in reader.layers:
            x = layer.input_layernorm(hidden)
            mixed = layer.mixer.mix(x, layout)
            if isinstance(layer.mixer, LinearLayer):
                _, key, _, log_decay, beta = layer.mixer.scan_inputs(mixed, layout)
                beta = beta if beta is None else beta[:, window]
                found = transition_norm(key[:, window], log_decay[:, window], beta)
                norms.append(found.median(0).values.tolist())
            hidden = layer.finish(hidden, layer.mixer.read(x, mixed, layout))
    return norms


def load_reader(folder: Path, device: str) -> Reader:
    """Load the folder of a reader or a sibling in fp32, also one that is kept in 8 bits."""
    content = json.loads((folder / "config.json").read_text())
    state: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        state.update(load_file(shard))
    blocks = content.get("quantization_config", {}).get("weight_block_size", (1, 1))
    reader = Reader(ReaderConfig.of_json(content))
    load_state(reader, from_eight_bits(state, blocks))
    return reader.to(device).eval()


def commit_of(given: str) -> str:
    """Return the commit given, or else the one git tells."""
    if given:
        return given
    where = Path(__file__).resolve().parent
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def machine_line(commit: str) -> str:
    """Name the machine, versions and commit."""
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    python = platform.python_version()
    return (
        f"{platform.machine()}, {gpu}, python {python}, torch {torch.__version__}, commit {commit}"
    )


def percent(right: Sequence[bool]) -> float:
    """Return the share of right answers in percent, to a tenth."""
    return round(100 * sum(right) / len(right), 1)


def figures(right: Sequence[bool]) -> dict[str, float]:
    """Return number, exact match and its interval."""
    low, high = interval(right)
    em = 100 * sum(right) / len(right)
    return {"n": len(right), "em": round(em, 2), "low": round(low, 2), "high": round(high, 2)}


def row(arm: str, mode: str, scored: Sequence[tuple[PackedAnswer, bool]]) -> dict[str, Any]:
    """Return the figures of one arm in one mode."""
    right = [ok for _, ok in scored]
    words: dict[str, list[bool]] = defaultdict(list)
    counts: dict[int, list[bool]] = defaultdict(list)
    places: dict[str, list[bool]] = defaultdict(list)
    for answer, ok in scored:
        counts[answer.num_documents].append(ok)
        words["known" if answer.known_words else "new"].append(ok)
        if answer.gold_place >= 0 and answer.num_documents > 1:
            third = 3 * answer.gold_place // answer.num_documents
            places[("first", "middle", "last")[third]].append(ok)
    return {
        "arm": arm,
        "mode": mode,
        **figures(right),
        "by_documents": {str(n): percent(r) for n, r in sorted(counts.items())},
        "by_gold_third": {n: percent(r) for n, r in places.items()},
        "by_words": {which: figures(r) for which, r in sorted(words.items())},
    }


def line(one: dict[str, Any]) -> str:
    """Format a row."""
    return (
        f"{one['arm']:42s} {one['mode']:12s} EM {one['em']:6.2f} [{one['low']:6.2f}, "
        f"{one['high']:6.2f}] n {one['n']:5d} documents {one['by_documents']} "
        f"gold {one['by_gold_third']}"
        + "".join(
            f"\n    {which} words: EM {part['em']:.2f} [{part['low']:.2f}, {part['high']:.2f}] "
            f"n {part['n']}"
            for which, part in one["by_words"].items()
            if len(one["by_words"]) > 1
        )
    )


def modes_of(name: str, modes: Sequence[str]) -> Sequence[str]:
    """Return the modes an arm is scored in; without documents there is but one."""
    if name.startswith("closed_book"):
        return modes[:1]
    controlled = {arm.name for arm in ARMS if arm.controls}
    return modes if name in controlled else modes[:2]


def run(
    reader: Reader, prepared: dict[str, list[Batch]], device: str, modes: Sequence[str]
) -> Iterator[tuple[str, Scores]]:
    """Score every arm in every mode of its own."""
    for name, packed in prepared.items():
        used = modes_of(name, modes)
        yield name, {mode: score(reader, packed, mode, device) for mode in used}


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
    parser.add_argument("--commit", default="", help="what the figures belong to, without git")
    parser.add_argument("--recipe", default="", help="the command that trained the reader")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def norms_of(reader: Reader, folder: Path, device: str) -> list[list[float]]:
    """Return the transition norms on a mixture of documents."""
    encoder = PromptEncoder(PieceTokenizer(folder))
    encoded = [encoder.encode(example) for example in mixed_examples(32, 4, 120)]
    return transition_norms(reader, pack_all(encoded, 8, 1024)[0], device)


def write_norms(norms: list[list[float]]) -> None:
    """Print the norms and how many are slow."""
    flat = [n for layer in norms for n in layer]
    share = sum(n > 0.1 for n in flat) / len(flat)
    sys.stdout.write(f"spectral norm of transitions over 256 tokens: {share:.0%} of {len(flat)} ")
    sys.stdout.write("heads over 0.1\n")
    for index, layer in enumerate(norms):
        sys.stdout.write(f"  linear layer {index}: {' '.join(f'{n:.3f}' for n in layer)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    args = arguments(argv)
    started = time.monotonic()
    modes, arms = (MODES[:2], quick_arms()) if args.quick else (MODES, ARMS)
    per_count = 8 if args.quick else args.per_count
    rows = 16 if args.device == "cuda" else 1
    prepared = prepare(args.model, per_count, arms, rows, args.workers)
    reader = load_reader(args.model, args.device)
    machine = machine_line(commit_of(args.commit))
    sys.stdout.write(f"{machine}\nprompts made in {time.monotonic() - started:.0f} s\n")
    data = []
    for name, by_mode in run(reader, prepared, args.device, modes):
        data += [row(name, mode, scored) for mode, scored in by_mode.items()]
        sys.stdout.write("".join(line(one) + "\n" for one in data[-len(by_mode) :]))
        sys.stdout.flush()
    norms = norms_of(reader, args.model, args.device)
    write_norms(norms)
    sys.stdout.write(f"{time.monotonic() - started:.0f} s\n")
    if args.json:
        report = {
            "machine": machine,
            "recipe": args.recipe,
            "seconds": round(time.monotonic() - started),
            "seed": SEED,
            "rows": data,
            "transition_norms": norms,
            "arms": [asdict(arm) for arm in arms],
        }
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
