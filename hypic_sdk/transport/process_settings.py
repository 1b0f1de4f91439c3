"""What an engine process is started with, as a file in its folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypic_sdk.config import EngineConfig

SETTINGS_FILE = "settings.json"
HOPELESS = 3  # exit status of a worker that would fail again


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """One of several workers: its name, and where it meets the others."""

    worker: str  # of this process alone: one that is started again has another
    folder: str  # of their sockets, mode 0700; empty: by TCP, under the key
    index: int  # of its place among them: which GPU it takes
    num_workers: int
    host: str = "127.0.0.1"  # of its end of links: an address of this machine
    may_be_public: bool = False  # whether that may be one of the open network
    key_file: str = ""  # what all workers of several hosts share


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """What a worker is started with whose router is on another host."""

    router: str  # HOST:PORT
    key_file: str
    place: str  # names it in the router's metrics
    host: str  # an address of this machine that the other workers reach
    model_folder: str
    index: int = 0  # of the workers that were started here together: which GPU it takes
    num_workers: int = 1  # of these
    device: str | None = None  # none: what the router says
    budget_bytes: int | None = None  # of both pools; none: what the router says
    may_be_public: bool = False
    log_level: str = "WARNING"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Plain values only: they are written as JSON and read back by type."""

    model_folder: str
    config: EngineConfig = field(default_factory=EngineConfig)
    log_level: str = "WARNING"
    script_file: str | None = None  # of a scripted engine; none: what is built in
    peers: PeerSettings | None = None  # none: the only worker
