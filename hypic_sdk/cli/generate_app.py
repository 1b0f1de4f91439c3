"""The flags of `hypic generate`; what it does is in `cli.generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hypic_sdk.cli.options import (
    DEFAULT_BUDGET_MIB,
    DEFAULT_MIN_TOKENS,
    DEFAULT_PAIR,
    DEFAULT_SEAM,
    BudgetOption,
    MinTokensOption,
    ModelOption,
    ModeOption,
    PairOption,
    SeamOption,
    engine_config,
)
from hypic_sdk.config import DEFAULT_MODE

DocumentOption = Annotated[
    list[Path] | None,
    typer.Option("--document", "-d", help="A text file; may be given again.", exists=False),
]
ThinkingOption = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="The template's own enable_thinking."),
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template-option",
        help="NAME=VALUE, a variable of the chat template; may be given again.",
    ),
]
MAX_TOKENS_HELP = "None is the model's own wish, else 256."


def generate(
    question: Annotated[str, typer.Option("--question", "-q", help="What to ask.")],
    document: DocumentOption = None,
    model: ModelOption = None,
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help=MAX_TOKENS_HELP)] = None,
    temperature: Annotated[float | None, typer.Option("--temperature")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k")] = None,
    min_p: Annotated[float | None, typer.Option("--min-p")] = None,
    seed: Annotated[int | None, typer.Option("--seed")] = None,
    thinking: ThinkingOption = None,
    template_option: TemplateOption = None,
    off: Annotated[bool, typer.Option("--off", help="Full recompute: reuse nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole reply as JSON.")] = False,
    mode: ModeOption = DEFAULT_MODE,
    seam: SeamOption = DEFAULT_SEAM,
    min_segment_tokens: MinTokensOption = DEFAULT_MIN_TOKENS,
    cache_mib: BudgetOption = DEFAULT_BUDGET_MIB,
    pair: PairOption = DEFAULT_PAIR,
) -> None:
    """Answer one question over documents, and show what the cache did.

    Sampling that is left out is as the model's generation_config.json has it.
    """
    from hypic_sdk.cli.generate import Ask, given_options, run_generate, template_options

    options = given_options(
        {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "seed": seed,
            "chat_template_kwargs": template_options(template_option or (), thinking=thinking),
        }
    )
    ask = Ask(question, tuple(document or ()), system, options, off)
    config = engine_config(mode, seam, min_segment_tokens, cache_mib, pair)
    run_generate(Console(markup=False), ask, model=model, config=config, as_json=as_json)
