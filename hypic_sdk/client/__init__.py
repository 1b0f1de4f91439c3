"""Clients of a server: `AsyncHypic` on an event loop, `Hypic` on any thread."""

from hypic_sdk.client.async_client import AsyncHypic
from hypic_sdk.client.blocking import Hypic

__all__ = ["AsyncHypic", "Hypic"]
