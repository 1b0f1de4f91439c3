"""The rolling digest that names a chain: SHA-256 over items from position 0 (design 3.3).

The byte stream is prefix-free, so two item lists agree only if they are equal: a live token is its
id as a non-negative int32, an interior is the int32 -1 and a record of known length.  Live tokens
are fed one by one in effect: how parts or runs cut them leaves no trace.
"""

from __future__ import annotations

import hashlib
import struct
from typing import final

from hypic_sdk.prompt.segment import TOKEN_BYTES, SegmentKey

_CHAIN_TAG = b"hypic.chain.v1\0"
_INTERIOR = -1


@final
class ChainDigest:
    """Digest of the items fed so far, under one cache namespace (which names the mode).

    Token ids come as `prompt.segment.token_bytes`.
    """

    __slots__ = ("_hash",)

    def __init__(self, namespace: str) -> None:
        name = namespace.encode("utf-8")
        self._hash = hashlib.sha256(_CHAIN_TAG + struct.pack("<i", len(name)) + name)

    def feed_live(self, packed: bytes | memoryview) -> None:
        """Live tokens follow."""
        self._hash.update(packed)

    def feed_interior(self, key: SegmentKey, head_tokens: int, packed: bytes | memoryview) -> None:
        """The interior of segment `key`, which starts at its token `head_tokens`, follows."""
        num_tokens = len(packed) // TOKEN_BYTES
        self._hash.update(struct.pack("<iii", _INTERIOR, head_tokens, num_tokens))
        self._hash.update(key)
        self._hash.update(packed)

    def copy(self) -> ChainDigest:
        """An independent digest that goes on from here."""
        other = object.__new__(ChainDigest)
        other._hash = self._hash.copy()
        return other

    def digest(self) -> bytes:
        """32 bytes naming the items so far; feeding may go on."""
        return self._hash.digest()
