"""Train the reader on invented worlds, or with --family a sibling with other linear layers.

    python -m hypic_sdk.demo.train --out DIR --minutes 20 [--prose FILE] [--family kda]

Lengths and worlds grow in steps. Most steps are plain causal forwards; from `--composed-from` on,
some are composed ones (isolated documents, see `reader_model`), so that the reader keeps its
answers under composition. On a GPU every shape of step is captured once as a CUDA graph.
A run that was cut short goes on from DIR/last.pt when it is started again, or from a copy of
DIR/kept with `--resume`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypic_sdk.demo.evaluate import FIELDS, load_reader, percent, run
from hypic_sdk.demo.evaluation_data import ARMS, prepare
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.initial import begin_as, hold_slow_decays, init_weights
from hypic_sdk.demo.losses import Weights, losses
from hypic_sdk.demo.optimizer import Average, Optimizer
from hypic_sdk.demo.prompts import Batch, Hiding
from hypic_sdk.demo.reader_model import Reader, ReaderConfig
from hypic_sdk.demo.train_options import parse
from hypic_sdk.demo.training_data import BatchSource, make_lexicon, stages
from hypic_sdk.demo.worlds import MIXES

#: what training looks at on the way
LOOK_ARMS = tuple(
    dataclasses.replace(arm, counts=(2, 8), share=1.0)
    for arm in ARMS
    if arm.held_names and arm.part == "all" and not arm.kind.startswith("closed")
)

TOY = ReaderConfig(
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    head_dim=32,
    num_heads=2,
    num_kv_heads=1,
    rotary_dim=16,
    num_key_heads=1,
    num_value_heads=2,
    key_dim=32,
    value_dim=32,
)


class Stepper:
    """One optimizer step for one shape, captured as a CUDA graph where there is a GPU."""

    def __init__(
        self,
        reader: Reader,
        optimizer: Optimizer,
        shape: tuple[int, int],
        composed: bool,
        weights: Weights,
        pool: Any,
    ) -> None:
        self.pool = pool  # graphs are replayed one after the other, so they share memory
        self.reader, self.optimizer, self.composed = reader, optimizer, composed
        self.weights = weights
        self.device = next(reader.parameters()).device
        boolean = ("interior", "hidden")
        self.fields = {
            name: torch.zeros(
                shape, dtype=torch.bool if name in boolean else torch.long, device=self.device
            )
            for name in FIELDS
        }
        self.graph: Any = None
        self.result = torch.zeros(4, device=self.device)
        self.num_steps = 0

    def _eager(self) -> None:
        for weight in self.reader.parameters():
            if weight.grad is not None:
                weight.grad.zero_()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            parts = losses(self.reader, self.fields, self.composed, self.weights)
        self.weights.sum(parts, self.composed).backward()
        hold_slow_decays(self.reader)
        self.optimizer.step()
        self.result.copy_(parts.detach())

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.empty_cache()
        with torch.cuda.graph(graph, pool=self.pool):
            self._eager()
        self.graph = graph

    def step(self, batch: Batch) -> torch.Tensor:
        """Take one step; returns the losses, to be read before the next step of this shape."""
        for name in FIELDS:
            array = np.ascontiguousarray(getattr(batch, name))
            self.fields[name].copy_(torch.from_numpy(array), non_blocking=True)
        self.num_steps += 1
        if self.device.type != "cuda":
            self._eager()
        elif self.num_steps < 3:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self._eager()
            torch.cuda.current_stream().wait_stream(side)
        else:
            if self.graph is None:
                self._capture()
            self.graph.replay()
        return self.result


@dataclass(slots=True)
class Progress:
    """How far training has come; kept in checkpoints."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


class Trainer:
    """Drives steps by the clock, logs, evaluates and saves."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True
        self.prepared = prepare(args.tokenizer, args.eval_prompts, LOOK_ARMS, 16, args.workers)
        config = TOY if args.tiny else ReaderConfig()
        config = dataclasses.replace(
            config, full_layers=tuple(args.full_layers), family=args.family
        )
        self.reader = Reader(config)
        init_weights(self.reader, args.seed)
        self.reader.to(self.device)
        self.optimizer = Optimizer(self.reader)
        self.average = Average(self.reader, args.average)
        self.plan = stages(args.tokens_per_step, args.longest, is_grown=args.grown)
        self.steppers: dict[tuple[tuple[int, int], bool], Stepper] = {}
        self.pool: Any = torch.cuda.graph_pool_handle() if self.device == "cuda" else None
        self.progress = Progress()
        self.rng = random.Random(args.seed)
        self.sums: dict[bool, list[torch.Tensor]] = defaultdict(list)

    def run(self, source: BatchSource) -> None:
        """Train until the time is up."""
        args, progress = self.args, self.progress
        began = time.monotonic() - progress.seconds
        looked = saved = progress.seconds
        mark = (progress.seconds, progress.tokens)
        while (share := self._share()) < 1.0:
            self._step(source, share)
            progress.seconds = time.monotonic() - began
            if progress.step % args.log_every == 0:
                speed = (progress.tokens - mark[1]) / (progress.seconds - mark[0])
                self._write_step(share, speed, source.waits)
                mark = (progress.seconds, progress.tokens)
            if progress.seconds - looked > args.look_every_s:
                self.look()
                looked = progress.seconds
            if progress.seconds - saved > args.save_every_s:
                self.save()
                saved = progress.seconds
        self.save()
        self.look()

    def _share(self) -> float:
        """Return how much of the training is done."""
        args, progress = self.args, self.progress
        if args.steps:
            return progress.step / args.steps
        return progress.seconds / (60 * args.minutes)

    def _step(self, source: BatchSource, share: float) -> None:
        args, progress = self.args, self.progress
        stage = next(
            i for i, s in enumerate(self.plan) if share < s.until or i == len(self.plan) - 1
        )
        self.optimizer.rate.fill_(self._rate(share))
        late = share >= args.composed_from
        composed = late and self.rng.random() < args.composed_share
        batch = source.next(stage)
        self.sums[composed].append(self._stepper(batch, composed).step(batch).clone())
        self.average.update(share)
        progress.step += 1
        progress.tokens += batch.tokens.size

    def _write_step(self, share: float, speed: float, waits: int) -> None:
        progress, optimizer = self.progress, self.optimizer
        row: dict[str, float] = {"step": progress.step, "s": progress.seconds, "share": share}
        row |= {"tokens": progress.tokens, "tokens_per_s": speed, "waits": waits}
        row |= {"skipped": float(optimizer.skipped), "grad": float(optimizer.grad_norm)}
        for composed, values in self.sums.items():
            means = torch.stack(values).mean(0).tolist()
            name = "composed" if composed else "plain"
            keys = (f"{name}_{part}" for part in ("answer", "text", "right", "apart"))
            row |= dict(zip(keys, means, strict=True))
        self.sums.clear()
        self._write(row)

    def _rate(self, share: float) -> float:
        """Warm up, hold, then fall in a straight line to a hundredth."""
        args = self.args
        warm = min(1.0, (self.progress.step + 1) / args.warmup)
        fall = min(1.0, (1.0 - share) / (1.0 - args.hold))
        return float(args.rate * warm * max(0.01, fall))

    def _stepper(self, batch: Batch, composed: bool) -> Stepper:
        key = (batch.shape, composed)
        if key not in self.steppers:
            weights = Weights(self.args.lm, self.args.agree)
            args = (batch.shape, composed, weights, self.pool)
            self.steppers[key] = Stepper(self.reader, self.optimizer, *args)
        return self.steppers[key]

    def look(self) -> None:
        """Score a few held-out prompts."""
        row: dict[str, float] = {"look": self.progress.step, "s": self.progress.seconds}
        for arm, modes in run(self.reader, self.prepared, self.device, ("full", "composed")):
            for mode, scored in modes.items():
                row[f"{arm}|{mode}"] = percent([ok for _, ok in scored])
        self._write(row)

    def save(self) -> None:
        """Write all that is needed to go on; the old file stands until the new one is whole."""
        state = {
            "reader": self.reader.state_dict(),
            "average": self.average.weights,
            "optimizer": self.optimizer.state(),
            "progress": dataclasses.asdict(self.progress),
        }
        unfinished = self.args.out / "last.pt.new"
        torch.save(state, unfinished)
        unfinished.replace(self.args.out / "last.pt")
        save_reader(self.reader, self.args.tokenizer, self.args.out / "kept")
        text = json.dumps(dataclasses.asdict(self.progress))
        (self.args.out / "kept" / "progress.json").write_text(text + "\n")

    def load(self, state: dict[str, Any]) -> None:
        """Go on where `save` stopped."""
        self.reader.load_state_dict(state["reader"])
        for weight, kept in zip(self.average.weights, state["average"], strict=True):
            weight.copy_(kept)
        self.optimizer.load(state["optimizer"])
        self.progress = Progress(**state["progress"])

    def load_weights(self, folder: Path) -> None:
        """Begin with the weights of a reader folder, the optimizer anew.

        Of a reader with other linear layers, with those that fit.
        """
        kept = begin_as(self.reader, load_reader(folder, self.device))
        if kept:
            sys.stdout.write(f"not in {folder}, so drawn: {', '.join(kept)}\n")
        self.average.follow()

    def load_kept(self, folder: Path) -> None:
        """Go on from the small folder that `save` writes: weights alone, the optimizer anew."""
        self.load_weights(folder)
        self.progress = Progress(**json.loads((folder / "progress.json").read_text()))

    def _write(self, row: dict[str, float]) -> None:
        text = json.dumps({k: round(v, 4) for k, v in row.items()}) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        with (self.args.out / "log.jsonl").open("a") as log:
            log.write(text)


def train(args: argparse.Namespace) -> None:
    """Train, or go on with a run that was cut short, and write the averaged weights."""
    prose = [line for path in args.prose for line in path.read_text().splitlines()]
    lexicon = make_lexicon(args.tokenizer, prose)
    plan = stages(args.tokens_per_step, args.longest, is_grown=args.grown)
    checkpoint = args.out / "last.pt"
    state = torch.load(checkpoint, map_location="cpu") if checkpoint.exists() else None
    # a run that goes on draws other worlds than before
    seed = 1_000_000 * args.seed + 7 * (int(state["progress"]["step"]) if state else 0)
    seed += 500_000 * (args.resume is not None)
    # the workers are forked before anything touches the GPU
    prompts, documents, tokens = args.hide
    hiding = Hiding(prompts, documents, int(tokens))
    mix = MIXES[args.mix]
    with BatchSource(args.tokenizer, plan, lexicon, hiding, mix, args.workers, seed) as source:
        trainer = Trainer(args)
        if state is not None:
            trainer.load(state)
        elif args.resume is not None:
            trainer.load_kept(args.resume)
        elif args.start is not None:
            trainer.load_weights(args.start)
        trainer.run(source)
    trainer.average.put_into(trainer.reader)
    trainer.look()
    save_reader(trainer.reader, args.tokenizer, args.out / "reader")


def score(args: argparse.Namespace, folder: Path, metrics: Path, recipe: str) -> int:
    """Evaluate a reader folder in a process of its own."""
    command = [sys.executable, "-m", "hypic_sdk.demo.evaluate", "--model", str(folder)]
    command += ["--per-count", str(args.per_count), "--json", str(metrics)]
    command += ["--commit", args.commit, "--recipe", recipe]
    return subprocess.run([*command, *(["--quick"] if args.tiny else [])], check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: train, write the reader, score it."""
    args = parse(argv, __doc__)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # workers go too
    args.out.mkdir(parents=True, exist_ok=True)
    train(args)
    words = sys.argv[1:] if argv is None else list(argv)
    recipe = shlex.join(["python", "-m", "hypic_sdk.demo.train", *words])
    failed = score(args, args.out / "reader", args.out / "reader" / "metrics.json", recipe)
    if args.compare is not None:
        failed |= score(args, args.compare, args.out / "metrics_compared.json", "")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
