"""One engine: a model, a store and a scheduler behind `submit` and `step`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast, final

import torch
from torch import nn

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine.batch import Batch
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.door import Door
from hypic_sdk.engine.ending import error_event
from hypic_sdk.engine.entry_ledger import EntryLedger
from hypic_sdk.engine.fetching import EntryFetcher
from hypic_sdk.engine.grammars import GrammarBook
from hypic_sdk.engine.graphs import GraphCounts
from hypic_sdk.engine.likely import Likely
from hypic_sdk.engine.pipeline import Pipeline, StepCounts
from hypic_sdk.engine.plan import Gap, gap_of
from hypic_sdk.engine.retention import Retention
from hypic_sdk.engine.runner import Runner
from hypic_sdk.engine.scheduler import Scheduler
from hypic_sdk.engine.settings import EngineSettings, resolve_settings
from hypic_sdk.engine.shadow import Shadow
from hypic_sdk.errors import HypicError, RequestError, TransferFailed
from hypic_sdk.models.base import CausalLM, ModelSpec
from hypic_sdk.prompt.segment import PromptPart
from hypic_sdk.store.entries import Holdings, Need, Removal, SegmentEntry, Usage
from hypic_sdk.store.entry_bytes import entry_tensors, pack_entry
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.store.slab import Slabs
from hypic_sdk.store.store import Store
from hypic_sdk.transport.control import EntriesChanged, EntryLook, Held
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, WarmEvent, WarmRequest

WAITING_PAUSE_S = 0.002  # between looks at a grammar or an entry that is all that is waited for


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What an engine is, for health checks, logs and `doctor`."""

    model_fingerprint: str
    spec: ModelSpec
    settings: EngineSettings
    store_layout: StoreLayout


@final
class Engine:
    """Takes messages, runs one forward a step, hands out events.

    Single-threaded.  Whatever goes wrong with one request becomes its last event; `step` raises
    for none of them.
    """

    def __init__(
        self,
        model: CausalLM,
        fingerprint: str,
        config: EngineConfig,
        *,
        grammars: GrammarBook | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take all memory at once.

        Args:
            model: an nn.Module in eval mode; its parameters say device and dtype.
            fingerprint: digest of its weights; part of every key.
            grammars: of the model's tokenizer; none: requests with a grammar are refused.
            clock: seconds, by which deadlines and timings go.
        Raises:
            ConfigError: settings that do not fit the model or the budget.
        """
        self._clock = clock
        parameter = next(cast("nn.Module", model).parameters())
        settings = resolve_settings(model, parameter.dtype, parameter.device, fingerprint, config)
        layout = StoreLayout.of(
            model.spec,
            dtype=settings.dtype,
            state_dtype=settings.state_dtype,
            pair=settings.pair,
        )
        self._description = EngineDescription(fingerprint, model.spec, settings, layout)
        self._settings = settings
        self._store = Store(layout, config.store, device=settings.device)
        area = ColdArea(model.spec, settings)
        self._scheduler = Scheduler(self._store, area, settings, config.scheduler, grammars)
        self._runner = Runner(model, settings, self._store.slabs, area)
        self._door = Door(
            settings,
            model.spec.vocab_size,
            max_replies=config.scheduler.max_requests,
            grammars=grammars,
        )
        self._retention = Retention(self._store)
        parts = (self._runner, self._scheduler, self._retention)
        self._pipeline = Pipeline(*parts, clock, overlaps=settings.overlap)
        self.shadow: Shadow | None = None  # none: no live checks
        if config.shadow is not None:
            self.shadow = Shadow(model, layout, settings, area, config.shadow, clock)
            self._runner.on_logits = self.shadow.follow
        self._on_begin: Callable[[tuple[str, ...]], None] | None = None
        self._tell_entries: Callable[[EntriesChanged], None] | None = None
        self._running: frozenset[str] = frozenset()  # in the last forward, if anybody watches

    def capture_ahead(self, config: EngineConfig) -> None:
        """Before the first request: capture usual forwards, for `capture_ahead_s` at most."""
        self._runner.capture_ahead(Likely.of(self._settings, config), config.capture_ahead_s)

    def submit(self, message: EngineRequest) -> None:
        """Queue a request; what is wrong with it is told by its last event.

        Raises:
            RequestError: a request of that id is in flight; its events would be taken for this
                one's.
        """
        self._check_new(message.request_id)
        try:
            is_off = self.shadow is not None and self.shadow.is_switched_off
            request = self._door.request(message, now_s=self._clock(), reuse_is_off=is_off)
            self._scheduler.submit(request)
        except HypicError as error:
            self._scheduler.tell(error_event(message.request_id, error))

    def warm(self, message: WarmRequest) -> None:
        """Queue segments to be put into the pool; raises as `submit` does."""
        self._check_new(message.request_id)
        try:
            self._door.check_warm(message)
        except HypicError as error:
            payload = {**error.to_payload(), "request_id": message.request_id}
            self._scheduler.tell(WarmEvent(message.request_id, error=payload, done=True))
            return
        self._scheduler.warm(message)

    def _check_new(self, request_id: str) -> None:
        if request_id in self._scheduler:
            raise RequestError("a request of that id is in flight", request_id=request_id)

    def cancel(self, request_id: str) -> None:
        """Free all that a request holds, now.  Unknown and ended ones are ignored."""
        self._scheduler.cancel(request_id)

    def finish(self, request_id: str, reply_index: int = 0) -> None:
        """End one reply of a request now: its caller has what it wanted.

        It ends by STOP, is accounted for and kept as one that an end token ended.  Unknown and
        ended ones are ignored, and requests whose prompt is not done.
        """
        self._scheduler.finish(request_id, reply_index)

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run or to tell."""
        return self._scheduler.has_work or self._pipeline.is_busy

    def step(self) -> list[Event]:
        """Run one batch; events of all requests since the last step."""
        self._scheduler.prepare(self._clock())
        if not self._scheduler.is_decoding_only:
            self._pipeline.settle()
        batch = self._scheduler.next_batch()
        if batch is not None:
            self._tell_begun(batch)
            self._pipeline.run(batch)
        elif self._pipeline.is_busy:
            self._pipeline.settle()
        elif self._scheduler.is_compiling or self._scheduler.is_fetching:
            time.sleep(WAITING_PAUSE_S)
        events = self._scheduler.take_events()
        ledger = self._scheduler.ledger
        if ledger is not None and (ledger.is_due(self._clock()) or not self.has_work):
            self.tell_entries()
        if self.shadow is not None:
            self.shadow.note_work()
        return events

    def idle(self) -> float | None:
        """Use a moment without work for a live check, one step of it at most.

        Returns:
            Seconds after which it is worth to ask again; none: not before there was work.
        """
        return None if self.shadow is None or self.has_work else self.shadow.idle()

    def connect(self, fetcher: EntryFetcher) -> None:
        """Follow hints about other workers from now on."""
        self._scheduler.connect(fetcher)

    def watch_entries(self, worker: str, tell: Callable[[EntriesChanged], None]) -> None:
        """Call `tell` after a step, now and then, with entries that were made or went."""
        self._scheduler.ledger = EntryLedger(self._store, worker)
        self._tell_entries = tell

    def tell_entries(self) -> None:
        """Tell now what there is to tell of entries: an idle engine has no steps."""
        ledger = self._scheduler.ledger
        if ledger is None or self._tell_entries is None:
            return
        changed = ledger.changes(self._clock())
        if changed is not None:
            self._tell_entries(changed)

    def make_here(self, part: PromptPart, namespace: str) -> None:
        """A segment whose entry is on its way from another worker is made here instead."""
        gap = self._gap(part, namespace)
        if gap is not None:
            self._scheduler.make_here(gap.key)

    def pack(self, part: PromptPart, key: bytes, namespace: str) -> torch.Tensor:
        """A segment's entry as bytes, for another worker (see `store.entry_bytes`).

        Raises:
            TransferFailed: the other one's settings differ (another key), or it is not held.
        """
        gap = self._gap(part, namespace)
        if gap is None or gap.key != key:
            raise TransferFailed("the other worker has other settings: it keeps another entry")
        if not self._store.probe(gap.key, part.packed):
            raise TransferFailed("the entry is not held (any more)")
        lease = self._store.admit(Need(entries=(gap.key,)))
        assert lease is not None, "a lease that only pins needs no room"
        with lease:
            return pack_entry(self._store.slabs, lease.entries[gap.key])

    def watch(self, on_begin: Callable[[tuple[str, ...]], None]) -> None:
        """Call `on_begin` before a forward with the ids that had no part in the one before."""
        self._on_begin = on_begin

    def _tell_begun(self, batch: Batch) -> None:
        if self._on_begin is None:
            return
        running = batch.request_ids
        new = sorted(running - self._running)
        self._running = running
        if new:
            self._on_begin(tuple(new))

    def abort(self, error: HypicError) -> list[Event]:
        """End everything in flight with this error."""
        self._scheduler.abort(error)
        return self._scheduler.take_events()

    def probe(self, parts: Sequence[PromptPart], namespace: str = "") -> list[bool]:
        """Whether each segment's entry is held now."""
        held = []
        for part in parts:
            gap = self._gap(part, namespace)
            held.append(gap is not None and self._store.probe(gap.key, part.packed))
        return held

    def entry_digests(self, parts: Sequence[PromptPart], namespace: str = "") -> list[bytes | None]:
        """SHA-256 over all that the store keeps of each segment; none where it is not held.

        Equal digests are equal bytes: what purity (design 3.7, law 5) is tested by.
        """
        return [self._entry_digest(self._gap(part, namespace)) for part in parts]

    def _entry_digest(self, gap: Gap | None) -> bytes | None:
        if gap is None or not self._store.probe(gap.key):
            return None
        lease = self._store.admit(Need(entries=(gap.key,)))
        assert lease is not None, "a lease that only pins needs no room"
        with lease:
            kept = entry_tensors(self._store.slabs, lease.entries[gap.key])
            digest = hashlib.sha256()
            for tensor in kept:
                digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
            return digest.digest()

    @contextmanager
    def opened(
        self, parts: Sequence[PromptPart], namespace: str = ""
    ) -> Iterator[tuple[Slabs, list[SegmentEntry | None]]]:
        """The memory of these segments' entries, pinned inside the block; for measurements.

        None stands for a segment that is not held.
        """
        gaps = [self._gap(part, namespace) for part in parts]
        keys = tuple({gap.key: None for gap in gaps if gap and self._store.probe(gap.key)})
        lease = self._store.admit(Need(entries=keys))
        assert lease is not None, "a lease that only pins needs no room"
        with lease:
            yield self._store.slabs, [lease.entries.get(gap.key) if gap else None for gap in gaps]

    def delete(self, parts: Sequence[PromptPart], namespace: str = "") -> Removal:
        """Remove these segments' entries, and every chain entry that contains one of them."""
        self._scheduler.entries_changed()
        keys = [gap.key for gap in self._gaps(parts, namespace)]
        self._retention.forget(keys)
        self._forget_followed()
        if self._settings.reuse.anchored:  # nobody knows behind which anchors they were computed
            return self._store.clear(namespace)
        return sum((self._store.delete(key) for key in keys), Removal())

    def clear(self, namespace: str | None = None) -> Removal:
        """Remove every entry of a namespace (none: of all)."""
        self._scheduler.entries_changed()
        self._retention.let_go(namespace)
        self._forget_followed()
        return self._store.clear(namespace)

    def _forget_followed(self) -> None:
        if self.shadow is not None:
            self.shadow.forget()

    def look(self, parts: Sequence[PromptPart], namespace: str = "") -> list[EntryLook]:
        """What there is of each segment; touches nothing."""
        return [self._look(part, self._gap(part, namespace)) for part in parts]

    def _look(self, part: PromptPart, gap: Gap | None) -> EntryLook:
        if gap is None:
            return EntryLook(Held.NOT_KEPT)
        if self._store.probe(gap.key, part.packed):
            held = Held.WARM
        elif self._store.is_filling(gap.key):
            held = Held.FILLING
        else:
            held = Held.EVICTED if self._store.was_evicted(gap.key) else Held.COLD
        num_bytes = self._description.store_layout.segment_bytes(gap.stop - gap.start)
        return EntryLook(held, num_bytes, self._retention.is_pinned(gap.key))

    def pin(self, parts: Sequence[PromptPart], namespace: str = "") -> None:
        """Keep these segments' entries, also those that are still to be made.

        Raises:
            PinBudgetExhausted: pins would take more than their share; none of these is pinned then.
        """
        self._retention.pin(self._gaps(parts, namespace), namespace)

    def unpin(self, parts: Sequence[PromptPart], namespace: str = "") -> None:
        """Let these segments' entries be evicted again."""
        self._scheduler.entries_changed()
        self._retention.unpin(gap.key for gap in self._gaps(parts, namespace))

    def set_priority(self, parts: Sequence[PromptPart], priority: int, namespace: str = "") -> None:
        """Of two entries, the one of lower priority (0 to 99, usual is 50) is evicted first."""
        self._retention.set_priority((gap.key for gap in self._gaps(parts, namespace)), priority)

    def set_limit(self, namespace: str, limit_bytes: int) -> None:
        """Hold a namespace's entries to so many bytes; what is used longest ago goes."""
        self._scheduler.entries_changed()
        self._retention.set_limit(namespace, limit_bytes)

    def holdings(self, namespace: str = "") -> Holdings:
        """What a namespace holds in the pools."""
        return self._store.holdings(namespace)

    def _gaps(self, parts: Sequence[PromptPart], namespace: str) -> list[Gap]:
        """The interiors of those segments that are kept at all."""
        found = (self._gap(part, namespace) for part in parts)
        return [gap for gap in found if gap is not None]

    def _gap(self, part: PromptPart, namespace: str) -> Gap | None:
        """The interior kept of a segment, wherever it stands."""
        settings = self._settings
        return gap_of(
            part, 0, 0, settings.reuse, settings.conv_width, settings.cache_namespace(namespace)
        )

    @property
    def graph_counts(self) -> GraphCounts | None:
        """What ran on graphs and what did not; none: no forward is captured."""
        return self._runner.graph_counts

    @property
    def step_counts(self) -> StepCounts | None:
        """Which steps overlapped and which did not; none: none is meant to."""
        return self._pipeline.counts

    def usage(self) -> Usage:
        """Bytes of the store by state."""
        return self._store.usage()

    def check(self) -> None:
        """Recount the store's books; AssertionError where they disagree."""
        self._store.check()

    def describe(self) -> EngineDescription:
        """What this engine is."""
        return self._description
