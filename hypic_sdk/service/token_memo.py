"""Token ids of segments whose text came along, so that the same text is tokenised once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import final

from hypic_sdk.prompt.segment import SegmentId, token_bytes
from hypic_sdk.prompt.tokenizer import token_ids_of

MIB = 1024 * 1024


@final
class TokenMemo:
    """Recent segments by their ids, within a budget of bytes; the least recently used go first.

    An id is a digest of the exact text, so what is found is what would be made.
    """

    def __init__(
        self, encode: Callable[[str], tuple[int, ...]], *, budget_bytes: int = 64 * MIB
    ) -> None:
        self._encode = encode
        self._budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._packed: OrderedDict[SegmentId, bytes] = OrderedDict()
        self._num_bytes = 0

    def token_ids(self, id_: SegmentId, text: str) -> tuple[int, ...]:
        """The ids of a text; `id_` is its segment id."""
        with self._lock:
            packed = self._packed.get(id_)
            if packed is not None:
                self._packed.move_to_end(id_)
        if packed is not None:
            return token_ids_of(packed)
        token_ids = self._encode(text)
        self._keep(id_, token_bytes(token_ids))
        return token_ids

    def forget(self, ids: Iterable[SegmentId]) -> None:
        """Keep nothing of these segments."""
        with self._lock:
            for id_ in ids:
                self._num_bytes -= len(self._packed.pop(id_, b""))

    def _keep(self, id_: SegmentId, packed: bytes) -> None:
        with self._lock:
            if id_ in self._packed or len(packed) > self._budget_bytes:
                return
            self._packed[id_] = packed
            self._num_bytes += len(packed)
            while self._num_bytes > self._budget_bytes:
                self._num_bytes -= len(self._packed.popitem(last=False)[1])
