"""One engine: a model, a store and a scheduler behind `submit` and `step`."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast, final

import torch
from torch import nn

from hypic_sdk.config import EngineConfig
from hypic_sdk.engine.batch import Batch
from hypic_sdk.engine.cold_memory import ColdArea
from hypic_sdk.engine.door import Door
from hypic_sdk.engine.ending import error_event
from hypic_sdk.engine.plan import Gap, gap_of
from hypic_sdk.engine.runner import Runner, entry_tensors
from hypic_sdk.engine.scheduler import Event, Scheduler
from hypic_sdk.engine.settings import EngineSettings, resolve_settings
from hypic_sdk.errors import HypicError, RequestError, WorkerError
from hypic_sdk.models.base import CausalLM, ModelSpec
from hypic_sdk.prompt.segment import PromptPart, token_bytes
from hypic_sdk.store.entries import Need, Removal, Usage
from hypic_sdk.store.layout import StoreLayout
from hypic_sdk.store.store import Store
from hypic_sdk.transport.messages import EngineRequest, WarmEvent, WarmRequest

logger = logging.getLogger(__name__)


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take all memory at once.

        Args:
            model: an nn.Module in eval mode; its parameters say device and dtype.
            fingerprint: digest of its weights; part of every key.
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
            transition_dtype=settings.transition_dtype,
        )
        self._description = EngineDescription(fingerprint, model.spec, settings, layout)
        self._settings = settings
        self._store = Store(layout, config.store, device=settings.device)
        area = ColdArea(model.spec, settings)
        self._scheduler = Scheduler(self._store, layout, area, settings, config.scheduler)
        self._runner = Runner(model, settings, self._store.slabs, area)
        self._door = Door(settings, model.spec.vocab_size)

    def submit(self, message: EngineRequest) -> None:
        """Queue a request; what is wrong with it is told by its last event.

        Raises:
            RequestError: a request of that id is in flight; its events would be taken for this
                one's.
        """
        self._check_new(message.request_id)
        try:
            self._scheduler.submit(self._door.request(message, now_s=self._clock()))
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

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to run or to tell."""
        return self._scheduler.has_work

    def step(self) -> list[Event]:
        """Run one batch; events of all requests since the last step."""
        self._scheduler.prepare(self._clock())
        batch = self._scheduler.next_batch()
        if batch is not None:
            self._run(batch)
        return self._scheduler.take_events()

    def _run(self, batch: Batch) -> None:
        """One forward; if it fails, so do the requests in it, and nobody else."""
        try:
            result = self._runner.run(batch)
        except HypicError as error:
            self._scheduler.fail(batch, error)
        except Exception as error:
            logger.exception("a forward failed rows=%d", batch.num_rows)
            self._scheduler.fail(batch, WorkerError(f"the forward failed: {error}"))
        else:
            self._scheduler.commit(batch, result, self._clock())

    def abort(self, error: HypicError) -> list[Event]:
        """End everything in flight with this error."""
        self._scheduler.abort(error)
        return self._scheduler.take_events()

    def probe(self, parts: Sequence[PromptPart], namespace: str = "") -> list[bool]:
        """Whether each segment's entry is held now."""
        held = []
        for part in parts:
            gap = self._gap(part, namespace)
            held.append(gap is not None and self._store.probe(gap.key, token_bytes(part.token_ids)))
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
            kept = entry_tensors(lease.entries[gap.key], self._store.slabs)
            digest = hashlib.sha256()
            for tensor in kept:
                digest.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
            return digest.digest()

    def delete(self, parts: Sequence[PromptPart], namespace: str = "") -> Removal:
        """Remove these segments' entries, and every chain entry that contains one of them."""
        self._scheduler.entries_changed()
        gaps = [self._gap(part, namespace) for part in parts]
        return sum((self._store.delete(gap.key) for gap in gaps if gap is not None), Removal())

    def clear(self, namespace: str | None = None) -> Removal:
        """Remove every entry of a namespace (none: of all)."""
        self._scheduler.entries_changed()
        return self._store.clear(namespace)

    def _gap(self, part: PromptPart, namespace: str) -> Gap | None:
        """The interior kept of a segment, wherever it stands."""
        settings = self._settings
        return gap_of(
            part, 0, 0, settings.reuse, settings.conv_width, settings.cache_namespace(namespace)
        )

    def usage(self) -> Usage:
        """Bytes of the store by state."""
        return self._store.usage()

    def check(self) -> None:
        """Recount the store's books; AssertionError where they disagree."""
        self._store.check()

    def describe(self) -> EngineDescription:
        """What this engine is."""
        return self._description
