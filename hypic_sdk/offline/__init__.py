"""`LocalHypic`: the same road over one worker in this process, no server."""

from __future__ import annotations

from hypic_sdk.offline.local import DEMO_NAME, SCRIPTED_NAME, LocalHypic, find_model
from hypic_sdk.offline.port import LocalPort

__all__ = ["DEMO_NAME", "LocalHypic", "LocalPort", "SCRIPTED_NAME", "find_model"]
