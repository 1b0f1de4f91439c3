"""A conversation over pinned documents, and a server that must not drop them meanwhile.

    python examples/pinned_chat.py

The documents are registered, warmed with progress and pinned for an hour; each turn sends the whole
conversation again, as applications do, and only what is new in it is computed.  Prints one JSON
line a turn.
"""

from __future__ import annotations

import asyncio
import json
import sys

from hypic_sdk import AsyncHypic, Prompt
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.offline import DEMO_NAME
from hypic_sdk.server.launch import LaunchSettings, serve
from hypic_sdk.wire.segments import SegmentObject, WarmJobObject

NAMES = ("lantern", "clock", "ada")
QUESTIONS = (
    "How many kilograms does the Fenwold clock weigh?",
    "What is the phone extension of Ada Lindqvist?",
)


def show_progress(job: WarmJobObject) -> None:
    """One line on stderr whenever the job has changed."""
    sys.stderr.write(f"warming: {job.counts.done} of {job.counts.total}, {job.status}\n")


async def take_in(client: AsyncHypic) -> list[SegmentObject]:
    """Register, warm and pin the documents."""
    documents = await client.segments.create_many(DOCUMENTS[name] for name in NAMES)
    job = await client.segments.warm.create(documents)
    await job.wait(on_progress=show_progress)
    return [await client.segments.pin(one, ttl="1h") for one in documents]


async def converse(url: str) -> None:
    """Ask one question after the other in one session."""
    async with AsyncHypic(url) as client:
        documents = await take_in(client)
        prompt = Prompt().system(SYSTEM)
        pieces = [piece for one in documents for piece in (one, "\n\n")]
        for question in QUESTIONS:
            prompt = prompt.user(*pieces, question)
            reply = await client.chat.completions.create(
                messages=prompt.to_messages(), max_tokens=24, hypic={"session_id": "visitor"}
            )
            said, cache = reply.choices[0].message.content or "", reply.cache
            assert cache is not None, "a request that asks for no report gets none"
            turn = {
                "question": question,
                "answer": said,
                "prompt_tokens": cache.prompt_tokens,
                "live_tokens": cache.live_tokens,
                "pinned": all(one.pinned for one in documents),
            }
            sys.stdout.write(json.dumps(turn) + "\n")
            prompt, pieces = prompt.assistant(said), []


async def serve_and_converse() -> None:
    """Serve the demo model in a process of its own while the application talks to it."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = LaunchSettings(reader_path(), DEMO_NAME, port=0)
    serving = asyncio.create_task(serve(settings, ready.set_result))
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if ready.done():
            await converse(ready.result())
    finally:
        serving.cancel()
        # the engine's process ends with it; an error that kept it from starting is raised here
        await asyncio.gather(serving, return_exceptions=ready.done())


def main() -> int:
    """Serve and converse."""
    asyncio.run(serve_and_converse())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
