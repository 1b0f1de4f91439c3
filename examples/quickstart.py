"""Two documents, one question, no server: the demo model answers, and says what the prompt cost.

    python examples/quickstart.py

Prints the answer and one JSON line, then the same for the documents in the other order: there every
document is a hit, and nothing but its edge, the glue and the question goes through the model.
"""

from __future__ import annotations

import json
import sys

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.wire.replies import ChatCompletion
from hypic_sdk.wire.segments import SegmentObject

QUESTION = "How many kilograms does the Fenwold clock weigh?"
NAMES = ("lantern", "clock")


def ask(local: LocalHypic, documents: tuple[SegmentObject, ...]) -> ChatCompletion:
    """Ask the question of registered documents, in this order."""
    return local.chat.completions.create(
        messages=[
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTION},
        ],
        documents=documents,
        max_tokens=24,
    )


def show(reply: ChatCompletion) -> None:
    """The answer, and the cost of its prompt as one JSON line."""
    cache = reply.cache
    assert cache is not None, "a request that asks for no report gets none; this one did not"
    cost = {
        "cached_tokens": cache.cached_tokens,
        "live_tokens": cache.live_tokens,
        "prompt_tokens": cache.prompt_tokens,
        "segments": [segment.status for segment in cache.segments or ()],
        "ttft_ms": round(cache.timing_ms.ttft, 1),
    }
    sys.stdout.write(f"{reply.choices[0].message.content}\n{json.dumps(cost)}\n")


def main() -> int:
    """Ask in one order (both documents are computed), then in the other (both are hits)."""
    with LocalHypic() as local:
        documents = local.segments.create_many(DOCUMENTS[name] for name in NAMES)
        show(ask(local, documents))
        show(ask(local, documents[::-1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
