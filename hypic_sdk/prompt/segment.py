"""What a prompt becomes: an ordered list of parts, some of which are segments (design 3.1)."""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NewType

from hypic_sdk.config import SeamWidths
from hypic_sdk.errors import EmptyPrompt

SegmentId = NewType("SegmentId", str)
"""`seg_` and a digest of the exact text; what users hold.  Made by anyone, no server needed."""

SegmentKey = NewType("SegmentKey", bytes)
"""The store's own key (32 bytes): digest of cache namespace, seam widths and token ids."""

TOKEN_BYTES = 4  # of a token id as `token_bytes` packs it

_ID_TAG = b"hypic.segment.v1\0"
_KEY_TAG = b"hypic.key.v1\0"


def segment_id(text: str) -> SegmentId:
    """The id of a text, byte for byte (no trimming): base32 of 20 bytes of SHA-256, lower case.

    Raises:
        ValueError: the text holds a lone surrogate, which has no UTF-8 form.
    """
    digest = hashlib.sha256(_ID_TAG + text.encode("utf-8")).digest()[:20]
    return SegmentId("seg_" + base64.b32encode(digest).decode("ascii").lower())


def token_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as little-endian int32, the form in which they are hashed and compared."""
    return struct.pack(f"<{len(token_ids)}i", *token_ids)


def segment_key(token_ids: Sequence[int], seam: SeamWidths, namespace: str) -> SegmentKey:
    """The key of a segment in a cache namespace (model, stored precisions, tenant, ...)."""
    return packed_key(token_bytes(token_ids), seam, namespace)


def packed_key(packed: bytes, seam: SeamWidths, namespace: str) -> SegmentKey:
    """The same, of what `token_bytes` packed."""
    digest = hashlib.sha256(_KEY_TAG)
    num_tokens = len(packed) // TOKEN_BYTES
    digest.update(struct.pack("<iii", seam.head_tokens, seam.tail_tokens, num_tokens))
    digest.update(packed)
    digest.update(namespace.encode("utf-8"))
    return SegmentKey(digest.digest())


class Role(Enum):
    """Where a part stands; only an inner segment is looked up and kept."""

    LEADING = "leading"  # everything before the first segment; live, starts chains
    INNER = "inner"  # a segment that is not the last part
    GLUE = "glue"  # plain text between segments, live
    TRAILING = "trailing"  # from the last inner segment to the end; live, never empty


@dataclass(frozen=True)
class PromptPart:
    """A stretch of the token list with one role.

    `segment_id` is set for an inner segment, and for a segment that stands last (role trailing,
    reported as such).  `message_index` and `content_index` say where the caller wrote it.
    `anchor`: what a segment is computed behind where `ReuseConfig.anchored` is set; a prompt's own
    segments are given its leading part, whatever they say.
    """

    role: Role
    token_ids: tuple[int, ...]
    segment_id: SegmentId | None = None
    message_index: int = 0
    content_index: int = 0
    anchor: tuple[int, ...] = ()

    @cached_property
    def packed(self) -> bytes:
        """The token ids as `token_bytes`: packed once for checks, keys and digests alike."""
        return token_bytes(self.token_ids)


class BorderKind(Enum):
    """Why a chain entry may be kept at a border (design 3.3)."""

    LEADING = "leading"  # end of the leading part
    MESSAGE = "message"  # end of a chat message
    PROMPT = "prompt"  # end of the prompt before the generation prompt
    REPLY = "reply"  # end of the reply; made by the engine, never by the segmenter


@dataclass(frozen=True, slots=True)
class Border:
    """A position (number of tokens before it) at which a chain entry may be kept."""

    position: int
    kind: BorderKind


@dataclass(frozen=True)
class SegmentedPrompt:
    """The token list of a request, cut into parts.  The last part is trailing and not empty.

    Parts without tokens do not occur.  `borders` rise strictly and lie inside parts that are live
    or at the end of any part; 0 and `num_tokens` are not borders.
    """

    parts: tuple[PromptPart, ...]
    borders: tuple[Border, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts or self.parts[-1].role is not Role.TRAILING:
            raise EmptyPrompt(
                "the prompt has no trailing tokens: ask something after the documents"
            )
        assert all(part.token_ids for part in self.parts), "parts must not be empty"
        positions = [border.position for border in self.borders]
        assert positions == sorted(set(positions)), "borders must rise strictly"
        assert not positions or (positions[0] > 0 and positions[-1] < self.num_tokens)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Global position of each part's first token."""
        starts, position = [], 0
        for part in self.parts:
            starts.append(position)
            position += len(part.token_ids)
        return tuple(starts)

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens of all parts together."""
        return sum(len(part.token_ids) for part in self.parts)

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        """The whole token list: what full recompute runs on."""
        return tuple(itertools.chain.from_iterable(part.token_ids for part in self.parts))

    @cached_property
    def packed(self) -> bytes:
        """The same as `token_bytes`."""
        return b"".join([part.packed for part in self.parts])

    def span(self, start: int, stop: int) -> memoryview:
        """Tokens [start, stop) of it."""
        return memoryview(self.packed)[TOKEN_BYTES * start : TOKEN_BYTES * stop]

    def ids_between(self, start: int, stop: int) -> tuple[int, ...]:
        """Token ids [start, stop), without the whole list."""
        return struct.unpack(f"<{stop - start}i", self.span(start, stop))
