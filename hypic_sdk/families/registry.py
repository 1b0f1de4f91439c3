"""Every family, by name: law tests, benches and the doctor walk this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hypic_sdk.families import (
    delta_rule,
    gated_delta_rule,
    gla,
    kda,
    lightning,
    mamba1,
    mamba2,
    retention,
)
from hypic_sdk.families.recurrence import LinearFamily

FAMILIES: Mapping[str, LinearFamily] = MappingProxyType(
    {
        "retention": retention.FAMILY,
        "lightning": lightning.FAMILY,
        "mamba2": mamba2.FAMILY,
        "mamba1": mamba1.FAMILY,
        "gla": gla.FAMILY,
        "delta_rule": delta_rule.FAMILY,
        "gated_delta_rule": gated_delta_rule.FAMILY,
        "kda": kda.FAMILY,
    }
)
