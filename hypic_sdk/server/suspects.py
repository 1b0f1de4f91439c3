"""Requests that were there when an engine died (design 11): what is known of them, and by what."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from hypic_sdk.errors import HypicError, RequestRejected, WorkerLost
from hypic_sdk.transport import codec
from hypic_sdk.transport.events import Event
from hypic_sdk.transport.messages import EngineRequest, WarmRequest

MAX_DEATHS = 3  # of engines with the same request in the batch; with nothing beside it: the second
MAX_REMEMBERED = 1024
FORGET_S = 3600.0


@final
class OpenRequest:
    """A request between its arrival at the link and its last event.  Plain state."""

    def __init__(
        self, message: EngineRequest | WarmRequest, listener: Callable[[Event], None], now_s: float
    ) -> None:
        self.message = message
        self.listener = listener
        self.held_s = now_s  # since when it waits to be sent
        self.is_sent = False
        self.has_begun = False  # it had a part in a forward of the process that it was sent to
        self.has_spoken = False  # an event of it was handed on, so it can not begin anew
        self.is_suspect = False  # an engine died with it: not to run beside what it may end
        self.num_lost = 0  # processes that died with it
        self.deadline_s: float | None = None  # of one that is to be sent again
        self.is_given_up = False  # its caller was told; the engine has not let go of it yet

    @property
    def may_be_why(self) -> bool:
        """Whether the process that it was sent to may have died of it.

        Whoever was sent twice and never heard of began all the same: the word of it was lost.
        """
        return self.has_begun or self.num_lost > 0


@dataclass(frozen=True, slots=True)
class _Deaths:
    """Of engines with one content in the batch."""

    number: int = 0
    is_why: bool = False
    last_s: float = 0.0


_NO_DEATHS = _Deaths()


@final
class Suspects:
    """Which requests, by their content, were in the batch when an engine died.

    By content, so that a caller that asks for the same again is known.  One that ends well is
    forgotten; so are the oldest, and all after an hour.  The engines of a fleet share one: a
    request is no less suspect on another of them.  Safe to call from any thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._deaths: OrderedDict[bytes, _Deaths] = OrderedDict()
        self._lost: OrderedDict[bytes, None] = OrderedDict()  # sent elsewhere, not yet heard of

    def known(self, message: EngineRequest | WarmRequest) -> bool:
        """Whether an engine died with this content."""
        return self._of(message).number > 0

    def rejection(self, message: EngineRequest | WarmRequest) -> RequestRejected | None:
        """The error of a request that is not tried again; none: it may be."""
        deaths = self._of(message)
        if not deaths.is_why:
            return None
        return RequestRejected(
            f"{deaths.number} engine processes ended while this request ran; for {FORGET_S:g} s it "
            "is not tried again",
            request_id=message.request_id,
            num_deaths=deaths.number,
        )

    def _of(self, message: EngineRequest | WarmRequest) -> _Deaths:
        if not self._deaths:  # the usual case costs nothing
            return _NO_DEATHS
        with self._lock:
            return self._found(_content(message))

    def was_lost(self, message: EngineRequest | WarmRequest) -> bool:
        """Whether an engine died with this content that was never heard of since."""
        return bool(self._lost) and _content(message) in self._lost

    def _found(self, content: bytes) -> _Deaths:
        deaths = self._deaths.get(content, _NO_DEATHS)
        return deaths if self._clock() - deaths.last_s < FORGET_S else _NO_DEATHS

    def note_death(self, requests: Sequence[OpenRequest]) -> None:
        """A process died with these: one death more for each that may be why.

        The second with nothing beside it, or the third, is its fault.
        """
        # the same content, however often it was asked for, is one suspect
        contents = dict.fromkeys(_content(one.message) for one in requests if one.may_be_why)
        with self._lock:
            for content in contents:
                number = self._found(content).number + 1
                is_why = number >= MAX_DEATHS or (number > 1 and len(requests) == 1)
                self._deaths[content] = _Deaths(number, is_why, self._clock())
                self._deaths.move_to_end(content)
            while len(self._deaths) > MAX_REMEMBERED:
                self._deaths.popitem(last=False)

    def clear(self, message: EngineRequest | WarmRequest) -> None:
        """It ended well."""
        if self._deaths or self._lost:
            content = _content(message)
            with self._lock:
                self._deaths.pop(content, None)
                self._lost.pop(content, None)

    def verdict(
        self, one: OpenRequest, lost: WorkerLost, *, waits: bool = True
    ) -> HypicError | None:
        """What ends a request whose process died, once that is noted; none: it is sent again.

        Args:
            waits: for the next process; false: somebody else sends it to another one.
        """
        if one.may_be_why:
            one.is_suspect = True
            rejection = self.rejection(one.message)
            if rejection is not None:
                return rejection
        if one.has_spoken or isinstance(one.message, WarmRequest):
            return lost
        if not waits:
            with self._lock:
                self._lost[_content(one.message)] = None
                while len(self._lost) > MAX_REMEMBERED:
                    self._lost.popitem(last=False)
            return lost
        one.is_sent = one.has_begun = False
        one.num_lost += 1
        one.held_s = self._clock()
        return None


def _content(message: EngineRequest | WarmRequest) -> bytes:
    """Digest of all that an engine computes from: what a router adds is no part of it."""
    bare = replace(message, request_id="")
    if isinstance(bare, EngineRequest):
        bare = replace(bare, placements=(), timeout_s=None)
    return hashlib.sha256(codec.encode(bare)[1]).digest()
