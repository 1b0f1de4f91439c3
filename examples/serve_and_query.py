"""A server and an application in one program: the demo model behind HTTP, asked by the client.

    python examples/serve_and_query.py

The server is what `hypic serve` starts, here on a free port.  The application registers two
documents, warms them, asks about them in both orders, once whole and once streamed, and prints the
answers and what each prompt cost as JSON lines.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from hypic_sdk import AsyncHypic
from hypic_sdk.demo import reader_path
from hypic_sdk.demo.library import DOCUMENTS, SYSTEM
from hypic_sdk.offline import DEMO_NAME
from hypic_sdk.server.launch import LaunchSettings, serve
from hypic_sdk.wire.report import CacheReport

NAMES = ("lantern", "clock")
MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "How many kilograms does the Fenwold clock weigh?"},
]


def show(what: str, **values: Any) -> None:
    """One JSON line."""
    sys.stdout.write(json.dumps({"what": what, **values}) + "\n")


def cost(cache: CacheReport | None) -> dict[str, Any]:
    """The numbers of a cache report that matter most."""
    assert cache is not None, "a request that asks for no report gets none; these did not"
    return {
        "cached_tokens": cache.cached_tokens,
        "live_tokens": cache.live_tokens,
        "segments": [segment.status for segment in cache.segments or ()],
    }


async def ask(url: str) -> None:
    """The application: nothing here knows of the server but its address."""
    async with AsyncHypic(url) as client:
        documents = await client.segments.create_many(DOCUMENTS[name] for name in NAMES)
        job = await client.segments.warm.create(documents)
        done = await job.wait()
        show("warmed", status=done.status, tokens=done.tokens.computed)
        reply = await client.chat.completions.create(
            messages=MESSAGES, documents=documents, max_tokens=24
        )
        show("answer", text=reply.choices[0].message.content, **cost(reply.cache))
        async with client.chat.completions.stream(
            messages=MESSAGES, documents=documents[::-1], max_tokens=24
        ) as stream:
            said = [chunk.choices[0].delta.content or "" async for chunk in stream]
            final = await stream.get_final_completion()
        show("streamed", text="".join(said), **cost(final.cache))


async def serve_and_ask() -> None:
    """Serve the demo model in a process of its own while the application asks."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = LaunchSettings(reader_path(), DEMO_NAME, port=0)
    serving = asyncio.create_task(serve(settings, ready.set_result))
    await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
    try:
        if ready.done():
            await ask(ready.result())
    finally:
        serving.cancel()
        # the engine's process ends with it; an error that kept it from starting is raised here
        await asyncio.gather(serving, return_exceptions=ready.done())


def main() -> int:
    """Serve and ask."""
    asyncio.run(serve_and_ask())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
