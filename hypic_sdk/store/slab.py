"""The preallocated tensors behind the slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypic_sdk.errors import ConfigError
from hypic_sdk.kernels.int8_pairs import Int8Pairs
from hypic_sdk.store.layout import SlabSizes, StoreLayout


@dataclass(frozen=True, slots=True, eq=False)
class Slabs:
    """The memory that every entry and running state lies in.  Not cleared: written before read."""

    states: torch.Tensor  # [S, J, H, K, V] state_dtype
    # [S, J, W-1, C] dtype, same row index as `states`; with pairs in 8 bits X more rows behind them
    conv_tails: torch.Tensor
    # [X, J, H], [X, J, H, K] or [X, J, H, K, K]; none: constant, or in `pairs`
    transitions: torch.Tensor | None
    pairs: Int8Pairs | None  # [X, J, ..]
    keys: torch.Tensor  # [A, P, G, E] dtype; of segment entries unrotated
    values: torch.Tensor  # [A, P, G, E] dtype

    @classmethod
    def allocate(
        cls,
        layout: StoreLayout,
        sizes: SlabSizes,
        device: torch.device,
        *,
        purpose: str = "the pools: lower --cache-mib (budget_bytes)",
    ) -> Slabs:
        """Take the memory, once, at start.

        Args:
            purpose: what it is for, and how to need less.
        Raises:
            ConfigError: the device does not give that much.
        """
        try:
            return cls._allocate(layout, sizes, device)
        except RuntimeError as error:  # the one class that every device's allocator raises
            raise ConfigError(
                f"{device} does not give {sizes.budget_bytes} bytes for {purpose} ({error})",
                budget_bytes=sizes.budget_bytes,
            ) from error

    @classmethod
    def _allocate(cls, layout: StoreLayout, sizes: SlabSizes, device: torch.device) -> Slabs:
        rows, linear = sizes.num_state_rows, layout.num_linear
        kv_shape = (
            layout.num_attention,
            sizes.num_kv_slots,
            layout.num_kv_heads,
            layout.head_size,
        )
        transitions = pairs = None
        num_tails = rows
        if layout.has_int8_pairs:
            pairs = layout.pair_rows((sizes.num_transition_rows, linear), device)
            num_tails += sizes.num_transition_rows
        elif layout.transition_axes is not None:
            transitions = torch.empty(
                (sizes.num_transition_rows, linear, *layout.transition_axes),
                dtype=layout.transition_dtype,
                device=device,
            )
        return cls(
            states=torch.empty(
                (rows, linear, layout.num_heads, layout.key_size, layout.value_size),
                dtype=layout.state_dtype,
                device=device,
            ),
            conv_tails=torch.empty(
                (num_tails, linear, layout.conv_rows, layout.conv_channels),
                dtype=layout.dtype,
                device=device,
            ),
            transitions=transitions,
            pairs=pairs,
            keys=torch.empty(kv_shape, dtype=layout.dtype, device=device),
            values=torch.empty(kv_shape, dtype=layout.dtype, device=device),
        )

    @property
    def num_bytes(self) -> int:
        """What the tensors really take."""
        slabs = [self.states, self.conv_tails, self.keys, self.values]
        slabs += [] if self.transitions is None else [self.transitions]
        slabs += [] if self.pairs is None else self.pairs.tensors()
        return sum(slab.numel() * slab.element_size() for slab in slabs)
