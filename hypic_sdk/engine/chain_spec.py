"""What a chain entry of a request is, at one position of it."""

from __future__ import annotations

from hypic_sdk.engine.kv_table import KvTable
from hypic_sdk.engine.request import Request
from hypic_sdk.prompt.segment import BorderKind
from hypic_sdk.store.entries import ChainSpec


def chain_spec(
    request: Request,
    kv: KvTable,
    *,
    digest: bytes,
    position: int,
    kind: BorderKind,
    state_slot: int,
) -> ChainSpec:
    """A chain entry of this request at one position."""
    return ChainSpec(
        namespace=request.message.namespace,
        digest=digest,
        position=position,
        state_slot=state_slot,
        # a copy: an entry must not keep the whole table of a long request alive
        kv_slots=kv.host_slots[:position].clone(),
        exact=request.layout.exact_until(position),
        segment_keys=request.layout.keys_until(position),
        kind=kind,
        session_id=request.message.session_id,
    )
