"""Who may import whom: the rooms of the package, as a table (docs/architecture.md draws it)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import (
    PACKAGE,
    REPOSITORY,
    Import,
    imported_modules,
    module_name,
    python_files,
    room,
    runtime_imports,
)

GROUND_FLOOR = {"config", "errors", "telemetry", "version"}

# a room may import what stands in its row, the ground floor and itself
MAY_IMPORT: dict[str, set[str]] = {
    "prompt": set(),
    "transport": {"prompt"},
    "router": {"prompt", "transport"},
    "wire": set(),
    "matching": set(),
    "service": {"matching", "prompt", "router", "transport", "wire"},
    "warming": {"prompt", "service"},
    "links": {"prompt", "transport"},
    "server": {"prompt", "router", "service", "transport", "warming", "wire"},
    "client": {"matching", "prompt", "wire"},
    "integrations": {"client", "matching", "prompt", "wire"},
    "kernels": set(),
    "algebra": {"kernels"},
    "families": {"algebra", "kernels"},
    "layers": {"algebra", "families", "kernels"},
    "models": {"algebra", "families", "kernels", "layers"},
    "store": {"algebra", "kernels", "models", "prompt"},
    "engine": {
        "algebra",
        "families",
        "kernels",
        "layers",
        "links",
        "models",
        "prompt",
        "store",
        "transport",
    },
    "scripted": {"demo", "engine", "prompt", "transport"},
    "offline": {"demo", "engine", "models", "prompt", "scripted", "service", "transport", "wire"},
    "demo": set(),
    "bench": {
        "algebra",
        "client",
        "demo",
        "doctor",
        "engine",
        "families",
        "kernels",
        "layers",
        "matching",
        "models",
        "offline",
        "prompt",
        "router",
        "server",
        "service",
        "store",
        "transport",
        "wire",
    },
    "doctor": {
        "algebra",
        "engine",
        "families",
        "kernels",
        "models",
        "prompt",
        "service",
        "store",
        "transport",
    },
    "cli": {"bench", "client", "demo", "doctor", "offline", "server", "wire"},
}

TEXT_WING = {
    "prompt",
    "matching",
    "router",
    "wire",
    "service",
    "warming",
    "server",
    "client",
    "integrations",
}
GPU_WING = {"kernels", "algebra", "families", "layers", "models", "store", "links", "engine"}
HTTP = {"aiohttp", "httpx", "pydantic", "requests", "starlette", "fastapi", "urllib3"}
FRAMEWORKS = {"langchain_core", "langchain", "llama_index"}
TENSORS = {"torch", "triton", "transformers", "fla", "safetensors", "numpy"}

MODULES = {module_name(path): path for path in python_files()}


def imported_rooms(path: Path) -> dict[str, Import]:
    """Rooms of the package that a file imports at run time, each with one import that does it."""
    found = {}
    for one in runtime_imports(path):
        for module in imported_modules(one, frozenset(MODULES)):
            if module.split(".")[0] == "hypic_sdk" and room(module):
                found[room(module)] = one
    return found


def outside_packages(path: Path) -> dict[str, Import]:
    """Third-party and standard packages that a file imports at run time."""
    return {
        one.module.split(".")[0]: one
        for one in runtime_imports(path)
        if one.module.split(".")[0] != "hypic_sdk"
    }


def test_each_room_has_a_row_in_the_table():
    rooms = {room(module) for module in MODULES} - {""}
    assert rooms <= set(MAY_IMPORT) | GROUND_FLOOR, rooms - set(MAY_IMPORT) - GROUND_FLOOR


def test_rows_name_rows():
    unknown = {name for row in MAY_IMPORT.values() for name in row} - set(MAY_IMPORT)
    assert not unknown


def test_the_table_has_no_loop():
    """Were two rooms each above the other, the table would forbid nothing."""
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [
            name for name, row in MAY_IMPORT.items() if name not in order and row <= set(order)
        ]
        assert ready, f"a loop among {set(MAY_IMPORT) - set(order)}"
        order.extend(ready)


@pytest.mark.parametrize("owner", sorted(MAY_IMPORT))
def test_rooms_only_import_downwards(owner):
    allowed = MAY_IMPORT[owner] | GROUND_FLOOR | {owner}
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{found.line} imports {target}"
        for module, path in MODULES.items()
        if room(module) == owner
        for target, found in imported_rooms(path).items()
        if target not in allowed
    ]
    assert not wrong, "\n".join(wrong)


def test_the_ground_floor_imports_only_itself():
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{found.line} imports {target}"
        for module, path in MODULES.items()
        if room(module) in GROUND_FLOOR
        for target, found in imported_rooms(path).items()
        if target not in GROUND_FLOOR
    ]
    assert not wrong, "\n".join(wrong)


def test_the_face_imports_nothing_but_the_version():
    assert set(imported_rooms(PACKAGE / "__init__.py")) == {"version"}


@pytest.mark.parametrize(
    ("wing", "barred"),
    [
        (TEXT_WING, TENSORS),
        (GPU_WING, HTTP),
        (GPU_WING, FRAMEWORKS),
        (GROUND_FLOOR, TENSORS | HTTP),
    ],
    ids=["text-no-tensors", "gpu-no-http", "gpu-no-frameworks", "ground-floor"],
)
def test_walls_between_the_wings(wing, barred):
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{found.line} imports {package}"
        for module, path in MODULES.items()
        if room(module) in wing
        for package, found in outside_packages(path).items()
        if package in barred
    ]
    assert not wrong, "\n".join(wrong)


def test_frameworks_are_imported_by_their_adapters_only():
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports {package}"
        for module, path in MODULES.items()
        for package in outside_packages(path)
        if package in FRAMEWORKS and room(module) != "integrations"
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_load_without_loops():
    """Among imports that run when a module loads; those inside functions come later."""
    edges = {
        module: {
            target
            for one in runtime_imports(path)
            if not one.deferred
            for target in imported_modules(one, frozenset(MODULES))
            if target in MODULES and target != module
        }
        for module, path in MODULES.items()
    }
    loaded: set[str] = set()
    while True:
        ready = {name for name in edges if name not in loaded and edges[name] <= loaded}
        if not ready:
            break
        loaded |= ready
    in_loops = {name: sorted(edges[name] - loaded) for name in edges if name not in loaded}
    assert not in_loops, in_loops


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `statement`."""
    names = "' '.join({m.split('.')[0] for m in sys.modules})"
    script = f"import sys\n{statement}\nsys.stdout.write({names})"
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


def test_the_probe_sees_what_is_loaded():
    """Else the tests below could not fail."""
    assert "torch" in loaded_by("import hypic_sdk.algebra.rotary")


def test_importing_the_package_loads_nothing_heavy():
    heavy = {
        "torch",
        "transformers",
        "aiohttp",
        "pydantic",
        "tokenizers",
        "numpy",
        "typer",
    } | FRAMEWORKS
    assert not loaded_by("import hypic_sdk") & heavy


def test_public_names_of_the_text_wing_load_no_torch():
    statement = "from hypic_sdk import EngineConfig, PromptTooLong, segment_id; segment_id('a')"
    assert not loaded_by(statement) & TENSORS


def test_the_text_wing_loads_no_torch():
    """Every module of it that is there, in one process; adapters load their frameworks besides."""
    rooms = (TEXT_WING | {"transport"}) - {"integrations"}
    modules = sorted(module for module in MODULES if room(module) in rooms)
    assert {"hypic_sdk.prompt.segment", "hypic_sdk.service"} <= set(modules)
    assert not loaded_by(f"import {', '.join(modules)}") & TENSORS


def test_the_command_line_loads_no_torch_before_a_command_runs():
    assert not loaded_by("import hypic_sdk.cli") & TENSORS


def test_the_documented_table_is_this_one():
    text = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| room | may import |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    documented = {
        room_cell.strip(" `"): set(allowed.replace("`", "").replace(",", " ").split()) - {"nothing"}
        for room_cell, allowed in rows
    }
    assert documented == MAY_IMPORT
