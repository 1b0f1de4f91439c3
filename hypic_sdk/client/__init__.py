"""Clients of a server, `AsyncHypic` on a loop and `Hypic` on any thread; helpers without I/O."""

from hypic_sdk.client.async_client import AsyncHypic
from hypic_sdk.client.blocking import Hypic
from hypic_sdk.client.prompt_builder import Prompt, Segment
from hypic_sdk.matching import AutoSegmenter
from hypic_sdk.prompt.segment import segment_id

__all__ = ["AsyncHypic", "AutoSegmenter", "Hypic", "Prompt", "Segment", "segment_id"]
