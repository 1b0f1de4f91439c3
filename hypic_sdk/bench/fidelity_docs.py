"""Put measured tables into docs/fidelity.md, so that no figure there is typed by hand.

    python -m hypic_sdk.bench.fidelity_docs FOLDER [--page docs/fidelity.md]

FOLDER holds what `hypic bench fidelity`, `divergence`, `sweep` and `modes` wrote with `--out`; what
is not there leaves its part of the page as it is.  Its figure is put beside the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- begin", "<!-- end"
PAGE = Path("docs/fidelity.md")


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def interval(one: Mapping[str, float], scale: float = 1.0, digits: int = 1) -> str:
    """`mean [low, high]`."""
    mean, low, high = (f"{scale * one[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _where(body: Mapping[str, Any]) -> str:
    one = body["circumstances"]
    return (
        f"{one['hardware']}, {one['num_threads']} threads, python {one['python']}, torch "
        f"{one['torch']}, hypic_sdk {one['hypic_sdk']}, commit {one['commit']}"
    )


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
    return (
        f"`{body['model']}` {word} as a judge of composition; {weak}.\n\n"
        f"{_where(body)}; {body['seconds']:.0f} s; {sizes['per_count']} worlds of each stratum "
        f"and number of documents ({counts}), {sizes['num_orders']} orders; seed {body['seed']}."
        f"\n\n{_checks(verdict['qualification'])}\n"
        f"{_checks([*verdict['rungs'], verdict['target']])}\n"
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
    return f"{_where(body)}.\n\n{markdown(head, rows)}"


def sweep_table(body: Mapping[str, Any]) -> str:
    """Of `sweep.json`."""
    head = ("setting", "live tokens", "share", "EM", "EM to full", "KL", "EM to default",
            "KL to default", "prompts")  # fmt: skip
    parts = [f"{_where(body)}.", markdown(head, [_setting(s["name"], s) for s in body["seams"]])]
    pairs = [
        [one["name"], interval(one["em_more"], 100), interval(one["kl_more"], 1, 4)]
        for one in body["anchored"]
    ]
    parts.append(markdown(("setting", "EM to the same without", "KL to it"), pairs))
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
    return f"{_where(body)}.\n\n{markdown(head, rows)}"


MAKERS = {
    "fidelity": tables,
    "divergence": divergence_table,
    "sweep": sweep_table,
    "modes": modes_table,
}


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
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args(argv)
    texts = {}
    for name, make in MAKERS.items():
        path = args.folder / f"{name}.json"
        if path.is_file():
            texts[name] = make(json.loads(path.read_text(encoding="utf-8")))
    for figure in args.folder.glob("sweep_kl.svg"):
        (args.page.parent / figure.name).write_text(figure.read_text("utf-8"), encoding="utf-8")
    page = args.page.read_text(encoding="utf-8")
    args.page.write_text(filled(page, texts), encoding="utf-8")
    sys.stdout.write(f"{args.page}: {', '.join(texts) or 'nothing'} filled in\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
