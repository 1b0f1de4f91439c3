"""An agent whose skills, memory file and tool results are segments.

    pip install 'hypic-sdk[server,agents]'
    python examples/langchain_agent.py

The scripted engine stands in for a model that can call tools; it keeps real segments and tells what
they cost (`ChatHypic(base_url=...)` asks a server instead).  The second conversation has its skills
in another order and another memory; what did not change is a hit.  Prints a JSON line a model call.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from hypic_sdk import LocalHypic
from hypic_sdk.demo.library import DOCUMENTS
from hypic_sdk.integrations.langchain import ChatHypic, HypicSegmentMiddleware

SKILLS = (DOCUMENTS["ada"], DOCUMENTS["tomas"])
MEMORIES = (DOCUMENTS["clock"], DOCUMENTS["clock"] + " The visitor is in a hurry.")


@tool
def look_up(name: str) -> str:
    """Look up what the library knows under a name."""
    return DOCUMENTS.get(name, "nothing")


def converse(chat: ChatHypic, skills: tuple[str, ...], memory: Path) -> None:
    """Ask one thing of an agent with these skills and this memory."""
    system = "\n\n".join(("You help visitors.", *skills, memory.read_text(encoding="utf-8")))
    middleware = HypicSegmentMiddleware(texts=SKILLS, files=[memory])
    agent = create_agent(chat, [look_up], system_prompt=system, middleware=[middleware])
    result = agent.invoke({"messages": [{"role": "user", "content": 'look_up("lantern")'}]})
    for message in result["messages"]:
        if isinstance(message, AIMessage):
            report = message.response_metadata["hypic"]
            row = {
                "calls": [call["name"] for call in message.tool_calls],
                "segments": [one["status"] for one in report["segments"]],
                "live_tokens": report["live_tokens"],
            }
            sys.stdout.write(json.dumps(row) + "\n")


def main() -> int:
    """Two conversations."""
    with LocalHypic.scripted() as local, tempfile.TemporaryDirectory() as folder:
        chat = ChatHypic(client=local, max_tokens=200)
        memory = Path(folder, "memory.md")
        for skills, remembered in zip((SKILLS, SKILLS[::-1]), MEMORIES, strict=True):
            memory.write_text(remembered, encoding="utf-8")
            converse(chat, skills, memory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
