"""The reading of imports is under test too: a walk that finds nothing approves of anything."""

from __future__ import annotations

import ast

from tests.source_tree import Import, imported_modules, imports_below

SOURCE = """
import torch
from hypic_sdk.store import lru, Store
if TYPE_CHECKING:
    from hypic_sdk.engine import engine
else:
    import early
if fast:
    from hypic_sdk.kernels import backend
class Loader:
    import json
    def load(self):
        from hypic_sdk.models import loader
        return import_module("hypic_sdk.models.tiny_hybrid")
"""


def test_imports_are_found_wherever_they_stand():
    found = [(one.module, one.names, one.deferred) for one in imports_below(ast.parse(SOURCE))]
    assert found == [
        ("torch", (), False),
        ("hypic_sdk.store", ("lru", "Store"), False),
        ("early", (), False),
        ("hypic_sdk.kernels", ("backend",), False),
        ("json", (), False),
        ("hypic_sdk.models", ("loader",), True),
        ("hypic_sdk.models.tiny_hybrid", (), True),
    ]


def test_a_from_import_names_modules_or_things_in_one():
    known = frozenset({"a", "a.b", "a.c"})
    assert imported_modules(Import("a", ("b", "c"), False, 1), known) == ("a.b", "a.c")
    assert imported_modules(Import("a", ("b", "Thing"), False, 1), known) == ("a.b", "a")
    assert imported_modules(Import("a.b", (), False, 1), known) == ("a.b",)
