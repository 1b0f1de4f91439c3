"""In interpreter mode every kernel of these tests is watched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernels.watched_memory import watched


@pytest.fixture(autouse=True, scope="module")
def _watched() -> Iterator[None]:
    """No kernel touches memory that it was not given, whatever a test here runs it for."""
    with watched():
        yield
