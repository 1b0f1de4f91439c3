"""Tables of docs/experiments.md from what benches wrote; `fidelity_docs` puts them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

KIB = 1024.0


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def interval(one: Mapping[str, float] | None, scale: float = 1.0, digits: int = 1) -> str:
    """`mean [low, high]`; a dash for none."""
    if one is None:
        return "-"
    mean, low, high = (f"{scale * one[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def where(body: Mapping[str, Any]) -> str:
    """The circumstances of a measurement."""
    one = body["circumstances"]
    return (
        f"{one['hardware']}, {one['num_threads']} threads, python {one['python']}, torch "
        f"{one['torch']}, hypic_sdk {one['hypic_sdk']}, commit {one['commit']}"
    )


def choices_table(body: Mapping[str, Any]) -> str:
    """Of `choices.json`: choices of live tokens."""
    rows = [
        [
            one["name"],
            f"{one['live_tokens']:.0f}",
            f"{one['all_tokens']:.0f}",
            f"{100 * one['em']['mean']:.1f}",
            interval(one["kl"], 1, 4),
            interval(one["kl_to_control"], 1, 4),
            one["rival"] or "-",
            interval(one["kl_to_rival"], 1, 4),
            interval(one["em_to_rival"], 100),
        ]
        for one in body["choices"]
    ]
    head = ("live tokens by", "live", "with the first pass", "EM", "KL", "KL to chance",
            "fixed seam of its price", "KL to it", "EM to it")  # fmt: skip
    return (
        f"{_of(body)} Prompts of {body['prompt_tokens']:.0f} tokens; full recompute's exact match "
        f"is {interval(body['full_em'], 100)}.\n\n{markdown(head, rows)}\n"
        f"Surely better than chance and than the fixed seam of its price: {body['paying']}.\n"
    )


def offsets_table(body: Mapping[str, Any]) -> str:
    """Of `choices.json`: keys turned too far."""
    rows = [
        [
            one["name"],
            interval(one["em"], 100),
            interval(one["kl"], 1, 4),
            f"{one['top1']:.1%}",
            interval(one["kl_more"], 1, 4),
            interval(one["em_more"], 100),
        ]
        for one in body["offsets"]
    ]
    head = ("tokens too far", "EM", "KL", "top-1", "KL to none", "EM to none")
    return f"{_of(body)}\n\n{markdown(head, rows)}"


def anchored_table(body: Mapping[str, Any]) -> str:
    """Of `sweep.json`: each anchored setting below its like."""
    settings = {one["name"]: one for one in body["seams"]}
    rows = []
    for pair in body["anchored"]:
        for name in (pair["other"], pair["name"]):
            one = settings[name]
            to_like = (None, None)
            if name == pair["name"]:
                to_like = (pair["em_more"], pair["kl_more"])
            rows.append(
                [name, f"{one['live_tokens']:.0f}", interval(one["em"], 100),
                 interval(one["kl"], 1, 4), interval(to_like[0], 100), interval(to_like[1], 1, 4)]
            )  # fmt: skip
    head = ("setting", "live tokens", "EM", "KL, nats a token", "EM to the same without",
            "KL to the same without")  # fmt: skip
    return f"{of_sweep(body)}\n\n{markdown(head, rows)}"


def of_sweep(body: Mapping[str, Any]) -> str:
    """Of `sweep.json`: the model, how many prompts its seams met, and the circumstances."""
    full = body["seams"][0]
    return (
        f"`{body['model']}`, {full['em']['num_items']} of {full['num_cases']} prompts, seed "
        f"{body['seed']}; {where(body)}."
    )


def pairs_table(body: Mapping[str, Any]) -> str:
    """Of `pairs.json`."""
    best = [tuple(one) for one in body["frontier"]]
    rows = [
        [
            one["transition"],
            one["state"],
            f"{one['num_bytes'] / KIB:.1f}",
            f"{one['share']:.2f}",
            f"{one['median']:.1e}",
            f"{one['worst']:.1e}",
            "yes" if (one["transition"], one["state"]) in best else "",
        ]
        for one in body["ways"]
    ]
    head = ("T", "S", "KiB a segment", "of what is stored now", "median error", "worst",
            "frontier")  # fmt: skip
    return f"`{body['model']}`, seed {body['seed']}; {where(body)}.\n\n{markdown(head, rows)}"


def _of(body: Mapping[str, Any]) -> str:
    return (
        f"`{body['model']}`, {body['num_prompts']} of {body['num_cases']} prompts, seed "
        f"{body['seed']}; {where(body)}."
    )
