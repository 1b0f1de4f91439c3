"""The rules of CONTRIBUTING.md that a program can check, over the whole tree."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_tree import (
    PACKAGE,
    REPOSITORY,
    parsed,
    python_files,
    repository_files,
    runtime_imports,
)

MIB = 1024 * 1024
MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 400
MAX_TREE_BYTES = 60 * MIB

# rule 17 exempts files with kernels; whatever else is longer stands here with its reason
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# places that exist on one person's machine only
MACHINE_PATHS = re.compile(
    r"(?<![\w./~-])/(?:home|root|Users|work|workspace|mnt|opt|data|scratch)/\w"
)


def relative(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def where(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{relative(path)}:{node.lineno}"


def tree_files() -> list[Path]:
    files = repository_files()
    if files is None:
        pytest.skip("this tree is no git checkout, so nobody knows which files belong to it")
    return files


def text_files() -> Iterator[tuple[Path, str]]:
    """Files that people write; what is not text, and the packaged model, is left out."""
    for path in tree_files():
        data = path.read_bytes()
        if b"\0" not in data and "demo/reader/" not in relative(path):
            yield path, data.decode("utf-8")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every function with its qualified name."""
    for child in ast.iter_child_nodes(tree):
        name = f"{prefix}{getattr(child, 'name', '')}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, child
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(child, f"{name}." if named else prefix)


def num_lines(function: ast.FunctionDef) -> int:
    """From `def` to the last line; the docstring does not count, lest it be kept short."""
    first = function.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    docstring_lines = first.end_lineno - first.lineno + 1 if is_docstring else 0
    return function.end_lineno - function.lineno + 1 - docstring_lines


def test_only_config_reads_the_environment():
    wrong = [
        where(path, node)
        for path in python_files()
        if relative(path) != "hypic_sdk/config.py"
        for node in ast.walk(parsed(path))
        if (isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"})
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and _takes_environ(node))
    ]
    assert not wrong, wrong


def _takes_environ(node: ast.ImportFrom) -> bool:
    return any(alias.name in {"environ", "environb", "getenv"} for alias in node.names)


def test_no_global_statements():
    wrong = [
        where(path, node)
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Global)
    ]
    assert not wrong, wrong


def test_nothing_prints_but_the_command_line():
    """Command lines are cli/ and the scripts that make the packaged model."""
    wrong = [
        where(path, node)
        for path in python_files()
        if not relative(path).startswith("hypic_sdk/cli/")
        and '__name__ == "__main__"' not in path.read_text(encoding="utf-8")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "sys.stdout.write"}
    ]
    assert not wrong, wrong


def test_imports_are_absolute():
    wrong = [
        f"{relative(path)}:{one.line}"
        for path in python_files()
        for one in runtime_imports(path)
        if one.module.startswith(".")
    ]
    assert not wrong, wrong


def test_no_room_without_a_noun():
    homeless = {"utils", "util", "helpers", "helper", "common", "misc"}
    wrong = [relative(path) for path in PACKAGE.rglob("*") if path.stem in homeless]
    assert not wrong, wrong


def test_bare_exceptions_are_not_raised():
    """Rule 9: `raise Exception` and `raise RuntimeError` tell nobody what to do."""
    wrong = [
        where(path, node)
        for path in python_files()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and re.match(r"(Exception|BaseException|RuntimeError)\b", ast.unparse(node.exc))
    ]
    assert not wrong, wrong


def test_models_and_layers_never_name_a_segment():
    """Their code asks a context and knows nothing of caching; comments may explain why."""
    wrong = [
        f"{relative(path)}:{token.start[0]} {token.string}"
        for path in python_files()
        if relative(path).startswith(("hypic_sdk/models/", "hypic_sdk/layers/"))
        for token in _tokens(path)
        if token.type == tokenize.NAME and re.search("segment|seam", token.string, re.IGNORECASE)
    ]
    assert not wrong, wrong


def _tokens(path: Path) -> list[tokenize.TokenInfo]:
    with path.open("rb") as source:
        return list(tokenize.tokenize(source.readline))


def has_kernels(path: Path) -> bool:
    """Whether a file holds a Triton kernel."""
    return "\n@triton.jit" in path.read_text(encoding="utf-8")


def test_functions_are_short():
    found = {
        f"{relative(path)}::{name}": num_lines(function)
        for path in python_files()
        if not has_kernels(path)
        for name, function in functions(parsed(path))
        if num_lines(function) > MAX_FUNCTION_LINES
    }
    too_long = {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS}
    assert not too_long, too_long
    assert not set(LONG_FUNCTIONS) - set(found), "an exception that is no longer needed"


def test_files_are_short():
    found = {
        relative(path): lines
        for path in python_files()
        if not has_kernels(path)
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES
    }
    too_long = {name: lines for name, lines in found.items() if name not in LONG_FILES}
    assert not too_long, too_long
    assert not set(LONG_FILES) - set(found), "an exception that is no longer needed"


def test_public_functions_have_docstrings():
    wrong = [
        f"{relative(path)}::{name}"
        for path in python_files()
        for name, function in public_functions(parsed(path))
        if ast.get_docstring(function) is None and ast.unparse(function.body[0]) != "..."
    ]
    assert not wrong, wrong


def public_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions of a module and methods of its classes, those that begin with `_` left out."""
    for owner in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]:
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.name.startswith("_") and not prefix.startswith("_"):
                yield f"{prefix}{node.name}", node


def op_folders() -> list[Path]:
    kernels = PACKAGE / "kernels"
    return sorted(
        path for path in kernels.iterdir() if path.is_dir() and path.name != "__pycache__"
    )


@pytest.mark.parametrize("folder", op_folders(), ids=lambda folder: folder.name)
def test_an_op_has_a_door_a_definition_and_a_test(folder):
    assert {"op.py", "reference.py"} <= {path.name for path in folder.iterdir()}
    assert (REPOSITORY / "tests" / "kernels" / f"test_{folder.name}.py").is_file()
    if (folder / "kernel.py").is_file():
        tests = (REPOSITORY / "tests" / "kernels").glob(f"test_{folder.name}*.py")
        assert any("kernel" in path.read_text(encoding="utf-8") for path in tests)


def test_the_ops_were_found():
    assert {"live_scan", "segment_scan"} <= {folder.name for folder in op_folders()}


def test_each_family_has_one_file_and_each_file_is_registered():
    from hypic_sdk.families.registry import FAMILIES

    files = {path.stem for path in (PACKAGE / "families").glob("*.py")}
    modules = files - {"__init__", "recurrence", "registry"}
    assert {family.sample.__module__.rpartition(".")[2] for family in FAMILIES.values()} == modules
    assert all(name == family.name for name, family in FAMILIES.items())
    assert len(FAMILIES) == 8


@pytest.mark.parametrize("room", ["algebra", "families", "kernels", "engine"])
def test_law_tests_walk_every_family(room):
    """A family that is added to the registry is under test with nothing else to do."""
    tests = (REPOSITORY / "tests" / room).glob("test_*.py")
    walks = re.compile(r"(?:parametrize\([^)]*|\bin (?:sorted\()?)\b(?:ALL_)?FAMILIES\b")
    assert any(walks.search(path.read_text(encoding="utf-8")) for path in tests)


def test_the_tree_is_small():
    sizes = {relative(path): path.stat().st_size for path in tree_files()}
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
    assert sum(sizes.values()) < MAX_TREE_BYTES, largest


# written apart, so that the pattern does not find itself
UNFINISHED = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?P<rest>.*)")
ANCHOR = re.compile(r"^: .*\b(?:once|when|until|after|as soon as)\b .+")


def test_an_unfinished_thing_names_what_lets_it_be_done():
    wrong = [
        f"{relative(path)}:{number} {line.strip()}"
        for path, text in text_files()
        if path.suffix in {".py", ".toml"} or path.name in {"Makefile", "run", "venv"}
        for number, line in enumerate(text.splitlines(), start=1)
        if (match := UNFINISHED.search(line)) and not ANCHOR.match(match["rest"])
    ]
    assert not wrong, "\n".join(wrong)


def test_the_anchor_pattern_tells_them_apart():
    word = "TO" + "DO"
    assert ANCHOR.match(UNFINISHED.search(f"# {word}: drop the copy once 3.7 is the floor")["rest"])
    assert not ANCHOR.match(UNFINISHED.search(f"# {word}: fix later")["rest"])
    assert not ANCHOR.match(UNFINISHED.search(f"# {word} once")["rest"])


def test_no_paths_of_one_machine():
    wrong = [
        f"{relative(path)}:{number} {line.strip()[:100]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_PATHS.search(line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("line", "is_one"),
    [
        ("open('/ho" + "me/ann/model')", True),
        ("cd /wo" + "rk/main", True),
        ("GET /v1/da" + "ta/x", False),
        ("#!/usr/bin/env bash", False),
        ("~/da" + "ta/x", False),
    ],
)
def test_the_path_pattern_tells_them_apart(line, is_one):
    assert bool(MACHINE_PATHS.search(line)) == is_one


def test_the_map_has_a_row_for_every_room():
    """docs/architecture.md is the map: a room that is not on it cannot be found."""
    map_text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = map_text.partition("## Rooms")[2].partition("### ")[0]
    on_the_map = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in python_files()}
    assert on_the_map == rooms - {"__init__"}
