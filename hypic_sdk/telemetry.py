"""Counters and histograms under names with units (`hypic_ttft_seconds`)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_POOLS = ("state_rows", "transition_rows", "kv_slots")
_STATES = ("free", "reserved", "filling", "idle", "pinned")
_EAGER_REASONS = (
    "cold_rows", "many_rows", "long_run", "waiting_sequences", "long_context", "many_items",
    "new_shape", "many_shapes", "failed_capture",
)  # fmt: skip
_SYNCHRONOUS_REASONS = ("other_rows", "kept_state", "late_masks", "live_checks")


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Tokens of one request by what they cost; cached = chain + segment."""

    chain: int  # covered by a chain entry
    segment: int  # interiors that were hits
    seam: int  # recomputed in place
    live: int  # went through the model, seams included
    cold: int  # of segments computed by this request


@final
class _StoreGauges:
    """Where the bytes of the store are."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._bytes = Gauge(
            "hypic_pool_bytes", "Bytes of the store.", ("pool", "state"), registry=registry
        )
        self._entries = Gauge(
            "hypic_entries", "Entries of the store.", ("kind",), registry=registry
        )
        self._evicted = Gauge(
            "hypic_evicted_entries", "Entries dropped for room since the start.", registry=registry
        )

    def note(self, usage: Mapping[str, Any]) -> None:
        for pool in _POOLS:
            for state in _STATES:
                self._bytes.labels(pool, state).set(usage[pool][state])
        for kind in ("segments", "chains", "filling", "leases"):
            self._entries.labels(kind).set(usage[f"num_{kind}"])
        self._evicted.set(usage["num_evicted"])


@final
class _ShadowGauges:
    """What live checks found, as sums since the engines began; zeros where there are none."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"hypic_shadow_{name}", text, registry=registry)

        self._by_field = {
            "num_replies": gauge("replies", "Replies that were recomputed in full."),
            "num_tokens": gauge("tokens", "Tokens of these replies that were looked at."),
            "num_agreed": gauge("agreed_tokens", "Of these, whose likeliest token is the same."),
            "kl_nats": gauge("kl_nats", "Sum over these of KL from full recompute."),
            "window_tokens": gauge("window_tokens", "Tokens of the latest replies."),
            "window_kl_nats": gauge("window_kl_nats", "The sum over these."),
            "num_dropped": gauge("dropped_replies", "Replies not recomputed after all."),
            "spent_s": gauge("seconds", "Device time of all this."),
            "num_switched_off": gauge("switched_off_engines", "Engines that reuse nothing now."),
        }

    def note(self, facts: Mapping[str, Any]) -> None:
        for name, gauge in self._by_field.items():
            gauge.set(facts[name])


@final
class _Followed:
    """A counter that follows a sum which others keep, and which begins anew with an engine.

    What came between the last look at a sum and its end is not counted.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._seen = 0.0

    def note(self, value: float) -> None:
        if value > self._seen:
            self._counter.inc(value - self._seen)
        self._seen = value


@final
class _Sums:
    """Sums that an engine keeps, some of them by reason; zeros until there are any."""

    def __init__(
        self,
        registry: CollectorRegistry,
        texts: Mapping[str, tuple[str, str]],
        by_reason: tuple[str, str, str],
        reasons: tuple[str, ...],
    ) -> None:
        """
        Args:
            texts: name and text of a counter, by the field that it follows.
            by_reason: the field of the sums by reason; name and text of their counter.
        """
        self._by_field = {
            field: _Followed(Counter(f"hypic_{name}", text, registry=registry))
            for field, (name, text) in texts.items()
        }
        self._field, name, text = by_reason
        counter = Counter(f"hypic_{name}", text, ("reason",), registry=registry)
        self._by_reason = {reason: _Followed(counter.labels(reason)) for reason in reasons}
        self._lock = threading.Lock()  # two may ask for the metrics at once

    def note(self, facts: Mapping[str, Any]) -> None:
        with self._lock:
            for field, counter in self._by_field.items():
                counter.note(facts[field])
            for reason, counter in self._by_reason.items():
                counter.note(facts[self._field][reason])


def _graph_sums(registry: CollectorRegistry) -> _Sums:
    """Forwards on CUDA graphs and without them."""
    texts = {
        "num_replayed": ("graph_replays", "Forwards that a graph ran."),
        "num_captured": ("graph_captures", "Forwards that were captured."),
        "num_failed": ("graph_failed_captures", "Captures that failed."),
        "capture_s": ("graph_capture_seconds", "Time that captures took."),
    }
    eager = ("eager", "eager_forwards", "Forwards that no graph ran, though graphs are on.")
    return _Sums(registry, texts, eager, _EAGER_REASONS)


def _step_sums(registry: CollectorRegistry) -> _Sums:
    """Steps that were launched ahead of the tokens of the one before, and the others."""
    texts = {
        "num_overlapped": ("overlapped_steps", "Steps launched ahead."),
        "num_dropped": ("dropped_tokens", "Tokens drawn behind an end."),
    }
    text = "Steps read before the next, though steps may overlap."
    return _Sums(registry, texts, ("synchronous", "synchronous_steps", text), _SYNCHRONOUS_REASONS)


@final
class _WorkerGauges:
    """What each of several workers does; empty where there is one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ("worker",), registry=registry)

        self._ready = gauge("hypic_worker_ready", "Whether a worker takes requests.")
        self._by_field = {
            "num_dispatched": gauge("hypic_worker_requests", "Requests given to a worker."),
            "num_failed": gauge("hypic_worker_failures", "Requests that a worker's error ended."),
            "num_fetched": gauge("hypic_worker_fetched_entries", "Entries from other workers."),
            "num_not_fetched": gauge("hypic_worker_failed_fetches", "Entries that did not come."),
            "fetched_bytes": gauge("hypic_worker_fetched_bytes", "Bytes from other workers."),
        }

    def note(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        for worker, facts in workers.items():
            self._ready.labels(worker).set(facts["state"] == "ready")
            for name, gauge in self._by_field.items():
                gauge.labels(worker).set(facts[name])


@final
class Telemetry:
    """The numbers of one server, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter(
            "hypic_requests", "Calls that were answered.", ("route", "status"), registry=registry
        )
        self.errors = Counter(
            "hypic_errors", "Calls that failed, by error code.", ("code",), registry=registry
        )
        self.in_flight = Gauge(
            "hypic_requests_in_flight", "Generations under way.", registry=registry
        )
        self.request_seconds = Histogram(
            "hypic_request_seconds", "Whole calls.", ("route",), registry=registry
        )
        self.ttft = Histogram(
            "hypic_ttft_seconds", "Arrival to first token.", buckets=_TTFT_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self.inter_token = Histogram(
            "hypic_inter_token_seconds", "Between two deltas.", buckets=_TOKEN_BUCKETS,
            registry=registry,
        )  # fmt: skip
        self._prompt_tokens = Counter(
            "hypic_prompt_tokens", "Prompt tokens by what they cost.", ("kind",), registry=registry
        )
        self._cached_tokens = Counter(
            "hypic_cached_tokens", "Prompt tokens that were not computed.", registry=registry
        )
        self._generated_tokens = Counter(
            "hypic_generated_tokens", "Tokens of replies.", registry=registry
        )
        self._store = _StoreGauges(registry)
        self._shadow = _ShadowGauges(registry)
        self._graphs = _graph_sums(registry)
        self._steps = _step_sums(registry)
        self._workers = _WorkerGauges(registry)

    def note_reply(self, prompt: PromptTokens | None, generated_tokens: int) -> None:
        """Count the tokens of a request that is over; `prompt` is none if it never got so far."""
        self._generated_tokens.inc(generated_tokens)
        if prompt is None:
            return
        self._cached_tokens.inc(prompt.chain + prompt.segment)
        for kind in ("chain", "segment", "seam", "live", "cold"):
            self._prompt_tokens.labels(kind).inc(getattr(prompt, kind))

    def note_usage(self, usage: Mapping[str, Any]) -> None:
        """Take over the books of the worker's store (the answer to `Question.USAGE`)."""
        self._store.note(usage)
        if usage.get("shadow") is not None:
            self._shadow.note(usage["shadow"])
        if usage.get("graphs") is not None:
            self._graphs.note(usage["graphs"])
        if usage.get("steps") is not None:
            self._steps.note(usage["steps"])

    def note_workers(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over the books of several workers, by place (`asdict` of `WorkerFacts`)."""
        self._workers.note(workers)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)
