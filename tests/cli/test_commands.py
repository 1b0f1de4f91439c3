"""The commands as a person runs them, over the packaged model."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from hypic_sdk.cli.app import app, main
from hypic_sdk.cli.demo import Shelf, converse
from hypic_sdk.demo.library import DOCUMENTS, QUESTIONS
from hypic_sdk.errors import ConfigError, HypicError, ModelFileError, RequestError
from hypic_sdk.offline import LocalHypic


def run(*words: str) -> str:
    """What a command prints; the error it raised is raised here."""
    result = CliRunner().invoke(app, [*words], catch_exceptions=False, env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The documents of the library's first question as files, as options."""
    words = []
    for name in QUESTIONS[0].documents:
        path = tmp_path / f"{name}.txt"
        path.write_text(DOCUMENTS[name], encoding="utf-8")
        words += ["--document", str(path)]
    return words


def test_generate_answers_and_shows_the_picture(files: list[str]) -> None:
    output = run("generate", "-q", QUESTIONS[0].text, *files)
    assert QUESTIONS[0].answer in output
    assert "█" in output
    assert "▒" in output
    assert "hit" in output


def test_generate_as_json_is_one_reply(files: list[str]) -> None:
    output = run("generate", "-q", QUESTIONS[0].text, "--json", *files)
    reply = json.loads(output[output.index("{") :])
    assert reply["choices"][0]["message"]["content"] == QUESTIONS[0].answer
    assert reply["hypic"]["cached_tokens"] > 0


def test_generate_off_reuses_nothing(files: list[str]) -> None:
    output = run("generate", "-q", QUESTIONS[0].text, "--json", "--off", *files)
    reply = json.loads(output[output.index("{") :])
    assert reply["hypic"]["cached_tokens"] == 0
    assert reply["choices"][0]["message"]["content"] == QUESTIONS[0].answer


def test_demo_answers_in_both_orders_as_full_recompute_does() -> None:
    output = run("demo", "--no-input", "--ask", QUESTIONS[0].text)
    assert output.count(QUESTIONS[0].answer) >= 4  # two orders, two arms
    assert "reordered" in output
    assert "What can be asked" in output


def test_what_people_write_is_no_markup(tmp_path: Path) -> None:
    question = "Where does [/bold] Ada [red]Lindqvist live?"
    assert question in run("demo", "--no-input", "--ask", question)
    (tmp_path / "[red].txt").write_text("Ada Lindqvist lives in [/Halden].")
    assert "[red].txt" in run("generate", "-q", question, "-d", str(tmp_path / "[red].txt"))


def test_a_visitor_of_the_demo_may_err(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "+ " + "town " * 20_000,
        "+ Zoe Ardent has a parrot.",
        "What pet does Zoe Ardent have?",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([*lines, "", ""])))
    console = Console(file=io.StringIO(), width=100, markup=False)
    with LocalHypic() as local:
        converse(console, local, Shelf((), ()), random.Random(1))
    assert isinstance(console.file, io.StringIO)
    refused, answered = console.file.getvalue().split("context_length_exceeded")
    assert "parrot" not in refused
    assert answered.count("parrot") >= 4  # two orders, two arms


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("-q", "x", "-d", "no/such/file.txt"), RequestError),
        (("-q", "x", "--model", "no/such/folder"), ModelFileError),
        (("-q", "x", "--mode", "turbo"), ConfigError),
        (("-q", "x", "--seam", "wide"), ConfigError),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], error: type[HypicError]) -> None:
    with pytest.raises(error, match=words[-1].replace("/", ".")):
        run("generate", *words)


@pytest.mark.parametrize("bench", ["kernels", "serving", "experiments", "replay", "scatter"])
def test_a_bench_names_a_device_or_a_shape_that_is_not_here(bench: str) -> None:
    options = {"scatter": ("--model-shapes", "nosuch")}.get(bench, ("--shapes", "nosuch"))
    if bench != "kernels":
        with pytest.raises(ConfigError, match=r"shapes are .*got 'nosuch'"):
            run("bench", bench, *options, "--device", "cpu")
    if bench != "scatter" and not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"'cuda:9' can be used here"):
            run("bench", bench, "--device", "cuda:9")


def test_a_model_and_a_shape_are_not_both_replayed() -> None:
    with pytest.raises(ConfigError, match="not both"):
        run("bench", "replay", "--shapes", "tiny-8k", "--model", "somewhere")


@pytest.mark.parametrize("costs", ["nan,1,1,1,1", "inf,1,1,1,1", "-1,1,1,1,1", "1,1", "a,b,c,d,e"])
@pytest.mark.parametrize("command", [("capacity", "--rate", "1"), ("scatter",)])
def test_times_of_a_bench_that_are_none_are_refused(costs: str, command: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match=r"time"):
        run("bench", *command, "--costs", costs)


def test_an_empty_document_is_named(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    with pytest.raises(RequestError, match=r"blank\.txt is empty"):
        run("generate", "-q", "x", "-d", str(tmp_path / "blank.txt"))


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--mode", "turbo"), 2, "turbo"),
        (("--seam", "wide"), 2, "wide"),
        (("-d", "no/such/[file].txt"), 2, "no/such/[file].txt"),
        (("--no-such-flag",), 2, "no-such-flag"),
        (("--model", "no/such/folder"), 1, "no/such/folder"),
    ],
)
def test_an_error_is_a_sentence_and_a_status(
    words: tuple[str, ...],
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("sys.argv", ["hypic", "generate", "-q", "x", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == status
    assert said in capsys.readouterr().err


def test_the_matcher_is_measured() -> None:
    output = run("bench", "match", "--runs", "2", "--texts", "300", "--characters", "9000")
    assert "nothing to find" in output
    assert "half of it known" in output
