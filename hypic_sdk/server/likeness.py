"""Holds all workers of a fleet to one model and one arithmetic."""

from __future__ import annotations

import re
import threading
from typing import final

from hypic_sdk.errors import ConfigError
from hypic_sdk.router.assignment import WorkerId
from hypic_sdk.transport.control import EngineReady

_MODEL = ("model_fingerprint", "vocab_size", "max_context_tokens", "conv_width")
_PIECE_ENDS = re.compile(r"[;,] ")
_SHOWN = 40  # characters of a value: digests are longer
_WHAT_TO_DO = (
    "Answers and entries of the two would differ in their last bits. Give all workers one kind of "
    "processor or GPU, one dtype, the same versions, and on CPUs the same number of threads (set "
    "OMP_NUM_THREADS to one number for all). To go over to this one's way, end all others first"
)


@final
class Likeness:
    """What workers have in common.

    The model is that of the first worker, for good: the server has told callers its limits.  The
    arithmetic is that of the first that is here; when all are gone, the next sets it anew.  Where a
    host has workers of its own, only those do: in the moment in which they are started again, a
    guest must not shut them out.

    Safe from any thread.
    """

    def __init__(self, *, guests_may_set: bool) -> None:
        """`guests_may_set`: whether the arithmetic may be that of a worker of another host."""
        self._guests_may_set = guests_may_set
        self._lock = threading.Lock()
        self._first: EngineReady | None = None
        self._common: EngineReady | None = None  # whose arithmetic holds
        self._here: set[WorkerId] = set()

    def admit(self, worker: WorkerId, ready: EngineReady, *, is_guest: bool) -> None:
        """Count a worker in.

        Raises:
            ConfigError: another model, other limits, or other arithmetic; it is not counted in.
        """
        with self._lock:
            if self._first is not None:
                _check_model(self._first, ready)
            may_set = self._guests_may_set or not is_guest
            if self._common is None or (may_set and not self._here):
                self._common = ready
            _check_arithmetic(self._common, ready)
            self._first = self._first or ready
            self._here.add(worker)

    def leave(self, worker: WorkerId) -> None:
        """It is gone.  One that was never counted in is none of ours."""
        with self._lock:
            self._here.discard(worker)


def _check_model(first: EngineReady, ready: EngineReady) -> None:
    wrong = [
        f"{name} {_shown(getattr(ready, name))} (the others: {_shown(getattr(first, name))})"
        for name in _MODEL
        if getattr(first, name) != getattr(ready, name)
    ]
    if wrong:
        raise ConfigError(f"this worker differs from the others in {', '.join(wrong)}")


def _check_arithmetic(common: EngineReady, ready: EngineReady) -> None:
    here, others = _pieces(ready), _pieces(common)
    if here == others:
        return
    only_here = [piece for piece in here if piece not in others]
    only_others = [piece for piece in others if piece not in here]
    raise ConfigError(
        f"this worker computes otherwise than the others: {_listed(only_here)} here, "
        f"{_listed(only_others)} there. {_WHAT_TO_DO}",
        here=only_here,
        others=only_others,
    )


def _pieces(ready: EngineReady) -> list[str]:
    """What bits depend on, piece by piece; the fingerprint is read by people only."""
    return [f"dtype {ready.dtype}", *_PIECE_ENDS.split(ready.compute_fingerprint)]


def _listed(pieces: list[str]) -> str:
    return ", ".join(pieces) or "nothing more"


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:16]}..."
