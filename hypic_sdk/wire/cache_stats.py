"""`GET /v1/cache/stats`: where the memory of the pools is."""

from __future__ import annotations

from typing import Literal

from hypic_sdk.wire.parse import ReplyModel
from hypic_sdk.wire.shadow import ShadowStats


class PoolBytes(ReplyModel):
    """Bytes of one slab by state; every byte is in exactly one."""

    free: int
    reserved: int  # promised to a request, not taken yet
    filling: int  # an entry that is being written
    idle: int  # held by entries that nobody uses now: may be evicted
    pinned: int  # in use


class Amount(ReplyModel):
    """How much of something a tenant has, and how much it may have; no limit of its own: none."""

    used: int
    limit: int | None


class TenantStats(ReplyModel):
    """What the caller's tenant has of each thing that has a quota."""

    num_segments: Amount
    text_bytes: Amount
    cached_bytes: Amount
    pinned_bytes: Amount
    warm_jobs: Amount
    in_flight: Amount


class ClearedCache(ReplyModel):
    """The answer to `POST /v1/cache/clear`: entries and chains that went; texts stay."""

    object: Literal["cache.cleared"] = "cache.cleared"
    removed: int


class CacheStats(ReplyModel):
    """The books of the worker's store, and what the caller's tenant has of it."""

    object: Literal["cache.stats"] = "cache.stats"
    budget_bytes: int
    unused_bytes: int  # of the budget, what no slab could use
    state_rows: PoolBytes
    transition_rows: PoolBytes
    kv_slots: PoolBytes
    num_segments: int
    num_chains: int
    num_filling: int
    num_leases: int
    num_evicted: int  # entries dropped for room since the start
    tenant: TenantStats | None = None
    shadow: ShadowStats | None = None  # none: nothing is checked against full recompute
