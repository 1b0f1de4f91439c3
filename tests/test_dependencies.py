"""What is declared is what is imported, and each dependency has its reason in CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.source_tree import REPOSITORY, python_files, runtime_imports

# declared before something imports them, each with the reason
NOT_IMPORTED_YET: dict[str, str] = {}
# tools that are run, and plug-ins that pytest finds by itself
NOT_IMPORTED = {"mypy", "pytest-timeout", "pytest-xdist", "ruff"}
# part of the package that is declared
BROUGHT_ALONG = {"pydantic_core"}
IMPORT_NAMES = {
    "pyzmq": "zmq",
    "pyahocorasick": "ahocorasick",
    "flash-linear-attention": "fla",
    "langchain-core": "langchain_core",
    "llama-index-core": "llama_index",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
}


def declared() -> dict[str, set[str]]:
    """Distribution names by extra; the empty name is the base."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    del groups["all"]
    return {
        extra: {re.match(r"[\w.-]+", requirement)[0].lower() for requirement in requirements}
        for extra, requirements in groups.items()
    }


def import_name(distribution: str) -> str:
    return IMPORT_NAMES.get(distribution, distribution.replace("-", "_"))


def imported_packages(paths: Iterable[Path]) -> set[str]:
    found = {one.module.split(".")[0] for path in paths for one in runtime_imports(path)}
    return found - set(sys.stdlib_module_names) - {"hypic_sdk", "tests"}


def test_what_the_package_imports_is_declared():
    names = {
        import_name(one) for extra, group in declared().items() if extra != "dev" for one in group
    }
    undeclared = imported_packages(python_files()) - names - BROUGHT_ALONG
    assert not undeclared, undeclared


def test_what_is_declared_is_imported():
    paths = [*python_files()]
    for folder in ("tests", "examples"):
        paths += (REPOSITORY / folder).rglob("*.py")
    found = imported_packages(paths)
    needed = set().union(*declared().values()) - NOT_IMPORTED
    unused = {one for one in needed if import_name(one) not in found}
    assert unused == set(NOT_IMPORTED_YET)


def test_each_dependency_has_its_reason_in_the_guide():
    """Package, the extras it belongs to, and why: the same as pyproject.toml says, both ways."""
    guide = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = guide.partition("## Dependencies")[2]
    rows = {cells[0].strip("`"): cells[1:] for cells in _table_rows(section) if "`" in cells[0]}
    extras: dict[str, set[str]] = {}
    for extra, distributions in declared().items():
        for distribution in distributions:
            extras.setdefault(distribution, set()).add(extra or "base")
    assert {name: set(cells[0].split(", ")) for name, cells in rows.items()} == extras
    assert all(len(reason.split()) >= 3 for _, reason in rows.values())


def _table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_pinned_versions_leave_torch_alone():
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[\w.]+( ; .+)?", pin), pin
        assert not re.match(r"(?i)torch|triton|nvidia", pin), pin
