"""What every bench has in common: numbers with bounds, and a place that is looked at first."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.cli.app import bench_app, main
from hypic_sdk.cli.options import finite
from tests.source_tree import REPOSITORY

# what a command can not do without, and what makes it write
NEEDED = {
    "capacity": ("--costs", "1,1,1,1,1", "--rate", "1"),
    "scatter --out": ("--model-shapes", "tiny"),
}
LOOKED_AT_FIRST = {"destination"}  # of the room `bench`


def options() -> dict[tuple[str, str], Any]:
    """Every option of every bench, by command and flag: its annotation and its marks."""
    found = {}
    for info in bench_app.registered_commands:
        assert info.callback is not None
        for parameter, hint in get_type_hints(info.callback, include_extras=True).items():
            if get_origin(hint) is Annotated:
                wanted, mark = get_args(hint)
                flags = getattr(mark, "param_decls", None) or (f"--{parameter.replace('_', '-')}",)
            elif parameter != "return":
                wanted, mark, flags = hint, None, (f"--{parameter.replace('_', '-')}",)
            else:
                continue
            found[info.name or "", flags[0]] = (wanted, mark)
    return found


OPTIONS = options()


def kinds(wanted: Any) -> set[Any]:
    """The types that an annotation is made of."""
    return {wanted}.union(*(kinds(one) for one in get_args(wanted)))


NUMBERS = {key: mark for key, (wanted, mark) in OPTIONS.items() if kinds(wanted) & {int, float}}
FOLDERS = sorted(command for command, flag in OPTIONS if flag == "--out")
LINES = sorted(command for command, flag in OPTIONS if flag == "--json-lines")


@pytest.fixture(scope="module", autouse=True)
def _nothing_begins() -> Iterator[None]:
    """The first module of the room `bench` that a command wants beyond the place ends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        for path in (REPOSITORY / "hypic_sdk" / "bench").glob("*.py"):
            if path.stem not in LOOKED_AT_FIRST | {"__init__"}:
                patch.setitem(sys.modules, f"hypic_sdk.bench.{path.stem}", None)
        yield


def status(words: list[str]) -> int | None:
    """The exit status of a bench; none where it began to work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["hypic", "bench", *words])
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        except ModuleNotFoundError:
            return None
    raise AssertionError("a bench without its modules ended well")


def is_refused(words: list[str], capsys: pytest.CaptureFixture[str], said: str) -> bool:
    """Whether it ends with status 2 and a line about it, and no traceback."""
    capsys.readouterr()
    ended = status(words)
    told = capsys.readouterr().err
    if ended is None:
        return False
    assert ended == 2, (words, told)
    assert "Traceback" not in told
    assert said in told.replace("\n", ""), (words, told)
    return True


def test_every_number_has_bounds() -> None:
    """A bound refuses infinity, and `finite` what is no number and so within no bounds."""
    assert len(NUMBERS) > 40
    for key, mark in NUMBERS.items():
        assert mark is not None, key
        assert mark.min is not None, key
        assert mark.max is not None or mark.callback is finite, key


ODD = ("nan", "inf", "-inf", "1e400", "-1e400", "", "one", "1,5", str(-(10**40)))


@pytest.mark.parametrize(("command", "flag"), sorted(NUMBERS))
def test_what_is_no_number_or_out_of_bounds_is_refused(command, flag, capsys):
    mark = NUMBERS[command, flag]
    over = [] if mark.max is None else [str(math.floor(mark.max) + 1), str(10**40)]
    for text in (*ODD, str(mark.min - 1), *over):
        words = [command, *NEEDED.get(command, ()), flag, text]
        assert is_refused(words, capsys, flag), words


@given(key=st.sampled_from(sorted(NUMBERS)), value=st.floats() | st.integers())
def test_any_number_is_within_its_bounds_or_refused(key, value):
    command, flag = key
    mark = NUMBERS[key]
    wanted = OPTIONS[key][0]
    if isinstance(value, float) and int in kinds(wanted):
        return  # versions of typer read or refuse 2.0 for a whole number
    ended = status([command, *NEEDED.get(command, ()), flag, str(value)])
    allowed = mark.min <= value <= (sys.float_info.max if mark.max is None else mark.max)
    assert ended == (None if allowed else 2), (command, flag, value)


def test_every_bench_that_writes_a_report_is_asked_here() -> None:
    assert set(FOLDERS) == {
        "choices", "divergence", "experiments", "fidelity", "kernels", "modes", "pairs", "replay",
        "scatter", "serving", "sweep",
    }  # fmt: skip
    assert set(LINES) == {"match", "reuse", "scatter", "ttft"}
    for command in FOLDERS:
        assert (command, "--overwrite") in OPTIONS


@pytest.mark.parametrize("command", FOLDERS)
def test_a_folder_is_looked_at_before_a_model_is(command, tmp_path, capsys):
    more = list(NEEDED.get(f"{command} --out", ()))
    (tmp_path / "file").write_text("kept")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/hypic")):
        words = [command, "--out", str(place), *more]
        assert is_refused(words, capsys, str(place))
        assert is_refused([*words, "--overwrite"], capsys, str(place))
    assert (tmp_path / "file").read_text() == "kept"
    good = [command, "--out", str(tmp_path / "new"), *more]
    assert not is_refused(good, capsys, "")


@pytest.mark.parametrize("command", FOLDERS)
def test_a_report_of_an_earlier_run_is_not_written_over(command, tmp_path, capsys):
    report = tmp_path / f"{command}.json"
    report.write_text("of an earlier run")
    words = [command, "--out", str(tmp_path), *NEEDED.get(f"{command} --out", ())]
    assert is_refused(words, capsys, f"{report} is of an earlier run")
    assert report.read_text() == "of an earlier run"
    assert not is_refused([*words, "--overwrite"], capsys, "")
    assert (tmp_path / f"{command}.json.old").read_text() == "of an earlier run"


@pytest.mark.parametrize("command", LINES)
def test_a_file_of_rows_is_looked_at_before_a_model_is(command, tmp_path, capsys):
    (tmp_path / "file").write_text("kept")
    for place, said in (
        (tmp_path, "can not be written"),
        (tmp_path / "file" / "below", "is a file"),
        (Path("/proc/hypic/rows"), "can not be written"),
    ):
        assert is_refused([command, "--json-lines", str(place)], capsys, said)
    assert not is_refused([command, "--json-lines", str(tmp_path / "file")], capsys, "")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_figure_is_not_drawn_over(tmp_path, capsys):
    figure = tmp_path / "one.svg"
    figure.write_text("kept")
    words = ["scatter", "--simulate", "--figure", str(figure)]
    assert is_refused(words, capsys, "there already")
    assert not is_refused([*words, "--overwrite"], capsys, "")
    assert is_refused(["scatter", "--out", str(tmp_path)], capsys, "--model-shapes")
