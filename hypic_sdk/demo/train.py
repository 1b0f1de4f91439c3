"""Train the reader on invented worlds.

    python -m hypic_sdk.demo.train --out DIR --minutes 20 [--prose FILE] [--resume DIR]

Lengths and worlds grow in steps. Most steps are plain causal forwards; from `--composed-from` on,
some are composed ones (isolated documents, see `reader_model`), so that the reader keeps its
answers under composition. On a GPU every shape of step is captured once as a CUDA graph.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from hypic_sdk.demo import evaluate
from hypic_sdk.demo.export import save_reader
from hypic_sdk.demo.optimizer import Optimizer
from hypic_sdk.demo.prompts import ANSWER, LM, Batch, PieceTokenizer, PromptEncoder
from hypic_sdk.demo.reader_model import Layout, Reader, ReaderConfig, init_weights
from hypic_sdk.demo.training_data import BatchSource, Stage, make_lexicon, stages

FIELDS = (
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


def losses(reader: Reader, fields: dict[str, torch.Tensor], composed: bool) -> torch.Tensor:
    """Return mean loss on answers, mean loss on other text, and accuracy on answer tokens."""
    if composed:
        isolated = Layout.of(fields["stretch"], fields["stretch_position"])
        live = Layout.of(fields["example"], fields["position"], ~fields["hidden"][:, None, :])
        hidden = reader.composed(fields["tokens"], isolated, live, fields["interior"])
    else:
        hidden = reader(fields["tokens"], Layout.of(fields["example"], fields["position"]))
    logits = reader.logits(hidden).flatten(0, 1)
    targets, kinds = fields["targets"].flatten(), fields["target_class"].flatten()
    each = F.cross_entropy(logits.float(), targets, reduction="none")
    answer, other = (kinds == ANSWER).float(), (kinds == LM).float()
    right = (logits.argmax(-1) == targets).float()
    return torch.stack(
        [
            (each * answer).sum() / answer.sum().clamp(min=1),
            (each * other).sum() / other.sum().clamp(min=1),
            (right * answer).sum() / answer.sum().clamp(min=1),
        ]
    )


class Stepper:
    """One optimizer step for one shape, captured as a CUDA graph where there is a GPU."""

    def __init__(
        self,
        reader: Reader,
        optimizer: Optimizer,
        shape: tuple[int, int],
        composed: bool,
        lm: float,
        pool: Any,
    ) -> None:
        self.pool = pool  # graphs are replayed one after the other, so they share memory
        self.reader, self.optimizer, self.composed = reader, optimizer, composed
        self.lm_weight = 0.0 if composed else lm
        self.device = next(reader.parameters()).device
        boolean = ("interior", "hidden")
        self.fields = {
            name: torch.zeros(
                shape, dtype=torch.bool if name in boolean else torch.long, device=self.device
            )
            for name in FIELDS
        }
        self.graph: Any = None
        self.result = torch.zeros(3, device=self.device)
        self.num_steps = 0

    def _eager(self) -> None:
        for weight in self.reader.parameters():
            if weight.grad is not None:
                weight.grad.zero_()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            parts = losses(self.reader, self.fields, self.composed)
            loss = parts[0] + self.lm_weight * parts[1]
        loss.backward()
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


class Trainer:
    """Drives steps by the clock, logs, evaluates and saves."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cuda.matmul.allow_tf32 = True
        self.reader = Reader(TOY if args.tiny else ReaderConfig())
        init_weights(self.reader, args.seed)
        if args.resume:
            self.reader.load_state_dict(evaluate.load_reader(args.resume, "cpu").state_dict())
        self.reader.to(self.device)
        self.optimizer = Optimizer(self.reader)
        self.plan = stages(args.tokens_per_step, args.longest)
        self.encoder = PromptEncoder(PieceTokenizer(args.tokenizer))
        self.steppers: dict[tuple[tuple[int, int], bool], Stepper] = {}
        arms = [a for a in evaluate.ARMS if a.kind != "closed_book" and a.held_names]
        arms = [dataclasses.replace(a, counts=(2, 8)) for a in arms]
        arms.append(
            evaluate.Arm("one_hop, held names, held questions", True, False, True, counts=(2, 8))
        )
        arms.append(
            evaluate.Arm("one_hop, held names, held statements", True, True, False, counts=(2, 8))
        )
        self.prepared = evaluate.prepare(self.encoder, args.eval_prompts, arms, 16)
        self.pool: Any = torch.cuda.graph_pool_handle() if self.device == "cuda" else None
        self.log: list[dict[str, float]] = []
        self.rng = random.Random(args.seed)

    def run(self, source: BatchSource) -> None:
        """Train until the time is up."""
        args = self.args
        started = time.monotonic()
        last_eval = started
        tokens = step = 0
        sums: dict[bool, list[torch.Tensor]] = defaultdict(list)
        mark, marked_tokens = started, 0
        while True:
            elapsed = time.monotonic() - started
            share = elapsed / (60 * args.minutes) if not args.steps else step / args.steps
            if share >= 1.0:
                break
            stage = self._stage(args.start + (1 - args.start) * share)
            self.optimizer.rate.fill_(self._rate(share, step))
            composed = (
                share + args.start >= args.composed_from and self.rng.random() < args.composed_share
            )
            batch = source.next(stage)
            sums[composed].append(self._stepper(batch, composed).step(batch).clone())
            tokens += batch.tokens.size
            step += 1
            if step % args.log_every == 0:
                now = time.monotonic()
                speed = (tokens - marked_tokens) / (now - mark)
                waits = source.waits
                self._write_step(step, now - started, stage, tokens, speed, waits, sums)
                sums.clear()
                mark, marked_tokens = now, tokens
            if time.monotonic() - last_eval > args.eval_every_s:
                self.look(step)
                last_eval = time.monotonic()
        self.look(step)

    def _write_step(
        self,
        step: int,
        seconds: float,
        stage: int,
        tokens: int,
        speed: float,
        waits: int,
        sums: dict[bool, list[torch.Tensor]],
    ) -> None:
        row: dict[str, float] = {"step": step, "s": seconds, "stage": stage, "tokens": tokens}
        row |= {"tokens_per_s": speed, "waits": waits}
        row |= {"skipped": float(self.optimizer.skipped), "grad": float(self.optimizer.grad_norm)}
        for composed, values in sums.items():
            means = torch.stack(values).mean(0).tolist()
            name = "composed" if composed else "plain"
            keys = (f"{name}_answer", f"{name}_text", f"{name}_right")
            row |= dict(zip(keys, means, strict=True))
        self._write(row)

    def _stage(self, share: float) -> int:
        return next(
            i for i, s in enumerate(self.plan) if share < s.until or i == len(self.plan) - 1
        )

    def _rate(self, share: float, step: int) -> float:
        warm = min(1.0, (step + 1) / self.args.warmup)
        cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        return self.args.rate * warm * cosine

    def _stepper(self, batch: Batch, composed: bool) -> Stepper:
        key = (batch.shape, composed)
        if key not in self.steppers:
            args = (batch.shape, composed, self.args.lm, self.pool)
            self.steppers[key] = Stepper(self.reader, self.optimizer, *args)
        return self.steppers[key]

    def look(self, step: int) -> None:
        """Score a few held-out prompts and save the weights."""
        args = self.args
        results = evaluate.run(self.reader, self.prepared, self.device, ("full", "composed"))
        row: dict[str, float] = {"eval_step": step}
        for arm, modes in results.items():
            for mode, scored in modes.items():
                row[f"{arm}|{mode}"] = round(100 * sum(ok for _, ok in scored) / len(scored), 1)
        self._write(row)
        if args.out:
            torch.save(self.reader.state_dict(), args.out / "last.pt")

    def _write(self, row: dict[str, float]) -> None:
        self.log.append(row)
        sys.stdout.write(json.dumps({k: round(v, 4) for k, v in row.items()}) + "\n")
        sys.stdout.flush()
        if self.args.out:
            (self.args.out / "log.jsonl").write_text(
                "".join(json.dumps(r) + "\n" for r in self.log)
            )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--tokenizer", type=Path, default=Path(__file__).parent / "reader")
    add("--prose", type=Path, nargs="*", default=())
    add("--minutes", type=float, default=20.0)
    add("--steps", type=int, default=0, help="train by steps instead of minutes")
    add("--start", type=float, default=0.0, help="where in the growth of worlds to start")
    add("--resume", type=Path, help="a reader folder to start from")
    add("--rate", type=float, default=2e-3)
    add("--warmup", type=int, default=200)
    add("--lm", type=float, default=0.2)
    add("--tokens-per-step", type=int, default=32768)
    add("--longest", type=int, default=4096)
    add("--composed-share", type=float, default=0.3)
    add("--composed-from", type=float, default=0.2)
    add("--workers", type=int, default=13)
    add("--log-every", type=int, default=100)
    add("--eval-every-s", type=float, default=80.0)
    add("--eval-prompts", type=int, default=64)
    add("--seed", type=int, default=1)
    add("--tiny", action="store_true", help="a toy model, for a smoke run")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    args = parse(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    prose = [line for path in args.prose for line in path.read_text().splitlines()]
    plan: tuple[Stage, ...] = stages(args.tokens_per_step, args.longest)
    with BatchSource(
        args.tokenizer,
        plan,
        make_lexicon(args.tokenizer, prose),
        args.workers,
        1_000_000 * args.seed,
    ) as source:
        trainer = Trainer(args)
        trainer.run(source)
        save_reader(trainer.reader, args.tokenizer, args.out / "reader")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
