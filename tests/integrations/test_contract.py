"""Known texts, and prompts cut at them."""

from __future__ import annotations

from hypic_sdk.integrations.contract import (
    Cut,
    KnownText,
    SegmentRegistry,
    cache_details,
    report_values,
)
from hypic_sdk.matching import AutoSegmenter
from hypic_sdk.wire.report import PromptTokensDetails, Usage

A = "Ada lives in Norwick and keeps a parrot. " * 3 + "End of A"
B = "Tomas lives in Marlow Bay and plays the cello. " * 3 + "End of B"


def test_outer_whitespace_stays_in_the_prompt():
    known = SegmentRegistry()
    assert known.add(f"\n {A} \n") == KnownText(A)
    assert (len(known), f" {A}" in known, B in known) == (1, True, False)
    assert known.cut(f"x \n{A}\n").parts == ("x \n", KnownText(A), "\n")
    known.discard(f"{A}\n")
    assert known.cut(A).parts == (A,)


def test_what_was_found_is_told_with_the_report():
    known = SegmentRegistry(AutoSegmenter(max_prompt_chars=2 * len(A) + 1))
    known.add(A)
    cuts = [known.cut(A), known.cut(f"{A} {A}"), known.cut(A * 3)]
    assert report_values(None, cuts) == {"auto_segments": 3, "auto_segment_capped": True}
    assert not report_values(None, [Cut((A,))])["auto_segment_capped"]


def test_details_are_disjoint_and_within_the_prompt():
    details = PromptTokensDetails(cached_tokens=70, cache_write_tokens=50)
    assert cache_details(Usage(prompt_tokens=100, prompt_tokens_details=details)) == (70, 30)
