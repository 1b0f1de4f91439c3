"""The same questions with cached documents and without, in turn: what reuse saves on this machine.

    python examples/side_by_side.py

Eight documents in a new order for each question; `mode: "off"` is a full recompute of the same
prompt by the same engine.  Prints one JSON line a question and one with the medians.
"""

from __future__ import annotations

import json
import random
import statistics
import sys

from hypic_sdk import LocalHypic, Prompt, Segment
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS, SYSTEM
from hypic_sdk.wire.report import CacheReport

NUM_DOCUMENTS = 8
NUM_QUESTIONS = 3
SEED = 11


def prompt_of(texts: list[str], question: str) -> Prompt:
    """Documents in this order, each a segment, and the question behind them."""
    pieces = [piece for text in texts for piece in (Segment(text), "\n\n")]
    return Prompt().system(SYSTEM).user(*pieces, question)


def ask(local: LocalHypic, prompt: Prompt, mode: str) -> tuple[str, CacheReport]:
    """The answer, and what its prompt cost."""
    reply = local.chat.completions.create(
        messages=prompt.to_messages(), max_tokens=24, hypic={"mode": mode}
    )
    assert reply.cache is not None, "a request that asks for no report gets none; this one did not"
    return reply.choices[0].message.content or "", reply.cache


def main() -> int:
    """Warm the documents once, then ask each question both ways."""
    rng = random.Random(SEED)
    texts = list(DOCUMENTS.values())[:NUM_DOCUMENTS]
    times_ms: dict[str, list[float]] = {"pic": [], "off": []}
    with LocalHypic() as local:
        local.segments.create_many(texts, warm="wait")
        for question in QUESTIONS[:NUM_QUESTIONS]:
            prompt = prompt_of(rng.sample(texts, len(texts)), question.text)
            row: dict[str, object] = {"question": question.text}
            for mode, seen in times_ms.items():
                answer, report = ask(local, prompt, mode)
                seen.append(report.timing_ms.ttft)
                row[mode] = {
                    "answer": answer,
                    "tokens_computed": report.live_tokens + report.cold_tokens,
                    "first_token_ms": round(report.timing_ms.ttft, 1),
                }
            sys.stdout.write(json.dumps(row) + "\n")
    medians = {mode: round(statistics.median(seen), 1) for mode, seen in times_ms.items()}
    sys.stdout.write(json.dumps({"median_first_token_ms": medians}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
