"""Every number that a command takes: it is one that works, or it is refused in a line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic_sdk.cli.app import app, main
from hypic_sdk.config import cache_folder
from hypic_sdk.server.remote_workers import write_new_key

COMMANDS = ("serve", "worker", "generate", "doctor")

Allowed = Callable[[float], bool]


def between(least: float, most: float = math.inf) -> Allowed:
    return lambda number: least <= number <= most


def over_zero(most: float = math.inf) -> Allowed:
    return lambda number: 0 < number <= most


# what works, written here once more and not read off the options
ALLOWED: dict[str, Allowed] = {
    "serve --port": between(0, 65_535),
    "serve --workers": between(0, 64),
    "serve --shadow": over_zero(1),
    "serve --shadow-limit-kl": over_zero(),
    "serve --shadow-tokens": between(65, 2**24),
    "serve --capture-ahead": between(0),
    "worker --workers": between(1, 64),
    "worker --cache-mib": between(1, 2**40),
    "generate --max-tokens": between(0, 2**24),
    "generate --temperature": between(0, 100),
    "generate --top-p": over_zero(1),
    "generate --top-k": between(-1, 2**24),
    "generate --min-p": between(0, 1),
    "generate --seed": between(-(2**63), 2**63 - 1),
    **{
        f"{name} --min-segment-tokens": between(1, 2**24)
        for name in ("serve", "generate", "doctor")
    },
    **{f"{name} --cache-mib": between(1, 2**40) for name in ("serve", "generate", "doctor")},
    **{f"{name} --segment-tokens": between(1, 2**24) for name in ("serve", "doctor")},
    **{f"{name} --segments-per-request": between(1, 2**24) for name in ("serve", "doctor")},
}


def numeric_options() -> dict[str, type]:
    """Those that the commands have, by command and flag, and what kind of number each takes."""
    found = {}
    for info in app.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__
        hints = get_type_hints(info.callback, include_extras=True) if name in COMMANDS else {}
        for parameter, hint in hints.items():
            wanted, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            kinds = {int, float} & {wanted, *get_args(wanted)}
            if kinds:
                [flag] = marks[0].param_decls or [f"--{parameter.replace('_', '-')}"]
                found[f"{name} {flag}"] = kinds.pop()
    return found


KINDS = numeric_options()


def test_every_number_of_these_commands_is_known_here() -> None:
    assert set(KINDS) == set(ALLOWED)


class _Accepted(Exception):
    """A command began to work."""


@pytest.fixture(scope="module", autouse=True)
def _nothing_begins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands are cut off where their settings are made and checked."""

    def begin(*_: Any, **__: Any) -> Any:
        raise _Accepted

    folder = tmp_path_factory.mktemp("cache")
    write_new_key(folder / "key")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYPIC_CACHE_DIR", str(folder))
        patch.setenv("COLUMNS", "400")
        patch.setattr(asyncio, "run", lambda job: (job.close(), begin()))
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setattr("hypic_sdk.cli.worker.check_addresses", lambda *_: None)
        patch.setattr("hypic_sdk.server.remote_workers.keep_running", begin)
        patch.setattr("hypic_sdk.cli.generate.open_local", begin)
        patch.setattr("hypic_sdk.doctor.examine.examine_model", begin)
        yield


def words_of(command: str, folder: Path) -> list[str]:
    """What a command can not do without."""
    return {
        "generate": ["-q", "Where?"],
        "worker": ["--router", "127.0.0.1:1", "--host", "127.0.0.1", "--key", str(folder / "key")],
    }.get(command, [])


def is_accepted(words: list[str]) -> bool:
    """Whether a command begins; if not, it has ended with a sentence and exit status 2."""
    told = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(told):
        patch.setattr("sys.argv", ["hypic", *words])
        with pytest.raises((_Accepted, SystemExit)) as ended:
            main()
    if isinstance(ended.value, _Accepted):
        return True
    assert ended.value.code == 2, told.getvalue()
    flag = words[1]
    field = flag.removeprefix("--").replace("-", "_")
    lines = [line for line in told.getvalue().splitlines() if flag in line or f"{field}:" in line]
    assert len(lines) == 1, told.getvalue()
    assert "Traceback" not in told.getvalue()
    return False


def number(option: str, text: str) -> float:
    """What the text is as a number of the option's kind; no number: NaN, which nothing allows."""
    try:
        if KINDS[option] is float:
            found = float(text)
            return found if math.isfinite(found) else math.nan
        return int(text)
    except ValueError:
        return math.nan


ODD = ("inf", "-inf", "nan", "-1", "0", "-0.0", "1", "0.5", "1e400", "1e308", "", " ", "one", "1,5",
       "65536", str(2**24 + 1), str(2**40 + 1), str(2**63), str(2**64), str(10**30))  # fmt: skip


@pytest.mark.parametrize("option", ALLOWED)
def test_odd_numbers_work_or_are_refused_in_a_line(option: str) -> None:
    for text in ODD:
        check(option, text)


@given(
    option=st.sampled_from(sorted(ALLOWED)),
    text=st.one_of(
        st.integers().map(str),
        st.integers(-100, 100).map(str),
        st.floats().map(str),
        st.floats(-2, 2).map(str),
    ),
)
def test_any_number_works_or_is_refused_in_a_line(option: str, text: str) -> None:
    check(option, text)


def check(option: str, text: str) -> None:
    command, flag = option.split()
    words = [command, flag, text, *words_of(command, cache_folder())]
    if flag in ("--shadow-limit-kl", "--shadow-tokens"):
        words += ["--shadow", "0.02"]
    accepted = is_accepted(words)
    if not is_whole_as_fraction(option, text):
        assert accepted is bool(ALLOWED[option](number(option, text))), (option, text)


def is_whole_as_fraction(option: str, text: str) -> bool:
    """Whether it is `2.0` for a whole number, which versions of typer read or refuse."""
    with contextlib.suppress(ValueError):
        return KINDS[option] is int and not text.lstrip("+-").isdigit() and float(text).is_integer()
    return False
