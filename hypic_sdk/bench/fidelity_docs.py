"""Put measured tables into docs/fidelity.md and docs/experiments.md: no figure is typed by hand.

    python -m hypic_sdk.bench.fidelity_docs FOLDER [--pages docs] [--of NAME]

FOLDER holds what `hypic bench fidelity`, `divergence`, `sweep`, `modes`, `choices` and `pairs`
wrote with `--out`; what is not there leaves its part of a page as it is.  Figures are put beside
the pages.  With a NAME, parts of that name are filled (`<!-- begin NAME fidelity -->`): a page may
have the same table of two models.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypic_sdk.bench.experiments_docs import (
    anchored_table,
    choices_table,
    interval,
    markdown,
    offsets_table,
    pairs_table,
    where,
)

__all__ = ["BEGIN", "END", "MAKERS", "TITLES", "filled", "main", "markdown", "tables"]

BEGIN, END = "<!-- begin", "<!-- end"
PAGES, TITLES = Path("docs"), ("fidelity.md", "experiments.md")


def _checks(checks: Sequence[Mapping[str, Any]]) -> str:
    rows = [[c["name"], c["measured"], c["wanted"], "yes" if c["passed"] else "**no**"]
            for c in checks]  # fmt: skip
    return markdown(("what", "measured", "wanted", ""), rows)


def tables(body: Mapping[str, Any]) -> str:
    """Of `fidelity.json`: the verdict, then every rung."""
    verdict = body["verdict"]
    word = "qualifies" if verdict["qualifies"] else "does **not** qualify"
    sees = all(check["passed"] for check in verdict["controls"])
    weak = "every planted fault was seen" if sees else "**some planted fault was not seen**"
    sizes = body["plan"]["sizes"]
    counts = ", ".join(map(str, sizes["counts"]))
    num_prompts = max((one["em"]["num_items"] for one in body["summaries"]), default=0)
    return (
        f"`{body['model']}` {word} as a judge of composition; {weak}.\n\n"
        f"{where(body)}; {body['seconds']:.0f} s; {num_prompts} of {body['num_cases']} prompts: "
        f"{sizes['per_count']} worlds of each stratum and number of documents ({counts}), "
        f"{sizes['num_orders']} orders; seed {body['seed']}."
        f"\n\n{_checks(verdict['qualification'])}\n"
        f"{_checks([*verdict['rungs'], *verdict['targets']])}\n"
        f"Controls, each of which must be seen:\n\n{_checks(verdict['controls'])}\n"
        f"{_scores(body)}\n{_strata(body)}\n{_drift(body)}"
    )


def _scores(body: Mapping[str, Any]) -> str:
    head = ("arm", "EM", "EM, paired", "F1, paired", "ROUGE-L, paired", "KL, nats a token",
            "KL p99", "top-1", "same reply", "live tokens")  # fmt: skip
    rows = [
        [
            one["arm"],
            interval(one["em"], 100),
            interval(one["em_loss"], 100),
            interval(one["f1_loss"], 100),
            interval(one["rouge_l_loss"], 100),
            interval(one["kl"], 1, 4),
            f"{one['kl_p99']:.3f}",
            f"{one['top1']:.1%}",
            f"{one['same_reply']:.1%}",
            f"{one['live_tokens']:.0f} of {one['prompt_tokens']:.0f}",
        ]
        for one in body["summaries"]
        if one["stratum"] == "all"
    ]
    return markdown(head, rows)


def _strata(body: Mapping[str, Any]) -> str:
    found = {(one["arm"], one["stratum"]): one["em"] for one in body["summaries"]}
    strata = [s for s in dict.fromkeys(stratum for _, stratum in found) if s != "all"]
    rows = [
        [arm, *(f"{100 * found[arm, s]['mean']:.0f}" if (arm, s) in found else "-" for s in strata)]
        for arm in dict.fromkeys(arm for arm, _ in found)
    ]
    counts = [str(next(em for (_, s), em in found.items() if s == name)["num_items"])
              for name in strata]  # fmt: skip
    title = "Exact match by what the answer hangs on:\n\n"
    return title + markdown(("arm", *strata), [*rows, ["prompts", *counts]])


def _drift(body: Mapping[str, Any]) -> str:
    layers = sorted({one["layer"] for one in body["drift"]})
    rows = []
    for arm, attention in dict.fromkeys((one["arm"], one["attention"]) for one in body["drift"]):
        own = [d for d in body["drift"] if (d["arm"], d["attention"]) == (arm, attention)]
        cells = [f"{one['relative_l2']:.1e} ({one['degrees']:.1f}°)" for one in own]
        rows.append([arm, "yes" if attention else "silenced", *cells])
    head = ("arm", "attention", *(f"linear layer {layer}" for layer in layers))
    title = "States after the reply, relative L2 to full recompute and angle, medians:\n\n"
    return title + markdown(head, rows)


def divergence_table(body: Mapping[str, Any]) -> str:
    """Of `divergence.json`."""
    rows = [
        [
            one["arm"],
            f"{one['first_layer']} ({one['first_counts'][one['first_layer']]} of "
            f"{one['num_prompts']})",
            *(f"{error:.1e}" for error in one["relative_l2"]),
            f"{one['logits_kl']:.4f}",
        ]
        for one in body["arms"]
    ]
    head = ("arm", "leaves first at", *body["arms"][0]["layers"], "KL")
    return f"{where(body)}.\n\n{markdown(head, rows)}"


def sweep_table(body: Mapping[str, Any]) -> str:
    """Of `sweep.json`."""
    head = ("setting", "live tokens", "share", "EM", "EM to full", "KL", "EM to default",
            "KL to default", "prompts")  # fmt: skip
    # anchored settings stand in a table of their own
    seams = [one for one in body["seams"] if not one["name"].endswith(", anchored")]
    parts = [f"{where(body)}; seed {body['seed']}."]
    parts.append(markdown(head, [_setting(one["name"], one) for one in seams]))
    parts.append(markdown(head, [_setting(name, s) for name, s in body["shapes"].items()]))
    parts.append(f"What follows: {body['advice']}.\n")
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _setting(name: str, one: Mapping[str, Any]) -> list[str]:
    return [
        name, f"{one['live_tokens']:.0f}", f"{one['live_share']:.0%}", interval(one["em"], 100),
        interval(one["em_loss"], 100), interval(one["kl"], 1, 4), interval(one["em_more"], 100),
        interval(one["kl_more"], 1, 4), str(one["em"]["num_items"]),
    ]  # fmt: skip


def modes_table(body: Mapping[str, Any]) -> str:
    """Of `modes.json`."""
    head = ("arm", "EM", "F1", "ROUGE-L", "same reply", "KL", "live tokens",
            "first token, ms, min / median / max")  # fmt: skip
    rows = []
    for one in body["arms"]:
        ttft = one["ttft_ms"]
        spread = " / ".join(f"{ttft[name]:.0f}" for name in ("minimum", "median", "maximum"))
        kl = "-" if one["kl"] is None else interval(one["kl"], 1, 4)
        rows.append(
            [one["arm"], interval(one["em"], 100), interval(one["f1"], 100),
             interval(one["rouge_l"], 100), f"{one['same_reply']:.0%}", kl,
             f"{one['live_tokens']:.0f}", spread]
        )  # fmt: skip
    return f"{where(body)}.\n\n{markdown(head, rows)}"


MAKERS = {
    "fidelity": ("fidelity", tables),
    "divergence": ("divergence", divergence_table),
    "sweep": ("sweep", sweep_table),
    "anchored": ("sweep", anchored_table),
    "modes": ("modes", modes_table),
    "choices": ("choices", choices_table),
    "offsets": ("choices", offsets_table),
    "pairs": ("pairs", pairs_table),
}
"""The name of a part: the file it is made of, and how."""


def filled(page: str, texts: Mapping[str, str]) -> str:
    """The page with each text between its marks."""
    for name, text in texts.items():
        begin, end = f"{BEGIN} {name} -->\n", f"{END} {name} -->"
        if begin in page and end in page:
            before, rest = page.split(begin, 1)
            page = before + begin + text + end + rest.split(end, 1)[1]
    return page


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=Path, default=PAGES)
    parser.add_argument("--of", default="", help="fill the parts of this name")
    args = parser.parse_args(argv)
    prefix = f"{args.of} " if args.of else ""
    texts = {}
    for name, (file, make) in MAKERS.items():
        path = args.folder / f"{file}.json"
        if path.is_file():
            texts[prefix + name] = make(json.loads(path.read_text(encoding="utf-8")))
    for figure in args.folder.glob("sweep_kl.svg"):
        beside = args.pages / (prefix.replace(" ", "_") + figure.name)
        beside.write_text(figure.read_text("utf-8"), encoding="utf-8")
    for title in TITLES:
        path = args.pages / title
        page = path.read_text(encoding="utf-8")
        path.write_text(filled(page, texts), encoding="utf-8")
        there = [name for name in texts if f"{BEGIN} {name} -->" in page]
        sys.stdout.write(f"{path}: {', '.join(there) or 'nothing'} filled in\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
