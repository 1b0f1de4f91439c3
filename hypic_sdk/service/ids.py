"""Ids that nobody else has."""

from __future__ import annotations

import secrets


def new_id(kind: str) -> str:
    """An id that nobody else has: `req_...`, `warm_...`."""
    return f"{kind}_{secrets.token_hex(12)}"
