"""What keeps `bench serving` from measuring: memory, time, the model's context, the pools.

A row says what it holds at once before it begins, and is told why it can not: it is then listed
with that reason, and others go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from hypic_sdk.config import StoreConfig
from hypic_sdk.doctor.memory import available_bytes
from hypic_sdk.errors import ConfigError
from hypic_sdk.store.layout import ROWS_PER_REQUEST, StoreLayout


@final
class TimeLimit:
    """When no row may begin any more; it remembers whether one asked after that."""

    def __init__(self, limit_s: float = math.inf, start_s: float = 0.0) -> None:
        """
        Args:
            start_s: of `time.monotonic()`.
        """
        self.limit_s = limit_s
        self.was_reached = False
        self._start_s = start_s

    def stops(self) -> str:
        """Why nothing may begin; empty: it may."""
        if time.monotonic() - self._start_s <= self.limit_s:
            return ""
        self.was_reached = True
        return f"not begun within {self.limit_s:g} s (--seconds)"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a row holds at once."""

    prompt_tokens: int  # of each request
    reply_tokens: int = 1
    num_requests: int = 1
    num_documents: int = 0  # that are to be in the pool, all of one length
    document_tokens: int = 0

    def slots(self, layout: StoreLayout) -> tuple[int, int, int]:
        """State rows, transition rows and tokens of KV; a request counts as the store's split does.

        Keys that requests share count for each of them.
        """
        kv = self.num_documents * self.document_tokens
        kv += self.num_requests * (self.prompt_tokens + self.reply_tokens)
        rows = ROWS_PER_REQUEST * self.num_requests
        return (
            rows + (self.num_documents if layout.keeps_states else 0),
            self.num_documents if layout.keeps_transitions else 0,
            kv if layout.keeps_kv else 0,
        )


@dataclass(frozen=True, slots=True)
class Room:
    """How much an engine of a bench has."""

    layout: StoreLayout
    store: StoreConfig
    max_context_tokens: int

    @classmethod
    def of(cls, model: Any, store: StoreConfig) -> Room:
        """Of an engine of this model, in the dtype of its weights."""
        dtype = next(model.parameters()).dtype
        layout = StoreLayout.of(
            model.spec,
            dtype=dtype,
            state_dtype=torch.promote_types(dtype, torch.float32),
            pair=store.pair,
        )
        return cls(layout, store, model.spec.max_context_tokens)

    def lacks_context(self, needs: Needs) -> str:
        """How many tokens too many a request has; empty: the model takes them."""
        wanted, limit = needs.prompt_tokens + needs.reply_tokens, self.max_context_tokens
        if wanted <= limit:
            return ""
        return f"needs {wanted:,} tokens of context, the model takes {limit:,} (max_context_tokens)"

    def lacks_slots(self, needs: Needs) -> str:
        """What the pools have too little of; empty: all finds room at once."""
        sizes = self.layout.split(self.store)
        there = (sizes.num_state_rows, sizes.num_transition_rows, sizes.num_kv_slots)
        kinds = ("state rows", "transition rows", "tokens of keys and values")
        for kind, needed, found in zip(kinds, needs.slots(self.layout), there, strict=True):
            if needed > found:
                return (
                    f"needs {needed:,} {kind} at once, the pools have {found:,} "
                    f"(budget_bytes {self.store.budget_bytes:,})"
                )
        return ""

    def with_room_for(self, needs: Needs) -> Room:
        """With larger pools, where these have too little for it."""
        slots = needs.slots(self.layout)
        if self.layout.holds(self.store, *slots):
            return self
        budget_bytes = self.layout.budget_for(self.store, *slots)
        return replace(self, store=replace(self.store, budget_bytes=budget_bytes))


def check_memory(name: str, build: Callable[[], torch.nn.Module], device: torch.device) -> None:
    """Raise ConfigError where a model's weights take more than is free on the device.

    Who asks for more on a CPU is ended by the system, with much else, and told nothing.

    Args:
        build: makes the model on the default device; none of its weights is made here.
    """
    with torch.device("meta"):
        model = build()
    needed = sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))
    free = available_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"the weights of {name} take {needed:,} bytes, and {free:,} are free on {device}: "
            "free some, or choose a smaller model, as --tiny has",
            needed_bytes=needed,
            available_bytes=free,
        )
