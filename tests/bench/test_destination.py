"""A place is looked at before anything is measured, and what a run left is not written over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypic_sdk.bench.destination import check_file, check_folder, claim_file, claimed, named
from hypic_sdk.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a finished report, rows, what stands beside, and what is another bench's."""
    for name in ("one.json", "one_rows.jsonl", "part-a.txt", "two.json", "part-a.txt.old"):
        (tmp_path / name).write_text(f"of {name}")
    return tmp_path


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_earlier_run_is_refused_and_stays_as_it_is(folder):
    before = texts(folder)
    for bench in ("one", "two"):
        with (
            pytest.raises(ConfigError, match=rf"{bench}\.json is of an earlier run.*--overwrite"),
            claimed(folder, bench),
        ):
            raise AssertionError("it runs")
    (folder / "one.json").unlink()
    with pytest.raises(ConfigError, match="part-a"), claimed(folder, "one", "part-*.txt"):
        raise AssertionError("it runs")
    assert texts(folder) == {k: v for k, v in before.items() if k != "one.json"}


def test_overwriting_puts_aside_what_is_its_own_and_nothing_else(folder):
    with claimed(folder, "one", "part-*.txt", overwrite=True):
        (folder / "one.json").write_text("new")
    assert texts(folder) == {
        "one.json": "new",
        "one.json.old2": "of one.json",
        "one_rows.jsonl.old2": "of one_rows.jsonl",
        "part-a.txt.old": "of part-a.txt.old",  # put aside before, by whoever
        "part-a.txt.old2": "of part-a.txt",
        "two.json": "of two.json",
    }


FILES = ("one.json", "one_rows.jsonl", "part-a.txt")


@given(runs=st.lists(st.sets(st.sampled_from(FILES)), max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_often_nothing_that_a_run_left_is_lost(tmp_path_factory, runs):
    """Whatever each run leaves, also none of it; what one left ends alike."""
    folder = tmp_path_factory.mktemp("results")
    for number, names in enumerate(runs):
        with claimed(folder, "one", "part-*.txt", overwrite=True):
            for name in names:
                (folder / name).write_text(f"{number} {name}")
    left: dict[int, dict[str, str]] = {}
    for path in folder.iterdir():
        number, _, name = path.read_text().partition(" ")
        assert path.name.startswith(name)
        left.setdefault(int(number), {})[name] = path.name.removeprefix(name)
    assert {number: set(names) for number, names in left.items()} == {
        number: names for number, names in enumerate(runs) if names
    }
    endings = [set(names.values()) for _, names in sorted(left.items())]
    assert all(len(of_a_run) == 1 for of_a_run in endings)
    kept = [of_a_run.pop() for of_a_run in endings]
    if runs and runs[-1]:
        assert kept.pop() == "", "the last run's own"
    assert len(set(kept)) == len(kept)
    assert all(one.startswith(".old") for one in kept)


def test_a_figure_is_put_aside_as_a_report_is(tmp_path):
    path = tmp_path / "one.svg"
    claim_file(None, overwrite=True)
    for number in range(4):
        claim_file(path, overwrite=True)
        assert not path.exists()
        path.write_text(f"of run {number}")
        with pytest.raises(ConfigError, match=r"one\.svg is there already.*--overwrite"):
            claim_file(path, overwrite=False)
    assert texts(tmp_path) == {
        "one.svg": "of run 3", "one.svg.old": "of run 0", "one.svg.old2": "of run 1",
        "one.svg.old3": "of run 2",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", " ", "\t", "\n"])
def test_an_empty_path_is_not_the_current_folder(text):
    with pytest.raises(ConfigError, match="empty path"):
        named(text)
    assert named(".") == Path()
    assert named(" a folder ") == Path(" a folder ")


def test_a_bench_that_goes_on_needs_rows_to_go_on_with(folder):
    before = texts(folder)
    with claimed(folder, "one", resumes=True):
        pass
    assert texts(folder) == before
    with pytest.raises(ConfigError, match="no rows"), claimed(folder, "two", resumes=True):
        raise AssertionError("it runs")
    with claimed(folder / "new", "one", resumes=True):
        pass


@pytest.mark.parametrize("resumes", [False, True])
def test_two_runs_of_a_bench_are_not_in_one_folder_at_once(tmp_path, resumes):
    with claimed(tmp_path, "one", resumes=resumes):
        with (
            pytest.raises(ConfigError, match=r"hypic bench one.*now"),
            claimed(tmp_path, "one", overwrite=True, resumes=resumes),
        ):
            raise AssertionError("it runs")
        with claimed(tmp_path, "two"):
            pass
    with pytest.raises(KeyError), claimed(tmp_path, "one"):
        raise KeyError
    with claimed(tmp_path, "one"):
        pass
    assert not texts(tmp_path), "a lock leaves nothing behind"


def test_what_a_run_raises_is_its_own(tmp_path):
    for error in (BlockingIOError("busy"), PermissionError("no"), ConfigError("wrong")):
        with pytest.raises(type(error)) as raised, claimed(tmp_path, "one"):
            raise error
        assert raised.value is error


def test_no_folder_is_no_place_to_look_at():
    with claimed(None, "one"):
        pass
    check_file(None)


UNUSABLE = {
    "a file": "file",
    "below a file": "file/deeper/still",
    "the kernel's": "/proc/hypic",
    "too long a name": "x" * 300,
}
"""Folders into which nobody can write, a superuser neither."""


@pytest.mark.parametrize("name", UNUSABLE.values(), ids=UNUSABLE)
def test_a_folder_that_can_not_be_written_is_named(tmp_path, name):
    (tmp_path / "file").write_text("kept")
    folder = tmp_path / name
    for resumes in (False, True):
        with (
            pytest.raises(ConfigError) as raised,
            claimed(folder, "one", overwrite=resumes, resumes=resumes),
        ):
            raise AssertionError("it runs")
        assert str(folder) in raised.value.message
        assert "\n" not in raised.value.message
    with pytest.raises(ConfigError):
        check_file(folder / "rows.jsonl")
    assert (tmp_path / "file").read_text() == "kept"


def test_what_the_system_forbids_is_named(tmp_path, monkeypatch):
    """As on a medium that is only read, or for a user without rights: tests may run as root."""

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hypic_sdk.bench.destination.TemporaryFile", refuse)
    with pytest.raises(ConfigError, match="Permission denied"):
        check_folder(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied"), claimed(tmp_path, "one"):
        raise AssertionError("it runs")


def test_a_report_that_is_a_folder_is_named(tmp_path):
    for name in ("one.json", "one_rows.jsonl"):
        (tmp_path / name).mkdir()
        with pytest.raises(ConfigError, match=name), claimed(tmp_path, "one"):
            raise AssertionError("it runs")
        with pytest.raises(ConfigError, match=name), claimed(tmp_path, "one", resumes=True):
            raise AssertionError("it runs")
        (tmp_path / name).rmdir()


def test_a_file_is_looked_at_and_not_changed(tmp_path):
    path = tmp_path / "deep" / "rows.jsonl"
    check_file(path)
    assert not path.exists()
    path.write_text("a row")
    check_file(path)
    assert path.read_text() == "a row"
    with pytest.raises(ConfigError, match="deep"):
        check_file(path.parent)
