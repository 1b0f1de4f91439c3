"""What workers say to each other about entries.  The entries themselves go by links, not here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from hypic_sdk.prompt.segment import PromptPart


class Carrier(Enum):
    """What entries go by.  The asker names it; both ends use the same."""

    TCP = "tcp"  # a socket: between CPUs, and between workers that share a GPU
    NCCL = "nccl"  # between two GPUs


@dataclass(frozen=True, slots=True)
class FetchEntry:
    """Send an entry, made first if it is not there.  Answered by EntryReady or EntryRefused."""

    ticket: int  # the asker's own number
    asker: str  # worker id
    part: PromptPart  # role inner, with its id
    namespace: str
    key: bytes  # the asker's key of it: the same here, or the settings differ
    compute_fingerprint: str  # likewise: bytes made by other arithmetic are not taken
    host: str  # where the asker's end of the link listens
    port: int
    epoch: int
    timeout_s: float  # after this nobody waits any more
    carrier: Carrier = Carrier.TCP
    token: bytes = b""  # that the sender shows when it comes


@dataclass(frozen=True, slots=True)
class EntryReady:
    """The entry comes next on the link of this epoch."""

    ticket: int
    sender: str
    epoch: int
    num_bytes: int
    digest: bytes
    made_ms: float  # what making it took just now; 0: it was held


@dataclass(frozen=True, slots=True)
class EntryRefused:
    """No entry comes: the asker is to make it itself."""

    ticket: int
    sender: str
    epoch: int
    error: dict[str, Any]
    breaks_link: bool = False  # nothing that was asked for under this epoch comes any more


@dataclass(frozen=True, slots=True)
class DropFetch:
    """The asker does not want it any more."""

    ticket: int
    asker: str


PeerMessage = FetchEntry | EntryReady | EntryRefused | DropFetch
