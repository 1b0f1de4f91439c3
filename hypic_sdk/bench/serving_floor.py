"""What no implementation beats: bytes that must be read over the rate at which they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypic_sdk.bench.kernels import COPY_BYTES_PER_S, PRODUCT_FLOPS_PER_S
from hypic_sdk.bench.serving_model import Bench
from hypic_sdk.layers.embedding import TokenEmbedding
from hypic_sdk.layers.moe import MixtureOfExperts
from hypic_sdk.store.layout import StoreLayout


@dataclass(frozen=True, slots=True)
class Floors:
    """Weights and entries in bytes, and the work of a row; none on a CPU, whose rates vary."""

    is_known: bool
    dense_bytes: int  # read by every forward
    dense_numbers: int
    expert_bytes: int  # all routed experts
    expert_numbers: int
    top_share: float  # of the experts that one row takes
    layout: StoreLayout

    @classmethod
    def of(cls, bench: Bench) -> Floors:
        """Of the model of a bench."""
        model = bench.model
        blocks = [x for x in model.modules() if isinstance(x, MixtureOfExperts)]
        routed = {id(p): p for block in blocks for p in (block.gate_up, block.down)}
        looked_up = {
            id(p) for x in model.modules() if isinstance(x, TokenEmbedding) for p in x.parameters()
        }
        dense = [p for p in model.parameters() if id(p) not in routed and id(p) not in looked_up]
        layouts = [block.layout for block in blocks]
        return cls(
            bench.device.type == "cuda",
            sum(p.numel() * p.element_size() for p in dense),
            sum(p.numel() for p in dense),
            sum(p.numel() * p.element_size() for p in routed.values()),
            sum(p.numel() for p in routed.values()),
            layouts[0].top_k / layouts[0].num_experts if layouts else 0.0,
            bench.engine().describe().store_layout,
        )

    def weights_bytes(self, rows: int) -> float:
        """Weights that so many rows read, each expert being as likely as the others."""
        return self.dense_bytes + self.expert_bytes * (1 - (1 - self.top_share) ** rows)

    def flops(self, rows: int) -> float:
        """Products of so many rows with their weights (attention and scans not counted)."""
        return 2.0 * rows * (self.dense_numbers + self.expert_numbers * self.top_share)

    def forward_ms(self, rows: int, entry_tokens: Sequence[int] = ()) -> float | None:
        """A forward of live rows that reads these entries."""
        if not self.is_known:
            return None
        entries = sum(self.layout.segment_bytes(count) for count in entry_tokens)
        return self._ms(self.weights_bytes(rows) + entries, self.flops(rows))

    def decode_ms(self, batch: int, context_tokens: int) -> float | None:
        """A step of `batch` rows: weights, keys and values, running states read and written."""
        if not self.is_known:
            return None
        own = context_tokens * self.layout.kv_slot_bytes + 2 * self.layout.state_row_bytes
        return self._ms(self.weights_bytes(batch) + batch * own, self.flops(batch))

    @staticmethod
    def _ms(num_bytes: float, num_flops: float) -> float:
        return 1e3 * max(num_bytes / COPY_BYTES_PER_S, num_flops / PRODUCT_FLOPS_PER_S)
