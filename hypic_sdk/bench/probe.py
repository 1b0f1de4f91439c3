"""Engines over one model that is watched: what they say, and what passed through its layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import nn

from hypic_sdk.algebra.rotary import RotarySpec
from hypic_sdk.config import EngineConfig
from hypic_sdk.engine.context import TableContext
from hypic_sdk.engine.engine import Engine
from hypic_sdk.errors import from_payload
from hypic_sdk.families.recurrence import Recurrence
from hypic_sdk.kernels.attention_run import AttentionRun
from hypic_sdk.kernels.head_norms import HeadNorms
from hypic_sdk.kernels.items import ItemKind
from hypic_sdk.layers.context import ForwardContext
from hypic_sdk.models.base import CausalLM, ModelSpec
from hypic_sdk.prompt.segment import PromptPart, Role, SegmentedPrompt
from hypic_sdk.transport.messages import (
    EngineReport,
    EngineRequest,
    SamplingParams,
    TokenEvent,
    TokenLogprobs,
    WarmRequest,
)


@final
class _WatchedContext:
    """A context that keeps what each mixer gave; without attention where that is asked for."""

    def __init__(self, inner: TableContext, outputs: list[torch.Tensor], *, attends: bool) -> None:
        self._inner = inner
        self._outputs = outputs
        self._attends = attends
        self.recurrences: list[Recurrence] = []  # what each linear layer was given

    @property
    def positions(self) -> torch.Tensor:
        """See ForwardContext."""
        return self._inner.positions

    @property
    def row_count(self) -> torch.Tensor:
        """See ForwardContext."""
        return self._inner.row_count

    @property
    def row_independent(self) -> bool:
        """See ForwardContext."""
        return self._inner.row_independent

    def short_conv(
        self, layer: int, inputs_LC: torch.Tensor, weight_CW: torch.Tensor,
        bias_C: torch.Tensor | None, *, activation: str | None,
    ) -> torch.Tensor:  # fmt: skip
        """See ForwardContext."""
        return self._inner.short_conv(layer, inputs_LC, weight_CW, bias_C, activation=activation)

    def linear_attention(self, layer: int, recurrence: Recurrence) -> torch.Tensor:
        """See ForwardContext."""
        made = recurrence.written_out().rows(0, self._inner.table.num_rows)
        self.recurrences.append(made)
        return self._kept(self._inner.linear_attention(layer, recurrence))

    def full_attention(
        self, layer: int, query_LQE: torch.Tensor, key_LGE: torch.Tensor, value_LGE: torch.Tensor,
        *, norms: HeadNorms | None, rotary: RotarySpec | None, scale: float,
    ) -> torch.Tensor:  # fmt: skip
        """See ForwardContext."""
        out_LQE = self._inner.full_attention(
            layer, query_LQE, key_LGE, value_LGE, norms=norms, rotary=rotary, scale=scale
        )
        return self._kept(out_LQE if self._attends else torch.zeros_like(out_LQE))

    def _kept(self, out: torch.Tensor) -> torch.Tensor:
        self._outputs.append(out[: self._inner.table.num_rows].flatten(1).clone())
        return out


@final
class WatchedModel(nn.Module):
    """A CausalLM that gives what the one inside gives, and keeps what passed."""

    def __init__(self, inner: CausalLM, *, attends: bool = True) -> None:
        super().__init__()
        assert isinstance(inner, nn.Module), "a model is a module"
        self.inner = inner
        self.attends = attends
        self.hidden: list[torch.Tensor] = []  # [rows, D] of each forward
        self.outputs: list[list[torch.Tensor]] = []  # of each forward, of each layer: [rows, ..]
        self.recurrences: list[list[Recurrence]] = []  # the same, of linear layers, if wanted
        self.keeps_recurrences = False
        self.state: torch.Tensor | None = None  # [J, H, K, V] fp64, after the last forward
        self.hidden_positions: torch.Tensor | None = None  # whose keys no live row may see

    @property
    def spec(self) -> ModelSpec:
        """Of the model inside."""
        spec: ModelSpec = self.inner.spec
        return spec

    def forget(self) -> None:
        """Drop what was kept."""
        self.hidden, self.outputs, self.recurrences, self.state = [], [], [], None

    @torch.no_grad()
    def forward(self, ids_L: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """See CausalLM."""
        assert isinstance(context, TableContext), "an engine's model is asked with its tables"
        if self.hidden_positions is not None:
            runs = context.table.attention_runs
            context.show_attention(tuple(_without(r, self.hidden_positions) for r in runs))
        outputs: list[torch.Tensor] = []
        watched = _WatchedContext(context, outputs, attends=self.attends)
        hidden_LD: torch.Tensor = self.inner.forward(ids_L, watched)
        self.hidden.append(hidden_LD[: context.table.num_rows].clone())
        self.outputs.append(outputs)
        if self.keeps_recurrences:
            self.recurrences.append(watched.recurrences)
        saves = [item.slot for item in context.table.items if item.kind is ItemKind.SAVE]
        if saves:
            self.state = context.states[saves[-1]].double().cpu()
        return hidden_LD

    @torch.no_grad()
    def logits(self, hidden_ND: torch.Tensor, *, row_independent: bool) -> torch.Tensor:
        """See CausalLM."""
        found: torch.Tensor = self.inner.logits(hidden_ND, row_independent=row_independent)
        return found


def _without(run: AttentionRun, hidden: torch.Tensor) -> AttentionRun:
    """The run, blind to some positions before it."""
    seen = torch.ones(run.num_keys, dtype=torch.bool)
    seen[hidden[hidden < run.first_position]] = False
    num_gone = int((~seen).sum())
    slots = run.slots[: run.num_keys][seen.to(run.slots.device)]
    return AttentionRun(run.row_start, run.row_stop, run.first_position - num_gone, slots)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What one request gave."""

    token_ids: tuple[int, ...]  # the reply, without its end token
    logprobs: tuple[TokenLogprobs, ...]
    report: EngineReport


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """What a given reply met: its rows are the prompt's last and all of the reply's."""

    logits_NV: torch.Tensor
    outputs: tuple[torch.Tensor, ...]  # of each layer's mixer, [N, ..]
    state: torch.Tensor  # [J, H, K, V] fp64, after the reply
    report: EngineReport


@final
class Probe:
    """One engine, driven step by step."""

    def __init__(
        self, model: CausalLM, fingerprint: str, config: EngineConfig, *, attends: bool = True
    ) -> None:
        """
        Args:
            attends: false silences full attention: its layers add nothing.
        """
        self.model = WatchedModel(model, attends=attends).eval()
        self.engine = Engine(self.model, fingerprint, config)
        self._numbers: Iterator[int] = itertools.count()

    def warm(self, prompt: SegmentedPrompt) -> None:
        """Put the prompt's segments into the pool, behind its leading part if that is wanted."""
        first = prompt.parts[0]
        anchor = first.token_ids if first.role is Role.LEADING else ()
        self.warm_parts(tuple(replace(part, anchor=anchor) for part in inner_parts(prompt)))

    def warm_parts(self, parts: tuple[PromptPart, ...]) -> None:
        """Put segments into the pool in one go."""
        if parts:
            self.engine.warm(WarmRequest(f"warm-{next(self._numbers)}", parts))
            self._run()

    def read(
        self,
        prompt: SegmentedPrompt,
        max_tokens: int,
        logprobs: int = 0,
        *,
        ignore_eos: bool = False,
    ) -> Reading:
        """The greedy reply.  Raises HypicError: the request's own."""
        sampling = SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs or None, ignore_eos=ignore_eos
        )
        self.model.forget()
        self.engine.submit(EngineRequest(f"read-{next(self._numbers)}", prompt, sampling))
        events = self._run()
        return Reading(
            tuple(id_ for event in events for id_ in event.token_ids),
            tuple(one for event in events for one in event.logprobs),
            _report(events),
        )

    def force(self, prompt: SegmentedPrompt, reply: Sequence[int]) -> Forced:
        """What the model makes of a given reply; the prompt's segments are warmed before.

        Raises:
            HypicError: the request's own.
        """
        self.warm(prompt)
        *before, last = prompt.parts
        whole = replace(last, token_ids=(*last.token_ids, *reply))
        forced = SegmentedPrompt((*before, whole), prompt.borders)
        self.model.forget()
        sampling = SamplingParams(max_tokens=0)
        self.engine.submit(EngineRequest(f"force-{next(self._numbers)}", forced, sampling))
        report = _report(self._run())
        num_rows = len(reply) + 1
        rows_ND = torch.cat(self.model.hidden)[-num_rows:]
        assert self.model.state is not None, "a request saves its state"
        return Forced(
            self.model.logits(rows_ND, row_independent=True).cpu(),
            tuple(torch.cat(o)[-num_rows:].cpu() for o in zip(*self.model.outputs, strict=True)),
            self.model.state,
            report,
        )

    def _run(self) -> list[TokenEvent]:
        """Step until nothing is left.  Raises what an event tells."""
        events = []
        while self.engine.has_work:
            for event in self.engine.step():
                if event.error is not None:
                    raise from_payload(event.error)
                if isinstance(event, TokenEvent):
                    events.append(event)
        return events


def _report(events: Sequence[TokenEvent]) -> EngineReport:
    report = events[-1].report
    assert report is not None, "a request that ends well has a report"
    return report


def inner_parts(prompt: SegmentedPrompt) -> tuple[PromptPart, ...]:
    """The segments that may be kept, each once."""
    return tuple(dict.fromkeys(part for part in prompt.parts if part.role is Role.INNER))
