"""`hypic generate`: what is sent is what was given, and what comes back is all shown."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.cli import generate as module
from hypic_sdk.cli.app import app
from hypic_sdk.cli.generate import AnswerPrinter, Ask, template_options
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ModelFileError, RequestError
from hypic_sdk.wire.replies import Delta


def invoke(*words: str) -> str:
    result = CliRunner().invoke(
        app, ["generate", "-q", "Where is Norwick?", *words], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def reply(*words: str) -> dict[str, Any]:
    output = invoke("--json", *words)
    found = json.loads(output[output.index("{") :])
    assert isinstance(found, dict)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """What the command would ask, without a model."""
    found: list[Ask] = []
    monkeypatch.setattr(module, "run_generate", lambda console, ask, **rest: found.append(ask))
    return found


GIVEN = {
    "--max-tokens": ("max_tokens", 7),
    "--temperature": ("temperature", 0.5),
    "--top-p": ("top_p", 0.9),
    "--top-k": ("top_k", 4),
    "--min-p": ("min_p", 0.1),
    "--seed": ("seed", 3),
}


def test_what_is_left_out_is_not_sent(asked: list[Ask]) -> None:
    invoke()
    assert set(module.chat_fields(asked[0], [])) == {"messages", "documents", "hypic"}


@pytest.mark.parametrize("flag", GIVEN)
def test_what_is_given_is_sent_alone(asked: list[Ask], flag: str) -> None:
    name, value = GIVEN[flag]
    invoke(flag, str(value))
    assert dict(asked[0].options) == {name: value}


def test_options_of_the_template(asked: list[Ask]) -> None:
    words = ("--template-option", "style=a=b", "--template-option", "level=3")
    invoke("--no-thinking", *words)
    invoke("--thinking")
    assert [ask.options["chat_template_kwargs"] for ask in asked] == [
        {"enable_thinking": False, "style": "a=b", "level": 3},
        {"enable_thinking": True},
    ]


@pytest.mark.parametrize("pair", ["name", "=value", ""])
def test_a_template_option_has_a_name_and_a_value(pair: str) -> None:
    with pytest.raises(RequestError, match="NAME=VALUE"):
        template_options([pair], thinking=None)


def test_the_models_own_wishes_hold_until_the_caller_says_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(reader_path(), folder)
    (folder / "generation_config.json").write_text('{"max_new_tokens": 2}')
    own = reply("--model", str(folder))
    told = reply("--model", str(folder), "--max-tokens", "3")
    assert [one["usage"]["completion_tokens"] for one in (own, told)] == [2, 3]
    output = invoke("--model", str(folder))
    assert "cut at its limit" in output


def test_an_empty_model_name_is_said_to_be_empty() -> None:
    with pytest.raises(ModelFileError, match="empty"):
        invoke("--model", "")


words = st.text("ab c[/]\n", min_size=1, max_size=150)
deltas = st.lists(st.tuples(st.booleans(), words), max_size=8)


def printed(parts: list[tuple[bool, str]], ending: str) -> str:
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    printer = AnswerPrinter(console)
    printer.show(Delta(role="assistant", content=""), None)
    for reasons, text in parts:
        printer.show(Delta(reasoning_content=text) if reasons else Delta(content=text), None)
    printer.show(Delta(), ending)
    return console.file.getvalue()


@given(thoughts=st.lists(words, max_size=4), texts=st.lists(words, max_size=4))
def test_all_that_was_said_is_shown_whole(thoughts: list[str], texts: list[str]) -> None:
    parts = [(True, one) for one in thoughts] + [(False, one) for one in texts]
    marked = "reasoning: " + "".join(thoughts) if thoughts else ""
    gap = "\n\n" if thoughts and texts else ""
    assert printed(parts, "stop") == marked + gap + "".join(texts) + "\n"


@given(parts=deltas)
def test_a_cut_reply_says_so_and_no_other(parts: list[tuple[bool, str]]) -> None:
    assert printed(parts, "length") == printed(parts, "stop") + module.LENGTH_NOTE
