"""The public face: sorted, complete, resolved at first use."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import hypic_sdk
from hypic_sdk import errors


def test_public_names_are_sorted_and_unique():
    assert hypic_sdk.__all__ == sorted(set(hypic_sdk.__all__))


def test_each_name_has_one_owner():
    assert set(hypic_sdk.__all__) == set(hypic_sdk._OWNERS) | {"__version__"}
    assert list(hypic_sdk._OWNERS) == sorted(hypic_sdk._OWNERS)


def test_type_checkers_see_the_same_names_from_the_same_owners():
    tree = ast.parse(Path(hypic_sdk.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == hypic_sdk._OWNERS


@pytest.mark.parametrize("name", sorted(hypic_sdk._OWNERS))
def test_a_name_is_what_its_owner_says(name):
    assert getattr(hypic_sdk, name) is getattr(import_module(hypic_sdk._OWNERS[name]), name)


def test_dir_lists_the_public_names():
    assert set(hypic_sdk.__all__) <= set(dir(hypic_sdk))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LocalHypik'"):
        hypic_sdk.LocalHypik  # noqa: B018  the access is what is tested


def test_a_submodule_is_still_importable_by_name():
    from hypic_sdk import version

    assert version.__version__ == hypic_sdk.__version__


def test_every_error_is_public():
    assert {error.__name__ for error in errors.walk()} <= set(hypic_sdk.__all__)
