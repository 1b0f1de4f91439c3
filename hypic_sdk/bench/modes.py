"""The six modes side by side, in this process and against servers that were started in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hypic_sdk.bench.fidelity_arms import FULL, MAX_TOKENS, MODE_ARMS, Arm, Bench, FullReply
from hypic_sdk.bench.fidelity_cases import Case, CaseSizes, make_cases
from hypic_sdk.bench.report import Spread, circumstances
from hypic_sdk.bench.scores import (
    Interval,
    bootstrap,
    exact_match,
    rouge_l,
    token_f1,
)
from hypic_sdk.bench.subject import check_reads, load_subject
from hypic_sdk.client.blocking import Hypic
from hypic_sdk.engine.divergence import divergence_rows
from hypic_sdk.errors import ConfigError
from hypic_sdk.prompt.segment import segment_id

if TYPE_CHECKING:
    from rich.console import Console

STRATA = ("one document, trained sentences", "two documents", "latest wins", "tally",
          "mentioned first")  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One arm; `kl` is not known of a server."""

    arm: str
    where: str
    em: Interval
    f1: Interval
    rouge_l: Interval
    same_reply: float  # share of replies equal to full recompute's
    kl: Interval | None
    live_tokens: float
    ttft_ms: Spread


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply of one arm, everything warm."""

    text: str
    kl: float | None
    live_tokens: int
    ttft_ms: float


def result(
    arm: str, where: str, cases: Sequence[Case], said: Sequence[Answer], full: Sequence[Answer]
) -> ModeResult:
    """Answers as figures."""
    pairs = [(one.text, case.answer) for one, case in zip(said, cases, strict=True)]
    worlds = [case.world for case in cases]
    same = [a.text == b.text for a, b in zip(said, full, strict=True)]
    divergences = [one.kl for one in said if one.kl is not None]
    return ModeResult(
        arm,
        where,
        bootstrap([exact_match(*pair) for pair in pairs], worlds),
        bootstrap([token_f1(*pair) for pair in pairs], worlds),
        bootstrap([rouge_l(*pair) for pair in pairs], worlds),
        sum(same) / len(same),
        bootstrap(divergences, worlds) if len(divergences) == len(said) else None,
        sum(one.live_tokens for one in said) / len(said),
        Spread.of([one.ttft_ms for one in said]),
    )


def local_answer(bench: Bench, arm: Arm, full: FullReply) -> Answer:
    """One reply of this process; the prompt was seen once before, so what can be warm is."""
    probe = bench.probe(arm)
    prompt = full.case.prompt(bench.subject, with_borders=arm.with_borders)
    forced, _ = bench.forced(arm, full)  # warms
    reading = probe.read(prompt, MAX_TOKENS)
    kl = divergence_rows(full.forced.logits_NV, forced.logits_NV)
    return Answer(
        bench.subject.tokenizer.decode(reading.token_ids),
        float(kl.mean()),
        reading.report.live_tokens,
        reading.report.ttft_ms,
    )


def measure_local(bench: Bench, cases: Sequence[Case]) -> list[ModeResult]:
    """The six arms over the engine."""
    fulls = [bench.full(case, number) for number, case in enumerate(cases)]
    arms = (Arm(FULL, FULL), *MODE_ARMS)
    said = {arm.name: [local_answer(bench, arm, full) for full in fulls] for arm in arms}
    return [result(name, "here", cases, own, said[FULL]) for name, own in said.items()]


def server_answer(client: Hypic, case: Case, mode: str) -> Answer:
    """One reply of a server, asked twice: the second finds warm what can be."""
    content: list[dict[str, Any]] = []
    for document, joiner in zip(case.documents, case.glue, strict=True):
        content.append({"type": "segment", "segment_id": segment_id(document), "text": document})
        content.append({"type": "text", "text": joiner})
    content.append({"type": "text", "text": case.question})
    head = [{"role": "system", "content": case.system}] if case.system else []
    for _ in range(2):
        reply = client.chat.completions.create(
            messages=[*head, {"role": "user", "content": content}],
            max_tokens=MAX_TOKENS,
            temperature=0.0,
            hypic={"mode": mode},
        )
    assert reply.cache is not None, "a server of this package reports its cache"
    text = reply.choices[0].message.content or ""
    return Answer(text, None, reply.cache.live_tokens, reply.cache.timing_ms.ttft)


def measure_servers(servers: Sequence[tuple[str, str]], cases: Sequence[Case]) -> list[ModeResult]:
    """Each server in its own mode, and the first by full recompute."""
    found = []
    full: list[Answer] = []
    for name, url in servers:
        with Hypic(url) as client:
            if not full:
                full = [server_answer(client, case, "off") for case in cases]
                found.append(result(FULL, url, cases, full, full))
            own = [server_answer(client, case, "pic") for case in cases]
            found.append(result(name, url, cases, own, full))
    return found


def parse_servers(given: Sequence[str]) -> list[tuple[str, str]]:
    """`NAME=URL` each.  Raises ConfigError for anything else."""
    found = []
    for one in given:
        name, equals, url = one.partition("=")
        if not (name and equals and url.startswith(("http://", "https://"))):
            raise ConfigError(f"a server is written NAME=URL (addition=http://..), got {one!r}")
        found.append((name, url))
    return found


def run_modes_bench(
    console: Console,
    *,
    model: str | None,
    servers: Sequence[str],
    per_count: int,
    folder: Path | None,
    device_name: str,
) -> None:
    """Measure here, or the servers that are named; print, write `modes.json`."""
    cases = make_cases(CaseSizes(per_count, (2, 4), (100,), 1), STRATA)
    if servers:
        found = measure_servers(parse_servers(servers), cases)
    else:
        subject = load_subject(model, device_name)
        check_reads(subject)
        found = measure_local(Bench(subject), cases)
    table = Table(
        "arm", "EM", "F1", "ROUGE-L", "same reply", "KL", "live", "first token ms",
        title=f"{len(cases)} prompts of four documents or fewer, everything warm that can be",
    )  # fmt: skip
    for one in found:
        kl = "-" if one.kl is None else one.kl.text(1, 4)
        table.add_row(
            one.arm, one.em.text(100), one.f1.text(100), one.rouge_l.text(100),
            f"{one.same_reply:.0%}", kl, f"{one.live_tokens:.0f}", str(one.ttft_ms),
        )  # fmt: skip
    console.print(table)
    where = circumstances(device_name)
    console.print(str(where), style="dim")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "circumstances": asdict(where),
            "arms": [asdict(one) for one in found],
        }
        path = folder / "modes.json"
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
