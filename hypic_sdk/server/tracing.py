"""What a request is traced by: spans for whoever collects them, or nothing at all."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol, final

Attribute = str | int | float | bool


class Trace(Protocol):
    """One request."""

    def note(self, **attributes: Attribute) -> None:
        """Say something about the request."""
        ...

    def phase(self, name: str, start_ns: int, end_ns: int, **attributes: Attribute) -> None:
        """Tell of one stretch of it, in nanoseconds of `time.time_ns`."""
        ...

    def end(self, error_code: str | None) -> None:
        """It is over, well or with an error."""
        ...


class Tracing(Protocol):
    """Where traces begin."""

    def begin(self, request_id: str, headers: Mapping[str, str]) -> Trace:
        """A request came; what its headers say of a trace that it belongs to is followed."""
        ...


@final
class Untraced:
    """Nobody collects: the tracing, and the trace of every request."""

    def begin(self, request_id: str, headers: Mapping[str, str]) -> Trace:
        """See `Tracing.begin`."""
        return self

    def note(self, **attributes: Attribute) -> None:
        """See `Trace.note`."""

    def phase(self, name: str, start_ns: int, end_ns: int, **attributes: Attribute) -> None:
        """See `Trace.phase`."""

    def end(self, error_code: str | None) -> None:
        """See `Trace.end`."""


@contextmanager
def timed(trace: Trace, name: str) -> Iterator[None]:
    """The block is a phase."""
    start_ns = time.time_ns()
    try:
        yield
    finally:
        trace.phase(name, start_ns, time.time_ns())


def find_tracing() -> Tracing:
    """OpenTelemetry's, where the extra `otel` is installed; the operator chooses the exporter."""
    if find_spec("opentelemetry") is None:
        return Untraced()
    from hypic_sdk.server.otel import OtelTracing

    return OtelTracing()
