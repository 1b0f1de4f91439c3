"""Clients for tests of adapters: they note what they are asked."""

from __future__ import annotations

from typing import Any

from hypic_sdk.offline import LocalHypic
from tests.service.services import saying, service


class Recording:
    """The calls of a client over `hypic`, each request noted; `error` is raised instead."""

    def __init__(self, hypic: LocalHypic | None = None, error: Exception | None = None) -> None:
        self.hypic = hypic or LocalHypic.over(service(saying("On the Ash.")))
        self.error = error
        self.requests: list[dict[str, Any]] = []
        self.registered: list[tuple[list[str], str]] = []

    @property
    def chat(self) -> Recording:
        return self

    @property
    def completions(self) -> Recording:
        return self

    @property
    def segments(self) -> Recording:
        return self

    def create(self, **request: Any) -> Any:
        self._note(request)
        return self._endpoint(request).create(**request)

    def stream(self, **request: Any) -> Any:
        self._note(request)
        return self._endpoint(request).create(stream=True, **request)

    def create_many(self, texts: list[str], *, warm: str = "none") -> Any:
        self.registered.append((texts, warm))
        self._note({})
        return self.hypic.segments.create_many(texts, warm=warm)

    def _endpoint(self, request: dict[str, Any]) -> Any:
        return self.hypic.completions if "prompt" in request else self.hypic.chat.completions

    def _note(self, request: dict[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        if request:
            self.requests.append(request)

    @property
    def sent(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        return self.requests[-1]["messages"]


class AsyncRecording(Recording):
    """The same on an event loop."""

    @property
    def completions(self) -> Any:
        return _AsyncCompletions(self)

    @property
    def segments(self) -> Any:
        return _AsyncSegments(self)


class _AsyncCompletions:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def create(self, **request: Any) -> Any:
        return Recording.create(self._recording, **request)

    def stream(self, **request: Any) -> _AsyncStream:
        return _AsyncStream(Recording.stream(self._recording, **request))


class _AsyncSegments:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    async def create_many(self, texts: list[str], *, warm: str = "none") -> Any:
        return Recording.create_many(self._recording, texts, warm=warm)


class _AsyncStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> _AsyncStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stream.close()

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        chunk = next(self._stream, None)
        if chunk is None:
            raise StopAsyncIteration
        return chunk
