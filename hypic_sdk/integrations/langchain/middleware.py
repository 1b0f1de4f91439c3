"""`HypicSegmentMiddleware`: what an agent says again and again becomes segments."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables.config import run_in_executor

try:
    from langchain.agents.middleware import AgentMiddleware
except ModuleNotFoundError as error:
    raise ImportError(
        "HypicSegmentMiddleware needs langchain: pip install 'hypic-sdk[agents]'"
    ) from error

from hypic_sdk.errors import ConfigError, RequestError
from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.callbacks import learn_artifact
from hypic_sdk.integrations.langchain.wrapped import registries_in

Unsupported = Literal["ignore", "warn", "raise"]


class HypicSegmentMiddleware(AgentMiddleware):  # type: ignore[misc]
    """Makes the system prompt, skills, memory files and tool results known to the agent's model.

    For `create_agent(ChatHypic(...), tools, middleware=[HypicSegmentMiddleware(...)])`.  The prompt
    stays as it is: `ChatHypic` finds in it what is known here.  A system prompt that holds known
    texts is cut at them; any other is one segment.  Schemas of tools are written by the chat
    template and stay live (a chain covers them).
    """

    def __init__(
        self,
        *,
        texts: Iterable[str] = (),
        files: Iterable[str | Path] = (),
        tool_results: bool = True,
        unsupported: Unsupported = "warn",
    ) -> None:
        """
        Args:
            texts: such as skills, as they stand in the prompt.
            files: such as memory files; read before each call, so an edited one is known anew.
            tool_results: whether what tools answer is known too.
            unsupported: what to do about a model that is no `ChatHypic`.
        """
        super().__init__()
        self._texts = tuple(texts)
        self._files = tuple(map(Path, files))
        self._tool_results = tool_results
        self._unsupported = unsupported

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Make the texts of a request known, and go on."""
        self._learn(request)
        return handler(request)

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same on an event loop."""
        # files are read
        await run_in_executor(None, self._learn, request)
        return await handler(request)

    def _learn(self, request: Any) -> None:
        registries = registries_in(request.model)
        if not registries:
            self._tell_unsupported(request.model)
            return
        texts = [*self._texts, *map(_content, self._files)]
        for registry in registries:
            for text in texts:
                registry.add(text)
            self._learn_messages(registry, request)

    def _learn_messages(self, registry: SegmentRegistry, request: Any) -> None:
        results = [one for one in request.messages if isinstance(one, ToolMessage)]
        # documents first: a result that holds some is cut at them, and no segment as a whole
        for message in results:
            learn_artifact(registry, message)
        for message in results if self._tool_results else ():
            _add_texts(registry, message)
        if request.system_message is not None:
            _add_texts(registry, request.system_message)

    def _tell_unsupported(self, model: Any) -> None:
        said = f"{type(model).__name__} is no ChatHypic: it has no segments"
        if self._unsupported == "raise":
            raise RequestError(said)
        if self._unsupported == "warn":
            warnings.warn(said, stacklevel=4)


def _content(path: Path) -> str:
    """A file's text; empty if it is not there (yet).  Raises ConfigError: it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can not be read as text: {error}") from error


def _add_texts(registry: SegmentRegistry, message: BaseMessage) -> None:
    """Know a message's texts, but for one that holds known texts: it is cut at these."""
    blocks = [message.content] if isinstance(message.content, str) else message.content
    for block in blocks:
        text = block if isinstance(block, str) else block.get("text", "")
        if registry.cut(text).num_segments == 0:
            registry.add(text)
