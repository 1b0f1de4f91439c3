"""Whatever the OpenAPI document lets through (and some that it does not) gets a proper answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.scripted.opening import open_scripted
from hypic_sdk.scripted.rules import Script
from hypic_sdk.server.app import create_app
from hypic_sdk.server.openapi import document
from hypic_sdk.server.quota import Quota
from hypic_sdk.server.routes.table import ROUTES
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.settings import ServerSettings
from tests.server.served import call, serve

if TYPE_CHECKING:
    from schemathesis import Case

SCHEMA = schemathesis.openapi.from_dict(json.loads(document(ROUTES)))
FORBIDDEN = {500, 501, 502, 504}
CONFORMS = [response_schema_conformance, status_code_conformance, content_type_conformance]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A real server over the scripted engine; with small quotas, so that these are met too."""
    opened = open_scripted(Script(), EngineConfig())
    with opened.worker as worker:
        factory = ServiceFactory.from_folder(reader_path(), worker, model_name="scripted")
        quota = Quota(num_segments=40, text_bytes=4000, warm_jobs=4, pinned_bytes=10**6)
        settings = ServerSettings(quota=quota, upkeep_s=0.05, sweep_s=0.05)
        with serve(create_app(factory, worker, settings=settings)) as url:
            yield url
            assert call(url, "GET", "/health/ready").status == 200


@SCHEMA.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_operation(case: Case, url: str) -> None:
    response = case.call(base_url=url, timeout=30)
    case.validate_response(response, checks=CONFORMS)
    assert response.status_code not in FORBIDDEN, (case.as_curl_command(), response.text)
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"][0]) > 0
    if response.status_code >= 400:
        error = json.loads(response.text)["error"]
        assert error["message"]
        assert error["request_id"] == response.headers["x-request-id"][0]
