"""What a bench is told on its command line: places that are named, and shapes that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest
from typer.main import get_command

from hypic_sdk.bench import fidelity_docs
from hypic_sdk.bench.serving_model import SHAPES
from hypic_sdk.cli.app import bench_app, main
from hypic_sdk.cli.replay import SHAPES_HELP
from hypic_sdk.demo import reader_path
from hypic_sdk.models.qwen3_5 import Config
from hypic_sdk.prompt.tokenizer import PromptTokenizer


def paths() -> Iterator[tuple[str, str]]:
    """Command and flag of each path that a bench takes; of an argument its name."""
    commands = get_command(bench_app).commands  # type: ignore[attr-defined]
    for info in bench_app.registered_commands:
        assert info.callback is not None
        hints = get_type_hints(info.callback, include_extras=True)
        for one in commands[info.name].params:
            hint = hints.get(one.name)
            wanted = get_args(hint)[0] if get_origin(hint) is Annotated else hint
            if Path in (wanted, *get_args(wanted)):
                yield info.name or "", one.opts[0]


PATHS = sorted(paths())


def test_paths_are_known():
    assert {("serving", "--out"), ("figures", "--root"), ("figures", "folder"),
            ("scatter", "--figure"), ("reuse", "--json-lines")} <= set(PATHS)  # fmt: skip
    assert sum(flag == "--out" for _, flag in PATHS) == 11


@pytest.mark.parametrize("text", ["", "  "])
@pytest.mark.parametrize(("command", "flag"), PATHS)
def test_an_empty_path_is_refused_and_nothing_is_written(
    command, flag, text, tmp_path, monkeypatch, capsys
):
    """`--out "$FOLDER"` where there is no such variable: a shell gives an empty text."""
    monkeypatch.chdir(tmp_path)
    ways = [[flag, text], [f"{flag}={text}"]] if flag.startswith("--") else [[text]]
    for words in ways:
        monkeypatch.setattr("sys.argv", ["hypic", "bench", command, *words])
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        told = capsys.readouterr().err
        assert "an empty path names no place" in told
        assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[""], ["", "--pages", "."], [".", "--pages", ""]])
def test_a_filler_of_pages_takes_no_empty_path(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        fidelity_docs.main(words)
    assert ended.value.code == 2
    assert "an empty path" in capsys.readouterr().err


def test_the_help_of_a_replay_names_every_shape_and_which_of_them_run():
    """A server of random weights has the packaged tokenizer, which needs a row for each word."""
    tokenizer = PromptTokenizer.from_folder(reader_path())
    sizes = {name: Config.from_hf(shape).vocab_size for name, shape in SHAPES.items()}
    runs = {name for name, size in sizes.items() if size >= tokenizer.vocab_size}
    usable, _, others = SHAPES_HELP.partition(";")
    assert set(re.findall(r"[\w.-]+", usable)) & set(SHAPES) == runs
    assert set(re.findall(r"[\w.-]+", others)) & set(SHAPES) == set(SHAPES) - runs
