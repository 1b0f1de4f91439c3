"""Put measured tables into docs/fidelity.md and docs/experiments.md: no figure is typed by hand.

    python -m hypic_sdk.bench.fidelity_docs FOLDER [--pages docs] [--of NAME]

FOLDER holds what `hypic bench fidelity`, `divergence`, `sweep`, `modes`, `choices` and `pairs`
wrote with `--out`; what is not there leaves its part of a page as it is.  Figures are put beside
the pages.  Parts are of the packaged reader; with a NAME, those of the model of that name are
filled (`<!-- begin NAME fidelity -->`).  Results of another model are refused, and so is what has
nothing to tell; in a checkout also what is of no commit, and what lacks a row that its page has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hypic_sdk.bench.destination import named
from hypic_sdk.bench.experiments_docs import (
    anchored_table,
    choices_table,
    interval,
    markdown,
    of_sweep,
    offsets_table,
    pairs_table,
    where,
)
from hypic_sdk.bench.pages import (
    BEGIN,
    END,
    Part,
    filled,
    is_in_checkout,
    measure_again,
    no_place,
    renewed,
    write_all,
)
from hypic_sdk.bench.published import of_no_commit
from hypic_sdk.bench.report import Circumstances
from hypic_sdk.errors import ConfigError

__all__ = ["BEGIN", "END", "MAKERS", "TITLES", "filled", "main", "markdown", "tables"]

Body = Mapping[str, Any]
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
    return f"`{body['model']}`; {where(body)}.\n\n{markdown(head, rows)}"


def sweep_table(body: Mapping[str, Any]) -> str:
    """Of `sweep.json`."""
    head = ("setting", "live tokens", "share", "EM", "EM to full", "KL", "EM to default",
            "KL to default", "prompts")  # fmt: skip
    # anchored settings stand in a table of their own
    seams = [one for one in body["seams"] if not one["name"].endswith(", anchored")]
    parts = [of_sweep(body), f"Strata: {'; '.join(body['strata'])}."]
    parts.append(markdown(head, [_setting(one["name"], one) for one in seams]))
    parts.append(_ends(body))
    parts.append(markdown(head, [_setting(name, s) for name, s in body["shapes"].items()]))
    parts.append(f"What follows: {body['advice']}.\n")
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _ends(body: Mapping[str, Any]) -> str:
    """Both ends against the head alone; nothing where the run had no such seams."""
    rows = [
        [one["name"], one["other"], interval(one["em_more"], 100), interval(one["kl_more"], 1, 4)]
        for one in body["ends"]
    ]
    head = ("both ends", "the head alone, as many live tokens", "EM to it", "KL to it")
    return markdown(head, rows) if rows else ""


def _setting(name: str, one: Mapping[str, Any]) -> list[str]:
    return [
        name, f"{one['live_tokens']:.0f}", f"{one['live_share']:.0%}", interval(one["em"], 100),
        interval(one["em_loss"], 100), interval(one["kl"], 1, 4), interval(one["em_more"], 100),
        interval(one["kl_more"], 1, 4),
        f"{one['em']['num_items']} of {one['num_cases']}",
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


MAKERS: Mapping[str, tuple[str, Callable[[Body], str]]] = {
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


FIGURES = {
    "sweep_em.svg": "Exact match against live tokens, by seam",
    "sweep_top1.svg": "Top-1 agreement against live tokens, by seam",
    "sweep_kl.svg": "KL against live tokens, by seam",
}
FIGURES_PART = "sweep figures"
"""The part that shows those of `FIGURES` that are there."""
READER = "hypic-reader"


# what a table's maker raises for a file that is not what its bench writes
NOT_ITS_OWN = (LookupError, TypeError, ValueError, AttributeError, StopIteration)


def results(folder: Path, model: str, *, in_checkout: bool = False) -> dict[str, Body]:
    """What benches wrote of a model, by bench.

    Args:
        in_checkout: refuse runs of no commit.
    Raises:
        ConfigError: no such folder, a file that is no result, or one of another model or for no
            page.
    """
    if not folder.is_dir():
        raise ConfigError(f"no folder {folder}: name the one that benches wrote into with --out")
    found: dict[str, Body] = {}
    for name in dict.fromkeys(file for file, _ in MAKERS.values()):
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = _read(path)
            told = found[name].get("model", model)
            if told != model:
                raise ConfigError(f"{path} is of {told!r}, and these parts are of {model!r}")
            why = of_no_commit(_where(path, found[name])) if in_checkout else ""
            if why:
                again = measure_again(name, folder)
                raise ConfigError(f"{path} is of a run that pages are not made of ({why}): {again}")
    return found


def _read(path: Path) -> Body:
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _no_result(path, error) from error
    if not isinstance(body, dict):
        raise _no_result(path, TypeError(f"a {type(body).__name__} and no object"))
    return body


def _where(path: Path, body: Body) -> Circumstances:
    try:
        return msgspec.convert(body["circumstances"], Circumstances)
    except (KeyError, msgspec.ValidationError) as error:
        raise _no_result(path, error) from error


def _no_result(path: Path, error: Exception) -> ConfigError:
    reason = f"{type(error).__name__}: {error}"
    again = measure_again(path.stem, path.parent)
    return ConfigError(
        f"{path} is no result of `hypic bench {path.stem}` ({reason}): take it away, or {again}"
    )


def parts(folder: Path, found: Mapping[str, Body], prefix: str) -> list[Part]:
    """The text of each part whose results are there.

    Args:
        prefix: of the parts' names.
    Raises:
        ConfigError: a file is not what its bench writes.
    """
    made = []
    for name, (file, make) in MAKERS.items():
        if file in found:
            path = folder / f"{file}.json"
            try:
                text = make(found[file])
            except NOT_ITS_OWN as error:
                raise _no_result(path, error) from error
            made.append(Part(prefix + name, text, path, file))
    if "sweep" in found:
        shown = _shown(_figures(folder, prefix))
        made.append(Part(prefix + FIGURES_PART, shown, folder / "sweep_*.svg", "sweep"))
    return made


def _figures(folder: Path, prefix: str) -> dict[str, str]:
    """Those that are there, by the name that they have beside the pages.

    Figures of an earlier run that are not made again stay where they are.
    """
    before = prefix.replace(" ", "_")
    there = [name for name in FIGURES if (folder / name).is_file()]
    return {f"{before}{name}": (folder / name).read_text("utf-8") for name in there}


def _shown(names: Collection[str]) -> str:
    """The lines that show figures."""
    titles = {name: title for one, title in FIGURES.items() for name in names if name.endswith(one)}
    return "\n".join(f"![{title}]({name})\n" for name, title in titles.items())


def fill(folder: Path, pages: Path, of: str) -> list[str]:
    """Put all that a folder has where it belongs.

    Args:
        of: a model's name; empty: the packaged reader.
    Returns:
        what was done, in lines.
    Raises:
        ConfigError: a result or a page that will not do; nothing is written then.
    """
    paths = [pages / title for title in TITLES]
    in_checkout, prefix = is_in_checkout(*paths), f"{of} " if of else ""
    made = parts(folder, results(folder, of or READER, in_checkout=in_checkout), prefix)
    for path in paths:
        if not path.is_file():
            raise ConfigError(
                f"no page {path}: name the folder of {', '.join(TITLES)} with --pages"
            )
    found = renewed(paths, made, in_checkout=in_checkout)
    without = [part for part in made if part.name not in found.placed]
    # of a model that has a name, pages tell what they will; of the reader, all
    if without and (not of or len(without) == len(made)):
        raise no_place(without[0], paths)
    new = dict(found.pages)
    if prefix + FIGURES_PART in found.placed:
        new |= {pages / name: text for name, text in _figures(folder, prefix).items()}
    write_all(new)
    names = ", ".join(part.name for part in made if part.name in found.placed) or "nothing"
    said = [f"{pages}: {names} filled in", *found.fewer]
    return said + [f"no page has a place for: {part.name}" for part in without]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--pages", default=str(PAGES))
    parser.add_argument("--of", default="", help="fill the parts of the model of this name")
    args = parser.parse_args(argv)
    try:
        lines = fill(named(args.folder), named(args.pages), args.of)
    except ConfigError as error:
        parser.error(str(error))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
