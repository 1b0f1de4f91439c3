"""How a server listens, what it lets in, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypic_sdk.errors import ConfigError
from hypic_sdk.server.quota import Quota

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Numbers of one server.

    Without keys (`server.tenants`) it answers only requests that are addressed to this machine:
    `allowed_hosts` are the names by which it may be called besides the loopback ones.
    """

    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: int = 64 * MIB
    body_timeout_s: float = 60.0  # a body that takes longer to arrive is given up
    quota: Quota = field(default_factory=Quota)  # of each tenant that has none of its own
    keep_jobs_s: float = 3600.0  # warm jobs stay readable that long after their end
    prepare_threads: int = 2  # render and tokenise; they hold the interpreter lock half of the time
    worker_threads: int = 4  # wait for the worker: lookups, deletions
    max_waiting: int = 1024  # for a thread
    retry_after_s: int = 1
    drain_s: float = 30.0  # how long a stop waits for what is in flight
    upkeep_s: float = 1.0  # how soon an engine that was started again is told of pins and limits
    sweep_s: float = 15.0  # how often what is over is removed; nobody finds it in the meantime
    keep_requests: int = 100  # of each tenant, the latest, without their texts
    keep_samples: int = 720  # of the pools; with `sample_s` an hour
    sample_s: float = 5.0  # how often the pools are looked at
    keep_alive_s: float = 15.0  # a silent stream says a comment that often

    def __post_init__(self) -> None:
        names = ("max_body_bytes", "prepare_threads", "worker_threads", "keep_requests")
        for name in (*names, "keep_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.sample_s <= 0.0:
            raise ConfigError(f"sample_s must be more than 0, got {self.sample_s:g}")
