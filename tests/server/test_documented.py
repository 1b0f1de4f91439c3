"""What docs/server.md lists is what there is."""

from __future__ import annotations

import re

from hypic_sdk.errors import HypicError, ModelFileError, RequestCancelled, walk
from hypic_sdk.server.routes.table import ROUTES
from hypic_sdk.telemetry import Telemetry
from tests.source_tree import REPOSITORY

TEXT = (REPOSITORY / "docs" / "server.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_endpoint():
    listed = section("Endpoints")
    for route in ROUTES:
        name = route.path.removeprefix("/v1/segments/warm/")
        assert route.path in listed or f".../{name}" in listed, route.path


def test_every_error_that_a_caller_meets():
    rows = [line for line in section("Errors").splitlines() if line.startswith("| ")]
    # the operator's own, at the start; nobody asked for; and a capability that is missing now
    hidden = {"config_error", ModelFileError.code, RequestCancelled.code, "unsupported_capability"}
    for error_class in walk():
        if error_class.code in hidden or error_class is HypicError:
            continue
        [row] = [row for row in rows if f"`{error_class.code}`" in row]
        assert f"`{error_class.__name__}`" in row
        assert str(error_class.http_status) in row or "none came" in row


def test_every_metric():
    names = set(re.findall(r"^# TYPE (\w+)", Telemetry().text().decode(), re.MULTILINE))
    listed = set(re.findall(r"`(hypic_\w+)`", section("Metrics")))
    assert {name for name in names if not name.endswith("_created")} == listed
