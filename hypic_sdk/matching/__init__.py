"""Known texts inside ordinary prompts: the one matcher of server, clients and adapters."""

from hypic_sdk.matching.auto_segmenter import AutoSegmenter, Cut, KnownText

__all__ = ["AutoSegmenter", "Cut", "KnownText"]
