"""Spans of OpenTelemetry: the one module that imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

from hypic_sdk.server.tracing import Attribute
from hypic_sdk.version import __version__


@final
class OtelTracing:
    """Spans `hypic.request`, and under it `hypic.prompt`, `queue`, `cold`, `assembly`, `decode`."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider`: none is the one that the process has set, which may well be none."""
        self._tracer = trace.get_tracer("hypic_sdk", __version__, tracer_provider=provider)

    def begin(self, request_id: str, headers: Mapping[str, str]) -> OtelTrace:
        """See `Tracing.begin`."""
        span = self._tracer.start_span(
            "hypic.request",
            context=propagate.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"hypic.request_id": request_id},
        )
        return OtelTrace(self._tracer, span)


@final
class OtelTrace:
    """One request's span."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def note(self, **attributes: Attribute) -> None:
        """See `Trace.note`."""
        self._span.set_attributes(_named(attributes))

    def phase(self, name: str, start_ns: int, end_ns: int, **attributes: Attribute) -> None:
        """See `Trace.phase`."""
        child = self._tracer.start_span(
            f"hypic.{name}",
            context=trace.set_span_in_context(self._span),
            start_time=start_ns,
            attributes=_named(attributes),
        )
        child.end(max(start_ns, end_ns))

    def end(self, error_code: str | None) -> None:
        """See `Trace.end`."""
        if error_code is not None:
            self._span.set_status(Status(StatusCode.ERROR, error_code))
            self.note(error_code=error_code)
        self._span.end()


def _named(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {f"hypic.{name}": value for name, value in attributes.items()}
