"""Parts of pages that programs write, and what has to hold before one is written anew.

A part stands between two marks, each alone on its line: `<!-- begin NAME -->`, `<!-- end NAME -->`.
A page whose marks are not in order is refused.  So is a text that has nothing to tell, or tells a
row twice; and in a checkout, one that no longer tells a row that its page has now.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from hypic_sdk.bench.destination import check_file
from hypic_sdk.errors import ConfigError

BEGIN, END = "<!-- begin", "<!-- end"
_MARK = re.compile(r"<!--[ \t]*(begin|end)\b[ \t]*(.*?)[ \t]*(?:-->|$)", re.MULTILINE)
_CELL = re.compile(r"(?<!\\)\|")
# tables whose rows are told apart by two cells; those of all others by the first
_TWO_CELLS = (("scene", "arm"), ("T", "S"), ("arm", "attention"))

Told = tuple[str, ...]
"""What tells a row from others: the head of its first column, and its own first cells."""


@dataclass(frozen=True, slots=True)
class Part:
    """A text, where it belongs, and what it was made of."""

    name: str
    text: str
    source: Path
    bench: str
    absent: tuple[str, ...] = ()  # rows that its run says nothing there could give

    @property
    def again(self) -> str:
        """What to do where it will not do."""
        return measure_again(self.bench, self.source.parent)


@dataclass(frozen=True, slots=True)
class Renewed:
    """Pages with new parts; nothing is written yet."""

    pages: dict[Path, str] = field(default_factory=dict)  # those that change
    placed: list[str] = field(default_factory=list)  # parts that have a place on some page
    fewer: list[str] = field(default_factory=list)  # what was told and is no more, in sentences


def measure_again(bench: str, folder: Path) -> str:
    """In words."""
    return f"measure again (hypic bench {bench} --out {folder} --overwrite)"


def is_in_checkout(*places: Path) -> bool:
    """Whether what is written at one of these is what people read."""
    folders = {folder for path in places for folder in (path.resolve(), *path.resolve().parents)}
    return any(
        (folder / mark).exists() for folder in folders for mark in (".git", "pyproject.toml")
    )


def renewed(paths: Iterable[Path], parts: Sequence[Part], *, in_checkout: bool) -> Renewed:
    """Put each part between its marks, on every page that has them.

    Args:
        in_checkout: no page may lose a row; elsewhere that is told in `fewer`.
    Raises:
        ConfigError: what this module's first lines say is refused.
    """
    found, again = Renewed(), list[str]()
    for part in parts:
        _check(part)
    for path in paths:
        before = path.read_text(encoding="utf-8")
        places = _places(before, path)
        own = [part for part in parts if part.name in places]
        for part in own:
            lost = "; ".join(_lost(before[places[part.name]], part))
            if lost:
                words = f"{path} would lose of {part.name!r} what {part.source} lacks: {lost}"
                found.fewer.append(words)
                again.append(part.again)
        found.placed.extend(part.name for part in own)
        after = filled(before, {part.name: part.text for part in own}, path)
        if after != before:
            found.pages[path] = after
    if found.fewer and in_checkout:
        advice = "or first take the lines of what is not measured any more out of the page"
        raise ConfigError(f"{'. '.join(found.fewer)}: {'; '.join(dict.fromkeys(again))}, {advice}")
    return found


def write_all(files: Mapping[Path, str]) -> None:
    """Write every file, or none of them.  Raises ConfigError for one that can not be written."""
    for path in files:
        check_file(path)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")


def no_place(part: Part, paths: Iterable[Path]) -> ConfigError:
    """What to say of a part that no page has marks for."""
    return ConfigError(
        f"no page has a place for {part.name!r} of {part.source}: put "
        f"`{_line('begin', part.name)}` and `{_line('end', part.name)}` into one of "
        f"{', '.join(map(str, paths))}, each on a line of its own"
    )


def filled(page: str, texts: Mapping[str, str], path: Path | str = "the page") -> str:
    """The page with each text between its marks, where it has such.

    Raises:
        ConfigError: its marks are not in order.
    """
    # from the last on, so that places of those before stay what they are
    for name, place in reversed(_places(page, path).items()):
        if name in texts:
            page = page[: place.start] + texts[name] + page[place.stop :]
    return page


def _places(page: str, path: Path | str) -> dict[str, slice]:
    """What stands between the marks of each part.  Raises ConfigError."""
    found: dict[str, slice] = {}
    name, start = "", 0  # of the part that has begun; none: an empty name
    for mark in _MARK.finditer(page):
        kind, own = mark.groups()
        said = f"`{_line(kind, own)}`"
        line = page[page.rfind("\n", 0, mark.start()) + 1 :].partition("\n")[0]
        if line != _line(kind, own) or not own:
            raise _wrong(path, f"the mark {said} has to be a line of its own, not {line!r}")
        if name and (kind, own) != ("end", name):
            raise _wrong(
                path, f"`{_line('begin', name)}` has no `{_line('end', name)}` before {said}"
            )
        if kind == "end":
            if not name:
                raise _wrong(path, f"{said} has no `{_line('begin', own)}` before it")
            found[name] = slice(start, mark.start())
            name = ""
        elif own in found:
            raise _wrong(path, f"{said} stands there twice")
        else:
            name, start = own, mark.end() + 1
    if name:
        raise _wrong(path, f"`{_line('begin', name)}` has no `{_line('end', name)}` behind it")
    return found


def _line(kind: str, name: str) -> str:
    return f"{BEGIN if kind == 'begin' else END} {name} -->"


def _wrong(path: Path | str, what: str) -> ConfigError:
    return ConfigError(f"{path} can not be filled in: {what}; put each mark where it belongs, once")


def tables(text: str) -> list[tuple[Told, list[Told]]]:
    """Each table's head, and its rows."""
    found: list[tuple[Told, list[Told]]] = []
    num_lines = 0  # of this table so far: its head, a rule, then rows
    for line in text.splitlines():
        num_lines = num_lines + 1 if line.startswith("|") else 0
        cells = tuple(cell.strip() for cell in _CELL.split(line)[1:-1])
        if num_lines == 1:
            found.append((cells, []))
        elif num_lines > 2:
            found[-1][1].append(cells)
    return found


def told(text: str) -> list[list[Told]]:
    """All that a text tells: rows table by table, items of lists, and figures."""
    found = [
        [("".join(head[:1]), *cells[: 1 + (head[:2] in _TWO_CELLS)]) for cells in rows]
        for head, rows in tables(text)
    ]
    lines = text.splitlines()
    found.append([("", line[2:].partition(": ")[0]) for line in lines if line.startswith("- ")])
    found.append([("", line) for line in lines if line.startswith("![")])
    return found


def _check(part: Part) -> None:
    """Whether there is anything to tell, nothing twice, and no mark.  Raises ConfigError."""
    mark = _MARK.search(part.text)
    if mark is not None:
        raise ConfigError(
            f"{part.source} has a mark of pages in a word, {mark.group()}: {part.again}"
        )
    what, groups = f"{part.source} has nothing to publish as {part.name!r}", told(part.text)
    for head, rows in tables(part.text):
        if not rows:
            raise ConfigError(f"{what}, no row of ({', '.join(head)}): {part.again}")
    if not any(groups):
        raise ConfigError(f"{what}, no figure: {part.again}")
    for group in groups:
        for (_, *own), count in Counter(group).items():
            if count > 1:
                twice = f"{', '.join(own)} twice, in {part.name!r}"
                raise ConfigError(f"{part.source} tells {twice}: {part.again}")


def _lost(before: str, part: Part) -> list[str]:
    """What a page tells and the new text does not, but for what could not be measured there."""
    had, has = (Counter(chain.from_iterable(told(text))) for text in (before, part.text))
    lost = [", ".join(own) for _, *own in had - has]
    return [name for name in lost if not any(_covers(one, name) for one in part.absent)]


def _covers(absent: str, name: str) -> bool:
    """Whether a row is the absent one, or one of those that `HEAD, TAIL` is short for."""
    head, _, tail = absent.rpartition(", ")
    is_one_of = name.startswith(f"{head}, ") and name.endswith(f", {tail}")
    return name == absent or (bool(head) and is_one_of)
