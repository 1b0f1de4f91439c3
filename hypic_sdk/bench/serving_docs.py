"""Results of `bench serving`, `replay` and `experiments` as tables of the docs."""

from __future__ import annotations

from collections.abc import Sequence

from hypic_sdk.bench.experiments_docs import markdown
from hypic_sdk.bench.published import ExperimentsBody, ReplayBody, ServingBody
from hypic_sdk.bench.report import Circumstances, Spread
from hypic_sdk.bench.serving_report import Absent, Failure, Row, number

# rows of README's table, where they were measured
SUMMARY = (
    "TTFT, 4 x 4k all hits",
    "TTFT, 4 x 4k full recompute",
    "TTFT, 4 x 4k, prefix_cache, documents in another order",
    "each further 1k segment",
    "eight requests assembled together, over one",
    "decode step, batch 1, 4k of context",
    "decode step, batch 32, 4k of context",
    "cold prefill, 8 segments of 1.25k",
    "cold prefill, one text of 10k",
    "full recompute over transformers, prefill of 16384",
    "full recompute over transformers, prefill of 8192",
    # what a GPU's default, `entries`, costs, and what `all` would
    "deterministic=off over entries, cold prefill, 8 segments of 1.25k",
    "deterministic=all over entries, TTFT, 4 x 4k all hits",
    "deterministic=all over entries, decode step, batch 1, 4k of context",
    "deterministic=all over entries, decode step, batch 32, 4k of context",
    "building (T, S), eight 1k segments",
    "bytes of a 1k segment",
)


def plain(text: str) -> str:
    """Words of a result as they may stand in a line of a page, marks of its own left out."""
    return " ".join(text.split()).replace("|", "\\|").replace("<!--", "&lt;!--")


def where(one: Circumstances) -> str:
    """Machine, versions and commit of a report."""
    return plain(
        f"{one.hardware}, {one.num_threads} threads, Python {one.python}, torch {one.torch}, "
        f"transformers {one.transformers}, hypic_sdk {one.hypic_sdk}, commit {one.commit}"
    )


def spread(found: Spread) -> str:
    """`minimum / median / maximum`."""
    return " / ".join(number(x) for x in (found.minimum, found.median, found.maximum))


def _row(row: Row) -> list[str]:
    target = "-"
    if row.target is not None:
        sign = "<=" if row.is_upper else ">="
        target = f"{sign} {row.target:,g}{'' if row.is_met else ' (**missed**)'}"
    floor = "-" if row.floor is None else number(row.floor)
    return [plain(row.name), plain(row.unit), spread(row.found), target, floor]


def serving_table(body: ServingBody) -> str:
    """Every row of `serving.json`, and what it could not measure."""
    rows = [_row(row) for row in body.rows]
    text = (
        f"`hypic bench serving`, {plain(body.shape)}, minimum / median / maximum; "
        f"{where(body.circumstances)}.\n\n"
        + markdown(("row", "unit", "found", "target", "floor"), rows)
    )
    return text + _reasons("Failed", body.failures) + _reasons("Not measured", body.absent)


def _reasons(word: str, told: Sequence[Failure | Absent]) -> str:
    """A line with names and reasons; nothing for none."""
    found = [f"{plain(one.name)} ({plain(one.reason)})" for one in told]
    return f"\n{word}: {'; '.join(found)}.\n" if found else ""


def serving_summary(body: ServingBody) -> str:
    """The rows that README tells, of those that there are; `missing_of_summary` has the others."""
    by_name = {row.name: row for row in body.rows}
    rows = [_row(by_name[name])[:4] for name in SUMMARY if name in by_name]
    head = f"{plain(body.shape)}, minimum / median / maximum; {where(body.circumstances)}.\n\n"
    return head + markdown(("row", "unit", "found", "target"), rows)


def missing_of_summary(body: ServingBody) -> list[str]:
    """Rows that README tells and that this run has not."""
    names = {row.name for row in body.rows}
    return [name for name in SUMMARY if name not in names]


def replay_table(body: ReplayBody) -> str:
    """Of `replay.json`: the highest rate of each arm that held, and its saturated throughput.

    An arm whose time was over says where; what it had found by then stands beside.
    """
    rows, cut_off = [], []
    for arm in body.arms:
        best = arm.best
        cells = ["none held" if arm.replays else "-", "-", "-", "-"]
        if best is not None:
            cells = [
                f"{best.rate:.3g}", f"{best.p50_s:.2f}", f"{best.p99_s:.2f}",
                f"{best.hit_share:.0%}",
            ]  # fmt: skip
        saturated = ["-", "-"]
        if arm.saturated_per_s:
            saturated = [f"{arm.saturated_per_s:.3g}", f"{arm.saturated_hit_share:.0%}"]
        rows.append([plain(arm.mode), *cells, *saturated])
        if arm.cut_off:
            cut_off.append(f"{plain(arm.mode)} ({plain(arm.cut_off)})")
    head = ("arm", f"requests/s at p50 <= {body.plan.limit_s:g} s", "p50, s", "p99, s", "cached",
            "saturated, requests/s", "cached")  # fmt: skip
    told = f"`hypic bench replay`, {plain(body.served)}; {where(body.circumstances)}."
    text = f"{told}\n\n{markdown(head, rows)}"
    return text + (f"\nOut of time: {', '.join(cut_off)}.\n" if cut_off else "")


def experiments_table(body: ExperimentsBody) -> str:
    """Of `experiments.json`: verdicts first."""
    says = "".join(f"- {plain(one.says)}\n" for one in body.verdicts)
    rows = [
        [
            plain(one.scene),
            plain(one.arm),
            spread(one.us_a_layer),
            f"{one.over_private:.2f}",
            f"{one.with_placing_ms:.3f}",
            f"{one.copies_mib:.1f}",
        ]
        for one in body.timings
    ]
    head = ("scene", "arm", "us a layer", "over private copies", "all layers with placing, ms",
            "copies, MiB")  # fmt: skip
    told = f"`hypic bench experiments`, {plain(body.shape)}; {where(body.circumstances)}."
    return f"{told}\n\n{says}\n{markdown(head, rows)}{_reasons('Failed', body.failures)}"
