"""An adapter without its framework, or beside another one's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.source_tree import PACKAGE, REPOSITORY, runtime_imports

ADAPTERS = {
    "langchain": ("langchain_core", "langchain"),
    "llama_index": ("llama_index", "llama-index"),
}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_its_framework_it_says_which_extra(adapter):
    package, extra = ADAPTERS[adapter]
    script = (
        f"import sys; sys.modules[{package!r}] = None\nimport hypic_sdk.integrations.{adapter}\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert f"pip install 'hypic-sdk[{extra}]'" in last


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_imports_neither_the_other_adapter_nor_its_framework(adapter):
    others = {name: package for name, (package, _) in ADAPTERS.items() if name != adapter}
    for path in (PACKAGE / "integrations" / adapter).glob("*.py"):
        for one in runtime_imports(path):
            for name, package in others.items():
                assert not one.module.startswith(f"hypic_sdk.integrations.{name}"), path
                assert one.module.split(".")[0] != package, path


def test_what_adapters_share_loads_no_framework():
    for path in (PACKAGE / "integrations").glob("*.py"):
        for one in runtime_imports(path):
            assert one.module.split(".")[0] not in {"langchain_core", "langchain", "llama_index"}
