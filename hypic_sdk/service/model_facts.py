"""What the text wing knows of the engine: numbers to tell and to predict by."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypic_sdk.config import ReuseConfig


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Rules of reuse and limits of the served model."""

    reuse: ReuseConfig = field(default_factory=ReuseConfig)
    conv_width: int = 1  # of the short convs; 1 without
    max_context_tokens: int | None = None
    is_checked: bool = False  # replies are recomputed in idle time (`config.ShadowConfig`)

    def interior_tokens(self, num_tokens: int) -> int | None:
        """Tokens of a segment that an entry saves; none if it is not kept at all."""
        if not self.reuse.mode.segments or not self.reuse.keeps(num_tokens, self.conv_width):
            return None
        seam = self.reuse.seam_widths(num_tokens, self.conv_width)
        return num_tokens - seam.head_tokens - seam.tail_tokens
