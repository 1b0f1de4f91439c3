"""The package and the repository as text: what tests about imports and rules read."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "hypic_sdk"


@dataclass(frozen=True)
class Import:
    """One import statement's target, as a dotted name.

    `names` are what a `from` import takes.  `deferred`: it stands inside a function, so it runs
    when the function does and not when the module loads.
    """

    module: str
    names: tuple[str, ...]
    deferred: bool
    line: int


@cache
def python_files() -> tuple[Path, ...]:
    """Every source file of the package, in order."""
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def module_name(path: Path) -> str:
    """`hypic_sdk.store.lru` for hypic_sdk/store/lru.py; a folder's name for its __init__."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """The second part of a module's name (`store`); empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def runtime_imports(path: Path) -> Iterator[Import]:
    """Every import of a file that can run, those under `if TYPE_CHECKING` left out."""
    return imports_below(parsed(path))


def imports_below(node: ast.AST, *, deferred: bool = False) -> Iterator[Import]:
    """The same of a syntax tree.  `import_module("hypic_sdk.x")` with a literal is one too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for statement in child.orelse:
                yield from imports_below(ast.Module([statement], []), deferred=deferred)
            continue
        yield from _imports_of(child, deferred)
        in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports_below(child, deferred=deferred or in_function)


def _imports_of(node: ast.AST, deferred: bool) -> Iterator[Import]:
    match node:
        case ast.Import():
            for alias in node.names:
                yield Import(alias.name, (), deferred, node.lineno)
        case ast.ImportFrom():
            # a relative import keeps its dots: tests/test_rules.py forbids it
            module = "." * node.level + (node.module or "")
            yield Import(module, tuple(alias.name for alias in node.names), deferred, node.lineno)
        case ast.Call(args=[ast.Constant(value=str(target)), *_]):
            if ast.unparse(node.func).endswith("import_module"):
                yield Import(target, (), deferred, node.lineno)


def imported_modules(found: Import, known: frozenset[str]) -> tuple[str, ...]:
    """The modules among `known` that an import loads: `from room import module` names modules."""
    inner = [f"{found.module}.{name}" for name in found.names]
    modules = [name for name in inner if name in known]
    if len(modules) < len(inner) or not inner:
        modules.append(found.module)
    return tuple(modules)


def repository_files() -> list[Path] | None:
    """Files that git tracks or would track; none where this is no git checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        return None
    paths = (REPOSITORY / name for name in listing.stdout.split("\0") if name)
    # a file that was deleted but is still tracked has nothing to say
    return [path for path in paths if path.is_file()]
