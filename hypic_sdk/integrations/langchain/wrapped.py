"""The models of this adapter inside whatever core puts around a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.runnables import (
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEachBase
from langchain_core.runnables.configurable import (
    DynamicRunnable,
    RunnableConfigurableAlternatives,
)

from hypic_sdk.integrations.contract import SegmentRegistry
from hypic_sdk.integrations.langchain.served import ServedModel


def registries_in(runnable: Any) -> tuple[SegmentRegistry, ...]:
    """Those of all models of this adapter in a runnable, each once.

    A model may have arguments bound to it, be tried again, have others to fall back to, be chosen
    by a configuration, or stand in a chain with parsers: documents are known to it all the same.
    """
    found = {id(one.registry): one.registry for one in _models_in(runnable)}
    return tuple(found.values())


def _models_in(runnable: Any) -> Iterator[ServedModel]:
    if isinstance(runnable, ServedModel):
        yield runnable
        return
    for inner in _inner(runnable):
        yield from _models_in(inner)


def _inner(runnable: Any) -> Iterator[Any]:
    """What a runnable of core's runs in its turn."""
    match runnable:
        case RunnableBindingBase() | RunnableEachBase():
            yield runnable.bound
        case RunnableWithFallbacks():
            yield from runnable.runnables
        case RunnableSequence():
            yield from runnable.steps
        case RunnableParallel():
            yield from runnable.steps__.values()
        case RunnableBranch():
            yield from (one for _, one in runnable.branches)
            yield runnable.default
        case RunnableLambda():
            yield from runnable.deps
        case DynamicRunnable():
            yield runnable.default
            # one that is made when it is chosen is known to nobody before
            if isinstance(runnable, RunnableConfigurableAlternatives):
                yield from runnable.alternatives.values()
