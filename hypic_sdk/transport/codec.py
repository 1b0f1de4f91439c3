"""Messages to frames and back: a tag and msgpack, decoded strictly by the tag's type.

Never pickle: what a frame can become is one of the types below, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from hypic_sdk.errors import HypicError, WorkerError
from hypic_sdk.transport.control import (
    Alive,
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    EntriesChanged,
    FinishRequest,
    Join,
    Leave,
    PeerHere,
    PeerLost,
    Refused,
    RequestsBegun,
    Welcome,
)
from hypic_sdk.transport.messages import EngineRequest, TokenEvent, WarmEvent, WarmRequest
from hypic_sdk.transport.peer_messages import DropFetch, EntryReady, EntryRefused, FetchEntry

Message = (
    EngineRequest
    | WarmRequest
    | CancelRequest
    | FinishRequest
    | PeerHere
    | PeerLost
    | Join
    | Welcome
    | Refused
    | Leave
    | Alive
    | EntriesChanged
    | RequestsBegun
    | Ask
    | TokenEvent
    | WarmEvent
    | Answer
    | EngineReady
    | EngineFailed
    | FetchEntry
    | EntryReady
    | EntryRefused
    | DropFetch
)

TAGS: Mapping[bytes, type[Any]] = MappingProxyType(
    {
        b"generate": EngineRequest,
        b"warm": WarmRequest,
        b"cancel": CancelRequest,
        b"finish": FinishRequest,
        b"here": PeerHere,
        b"lost": PeerLost,
        b"join": Join,
        b"welcome": Welcome,
        b"no": Refused,
        b"leave": Leave,
        b"alive": Alive,
        b"entries": EntriesChanged,
        b"begun": RequestsBegun,
        b"ask": Ask,
        b"token": TokenEvent,
        b"warmed": WarmEvent,
        b"answer": Answer,
        b"ready": EngineReady,
        b"failed": EngineFailed,
        b"fetch": FetchEntry,
        b"entry": EntryReady,
        b"refused": EntryRefused,
        b"drop": DropFetch,
    }
)
"""One tag per message type."""

_TAG_OF = {message_type: tag for tag, message_type in TAGS.items()}
_DECODERS = {tag: msgspec.msgpack.Decoder(message_type) for tag, message_type in TAGS.items()}
_ENCODER = msgspec.msgpack.Encoder()


def encode(message: Message) -> list[bytes]:
    """The two frames of a message."""
    return [_TAG_OF[type(message)], _ENCODER.encode(message)]


def decode(frames: Sequence[bytes]) -> Message:
    """The message of two frames.

    Raises:
        WorkerError: not two frames, an unknown tag, or a body that is not of the tag's type.
    """
    if len(frames) != 2 or bytes(frames[0]) not in _DECODERS:
        tag = bytes(frames[0][:32]) if frames else b""
        raise WorkerError(f"unknown message: {len(frames)} frames, tag {tag!r}")
    try:
        message: Message = _DECODERS[bytes(frames[0])].decode(frames[1])
    except (msgspec.MsgspecError, HypicError, AssertionError, ValueError) as error:
        raise WorkerError(f"torn message of tag {bytes(frames[0])!r}: {error}") from error
    return message
