"""How long the matcher takes to look through a prompt, by what stands in it."""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from hypic_sdk.bench.report import Spread, append_json_line, circumstances
from hypic_sdk.matching import AutoSegmenter
from hypic_sdk.matching.text_index import ANCHOR_CHARS

if TYPE_CHECKING:
    from rich.console import Console

SEED = 41_113
NUM_WORDS = 5_000
TEXT_CHARS = 1_200


@dataclass(frozen=True, slots=True)
class MatchResult:
    """Milliseconds for one prompt of an arm."""

    arm: str
    num_texts: int
    prompt_chars: int
    num_found: int
    cut_ms: Spread


def prose(rng: random.Random, num_chars: int) -> str:
    """Sentences of invented words, this many characters together."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 10))) for _ in range(NUM_WORDS)]
    sentences, length = list[str](), 0
    while length < num_chars:
        sentence = " ".join(rng.choices(words, k=rng.randint(6, 18))).capitalize() + ". "
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences)[:num_chars]


def make_prompts(texts: list[str], num_chars: int) -> dict[str, str]:
    """Prompts of one length by arm: nothing to find; much of it; only what begins like a text."""
    rng = random.Random(SEED + 1)
    plain = prose(rng, num_chars)
    half = rng.sample(texts, min(len(texts), num_chars // (2 * TEXT_CHARS)))
    beginnings = "".join(rng.choice(texts)[: ANCHOR_CHARS - 1] for _ in range(num_chars // 15 + 1))
    return {
        "nothing to find": plain,
        "half of it known": ("\n\n".join(half) + plain)[:num_chars],
        "beginnings only": beginnings[:num_chars],
    }


def measure(num_texts: int, num_chars: int, num_runs: int) -> list[MatchResult]:
    """Every arm in turn; the index is built before the first run that counts."""
    rng = random.Random(SEED)
    # each begins with a sentence, as documents do
    source = prose(rng, num_texts * TEXT_CHARS + TEXT_CHARS)
    starts = [source.index(". ", at * TEXT_CHARS) + 2 for at in range(num_texts)]
    texts = [source[start : start + TEXT_CHARS] for start in starts]
    known = AutoSegmenter()
    for text in texts:
        known.add(text)
    results = []
    for arm, prompt in make_prompts(texts, num_chars).items():
        cut, times_ms = known.cut(prompt), []
        for _ in range(num_runs):
            start_s = time.perf_counter()
            known.cut(prompt)
            times_ms.append(1000.0 * (time.perf_counter() - start_s))
        spread = Spread.of(times_ms)
        results.append(MatchResult(arm, num_texts, len(prompt), cut.num_segments, spread))
    return results


def run_match_bench(
    console: Console, *, num_texts: int, num_chars: int, num_runs: int, json_lines: Path | None
) -> None:
    """Measure, print a table, and append JSON lines where a file is named."""
    where = circumstances("cpu")
    results = measure(num_texts, num_chars, num_runs)
    table = Table(
        "prompt", "known texts", "characters", "found", "ms, min / median / max",
        title=f"looking through a prompt, {num_runs} runs, seed {SEED}",
    )  # fmt: skip
    for one in results:
        table.add_row(
            one.arm, str(one.num_texts), str(one.prompt_chars), str(one.num_found), str(one.cut_ms)
        )
        if json_lines is not None:
            append_json_line(json_lines, {"bench": "match", **asdict(one)}, where)
    console.print(table)
    console.print(str(where), style="dim")
