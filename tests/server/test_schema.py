"""Whatever the OpenAPI document lets through (and some that it does not) gets a proper answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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
KNOWN = "A town that is known."
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


def name_known_ones(case: Case, url: str) -> None:
    """What is made up names nothing: let half of the calls name a segment and a job that exist."""
    made = call(url, "POST", "/v1/segments", {"segments": [{"text": KNOWN}], "warm": "async"}).json
    if "data" not in made or not made["data"]:
        return  # the quotas are used up
    known = made["data"][0]["id"]
    is_turn = len(repr(case.path_parameters) + repr(case.body)) % 2
    if is_turn and "id" in (case.path_parameters or {}):
        is_job = "/warm/" in case.operation.path and made.get("job")
        case.path_parameters["id"] = made["job"]["id"] if is_job else known
    if is_turn and isinstance(case.body, dict) and case.body.get("segment_ids"):
        case.body["segment_ids"] = [known]
    if is_turn and case.operation.path == "/v1/chat/completions":
        message = {"role": "user", "content": "Where?"}
        case.body = {"messages": [message], "documents": [{"segment_id": known}], "max_tokens": 2}


@SCHEMA.parametrize()
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_operation(case: Case, url: str) -> None:
    name_known_ones(case, url)
    response = case.call(base_url=url, timeout=30)
    case.validate_response(response, checks=CONFORMS)
    assert response.status_code not in FORBIDDEN, (case.as_curl_command(), response.text)
    if response.status_code in (429, 503):
        assert int(response.headers["retry-after"][0]) > 0
    if response.status_code >= 400:
        error = json.loads(response.text)["error"]
        assert error["message"]
        assert error["request_id"] == response.headers["x-request-id"][0]


ASKED = [{"role": "user", "content": "Where?"}]
#: of what exists, so that replies are compared with their schemas and not only refusals
OF_KNOWN: list[tuple[str, str, int, dict[str, Any] | None]] = [
    ("POST", "/v1/segments", 200, {"segments": [{"text": KNOWN}]}),
    ("GET", "/v1/segments", 200, None),
    ("GET", "/v1/segments/{id}", 200, None),
    ("PATCH", "/v1/segments/{id}", 200, {"title": "a town"}),
    ("POST", "/v1/segments/lookup", 200, {"segment_ids": ["{id}"]}),
    ("POST", "/v1/segments/warm", 202, {"segment_ids": ["{id}"]}),
    ("GET", "/v1/segments/warm/{id}", 200, None),
    ("POST", "/v1/segments/warm/{id}/cancel", 200, None),
    ("POST", "/v1/chat/completions", 200,
     {"messages": ASKED, "documents": [{"segment_id": "{id}"}], "max_tokens": 2}),
    ("POST", "/v1/completions", 200, {"prompt": "Where?", "max_tokens": 2}),
    ("POST", "/v1/prompts/explain", 200, {"prompt": "Where?"}),
    ("POST", "/generate", 200, {"text": "Where?"}),
    ("DELETE", "/v1/segments/{id}", 200, None),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "status", "body"), OF_KNOWN)
def test_replies_about_what_exists(
    method: str, path: str, status: int, body: dict[str, Any] | None, url: str
) -> None:
    made = call(url, "POST", "/v1/segments", {"segments": [{"text": KNOWN}], "warm": "async"}).json
    known = made["data"][0]["id"]
    parameters = {"id": made["job"]["id"] if "/warm/" in path else known} if "{" in path else {}
    text = json.dumps(body).replace("{id}", known)
    case = SCHEMA[path][method].Case(path_parameters=parameters)
    if body is not None:
        case.body, case.media_type = json.loads(text), "application/json"
    response = case.call(base_url=url, timeout=30)
    assert response.status_code == status, response.text
    case.validate_response(response, checks=CONFORMS)
