"""The command line of the training program, and what is refused of it."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from hypic_sdk.demo.prompts import Hiding
from hypic_sdk.demo.reader_config import FAMILIES
from hypic_sdk.demo.worlds import MIXES


def parse(argv: Sequence[str] | None, about: str | None) -> argparse.Namespace:
    """Read the command line.

    Args:
        about: what the program is for, as `--help` tells it.
    """
    parser = make_parser(about)
    args = parser.parse_args(argv)
    for problem in problems(args):
        parser.error(problem)
    return args


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """Every option."""
    parser = argparse.ArgumentParser(description=about)
    add, hide = parser.add_argument, dataclasses.astuple(Hiding())
    add("--out", type=Path, required=True)
    add("--tokenizer", type=Path, default=Path(__file__).parent / "reader")
    add("--prose", type=Path, nargs="*", default=())
    add("--minutes", type=float, default=20.0)
    add("--steps", type=int, default=0, help="train by steps instead of minutes")
    add("--rate", type=float, default=2e-3)
    add("--warmup", type=int, default=200)
    add("--hold", type=float, default=0.3, help="share of the time before the rate falls")
    add("--average", type=float, default=0.997, help="how much of the average a step keeps")
    add("--lm", type=float, default=0.2)
    add("--agree", type=float, default=0.0, help="composed steps: weight of KL to a plain forward")
    add("--tokens-per-step", type=int, default=32768)
    add("--longest", type=int, default=4096)
    add("--grown", action="store_true", help="long prompts from the start: with --start")
    add("--composed-share", type=float, default=0.25)
    add("--composed-from", type=float, default=0.2)
    add("--family", choices=FAMILIES, default=FAMILIES[0], help="of the linear layers")
    add("--full-layers", type=int, nargs="+", default=[3, 7], help="which are full attention")
    add(
        "--hide", type=float, nargs=3, default=hide, metavar=("PROMPTS", "DOCUMENTS", "TOKENS"),
        help="composed steps: share of prompts with hidden keys, of their documents, most tokens",
    )  # fmt: skip
    add("--mix", choices=tuple(MIXES), default="reader", help="of the kinds of questions")
    add("--workers", type=int, default=13)
    add("--log-every", type=int, default=100)
    add("--look-every-s", type=float, default=150.0)
    add("--save-every-s", type=float, default=200.0)
    add("--eval-prompts", type=int, default=48, help="of each number of documents, in a look")
    add("--per-count", type=int, default=250, help="the same, in the last evaluation")
    add("--seed", type=int, default=1)
    add("--start", type=Path, help="the reader whose weights training begins with, where they fit")
    add("--resume", type=Path, help="the folder `kept` of a run whose machine was lost")
    add("--compare", type=Path, help="an older reader folder to score the same way")
    add("--commit", default="", help="the commit of this code, where there is no git")
    add("--tiny", action="store_true", help="a toy model, for a smoke run")
    return parser


def problems(args: argparse.Namespace) -> Iterator[str]:
    """What a training with these could not begin with, in words."""
    if args.steps < 0 or (args.steps == 0 and not 0.0 < args.minutes < math.inf):
        yield f"--minutes {args.minutes:g} and --steps {args.steps}: one of them has to be above 0"
    prompts, documents, tokens = args.hide
    if not (0.0 <= prompts <= 1.0 and 0.0 <= documents <= 1.0 and 0.0 <= tokens < math.inf):
        yield f"--hide {prompts:g} {documents:g} {tokens:g}: two shares of 0 to 1, then tokens"
    for option in ("start", "resume"):
        folder = getattr(args, option)
        if folder is not None and not (folder / "config.json").is_file():
            yield f"--{option} {folder}: no reader is there (config.json)"
