"""Who is let in, with what; each error in one envelope."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import quote

import pytest

from hypic_sdk.errors import ConfigError, walk
from hypic_sdk.server.app import create_app
from hypic_sdk.server.quota import Quota
from hypic_sdk.server.settings import MIB, ServerSettings
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.version import __version__
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve, serve_fake

KEYS = {"key-of-red-0123456789": "red", "key-of-blue-0123456789": "blue"}
RED = {"Authorization": "Bearer key-of-red-0123456789"}
BLUE = {"Authorization": "Bearer key-of-blue-0123456789"}
ASK = {"messages": [{"role": "user", "content": "Where?"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def worker() -> PushingWorker:
    return PushingWorker(tiny.tokenizer().encode_text("a town"))


@pytest.fixture(scope="module")
def url(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker, settings=ServerSettings(max_body_bytes=MIB)) as url:
        yield url


@pytest.fixture(scope="module")
def keyed(worker: PushingWorker) -> Iterator[str]:
    with serve_fake(worker, tenants=Tenants(KEYS)) as url:
        yield url


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Client-Request-Id"])
@pytest.mark.parametrize(
    ("given", "is_told"),
    [("trace-7/a", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("\u00e9", False)],
)
def test_a_caller_s_own_id_comes_back_beside_ours(url, name, given, is_told):
    headers = {name: given.encode("latin-1").decode("latin-1")}
    for path, body in ((CHAT, ASK), ("/v1/nothing", {})):
        answer = call(url, "POST", path, body, headers=headers)
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.headers.get("x-client-request-id") == (given if is_told else None)


def test_health_and_version_need_no_key(keyed, worker):
    assert call(keyed, "GET", "/version").json == {"version": __version__}
    assert call(keyed, "GET", "/health").json == call(keyed, "GET", "/health/ready").json
    worker.ready = False
    try:
        assert call(keyed, "GET", "/health").status == 503
    finally:
        worker.ready = True


class TestWithoutKeys:
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
    def test_foreign_host_names_are_refused(self, url, host):
        answer = call(url, "POST", CHAT, ASK, headers={"Host": host})
        assert (answer.status, answer.error["code"]) == (403, "permission_denied")

    @pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1234", "[::1]:80", "LOCALHOST:9"])
    def test_names_of_this_machine_are_not(self, url, host):
        assert call(url, "POST", CHAT, ASK, headers={"Host": host}).status == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://[broken"},
            {"Sec-Fetch-Site": "cross-site"},
        ],
        ids=str,
    )
    def test_other_sites_pages_are_refused(self, url, headers):
        assert call(url, "POST", CHAT, ASK, headers=headers).status == 403
        assert call(url, "GET", "/v1/segments", headers=headers).status == 403

    def test_this_machine_s_own_pages_are_not(self, url):
        headers = {"Origin": "http://localhost:3000"}
        assert call(url, "POST", CHAT, ASK, headers=headers).status == 200

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
    def test_a_body_is_json(self, url, kind):
        answer = call(url, "POST", CHAT, ASK, headers={"Content-Type": kind})
        assert (answer.status, answer.error["code"]) == (415, "invalid_request")

    def test_it_is_never_served_to_other_machines(self, worker):
        app = create_app(lambda namespace, limits: None, worker)
        with pytest.raises(ConfigError, match="keys"), serve(app, host="0.0.0.0"):
            pass

    def test_health_needs_nothing(self, url):
        assert call(url, "GET", "/health/live", headers={"Host": "lb.example"}).status == 200


class TestKeys:
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer"},
            {"Authorization": "Bearer key-of-green-0123456789"},
            {"Authorization": "Basic key-of-red-0123456789"},
            {"Authorization": "Bearer \xff\xfe"},
        ],
        ids=str,
    )
    def test_no_call_without_a_known_one(self, keyed, headers):
        for method, path, body in (("POST", CHAT, ASK), ("GET", "/metrics", None)):
            answer = call(keyed, method, path, body, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "authentication_failed")
            assert answer.headers["www-authenticate"] == "Bearer"

    def test_hosts_are_not_looked_at(self, keyed):
        headers = {**RED, "Host": "api.example"}
        assert call(keyed, "POST", CHAT, ASK, headers=headers).status == 200

    def test_tenants_do_not_see_each_other(self, keyed):
        body = {"segments": [{"text": "red's own town " * 20}], "warm": "wait"}
        made = call(keyed, "POST", "/v1/segments", body, headers=RED).json
        [segment] = made["data"]
        job = made["job"]["id"]
        assert call(keyed, "GET", f"/v1/segments/{segment['id']}", headers=RED).status == 200
        for path in (f"/v1/segments/{segment['id']}", f"/v1/segments/warm/{job}"):
            assert call(keyed, "GET", path, headers=BLUE).status == 404
        assert call(keyed, "GET", "/v1/segments", headers=BLUE).json["data"] == []
        ids = {"segment_ids": [segment["id"]]}
        states = call(keyed, "POST", "/v1/segments/lookup", ids, headers=BLUE).json
        assert states[segment["id"]]["state"] == "unknown"
        by_id = {**ASK, "documents": [{"segment_id": segment["id"]}]}
        refused = call(keyed, "POST", CHAT, by_id, headers=BLUE)
        assert (refused.status, refused.error["code"]) == (422, "segment_missing")
        assert refused.error["details"]["segment_ids"] == [segment["id"]]
        # nor is the same text warm for the other one
        with_text = {**ASK, "documents": [{"text": "red's own town " * 20}]}
        for headers, status in ((BLUE, "cold"), (BLUE, "hit"), (RED, "hit")):
            answer = call(keyed, "POST", CHAT, with_text, headers=headers).json
            assert [one["status"] for one in answer["hypic"]["segments"]] == [status]


class TestCaps:
    def test_a_long_body_is_413_with_the_limit(self, url):
        answer = call(url, "POST", CHAT, b'{"messages": "' + b"x" * MIB + b'"}')
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")
        assert answer.error["details"]["limit_bytes"] == MIB

    def test_also_in_pieces(self, url):
        """A chunked body has no length that could be looked at first."""
        connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
        pieces = (b"x" * 65536 for _ in range(20))
        try:
            connection.request(
                "POST", CHAT, pieces, {"Content-Type": "application/json"}, encode_chunked=True
            )
            status = connection.getresponse().status
        except (BrokenPipeError, ConnectionResetError):
            status = 413  # it hung up on us before we had sent everything
        finally:
            connection.close()
        assert status == 413

    def test_a_body_that_does_not_come(self, worker):
        with serve_fake(worker, settings=ServerSettings(body_timeout_s=0.2)) as url:
            connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
            connection.putrequest("POST", CHAT)
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", "100")
            connection.endheaders(b'{"messages"')
            answer = connection.getresponse()
            assert (answer.status, b"deadline_exceeded" in answer.read()) == (408, True)
            connection.close()

    def test_requests_in_flight(self):
        worker = PushingWorker([65] * 50, pause_s=0.02)
        settings = ServerSettings(quota=Quota(in_flight=1))
        with serve_fake(worker, settings=settings) as url:
            connection = HTTPConnection(url.removeprefix("http://"), timeout=30)
            headers = {"Content-Type": "application/json"}
            body = b'{"messages": [{"role": "user", "content": "x"}], "stream": true}'
            connection.request("POST", CHAT, body, headers)
            first = connection.getresponse()
            answer = call(url, "POST", CHAT, ASK)
            assert (answer.status, answer.error["code"]) == (429, "queue_full")
            assert answer.headers["retry-after"] == "1"
            first.read()
            connection.close()
            assert call(url, "POST", CHAT, ASK).status == 200

    @pytest.mark.parametrize(
        "limit", ["0", "1001", "-1", "x", "1e3", "\N{FULLWIDTH DIGIT NINE}", "9" * 99]
    )
    def test_pages(self, url, limit):
        answer = call(url, "GET", f"/v1/segments?limit={quote(limit)}")
        assert (answer.status, answer.error["param"]) == (400, "limit")


class TestErrors:
    @pytest.mark.parametrize("error_class", list(walk()), ids=lambda one: one.__name__)
    def test_each_class_has_its_status_and_code(self, url, worker, error_class):
        worker.refuses = error_class("what happened", num_bytes=9)
        try:
            answer = call(url, "POST", CHAT, ASK)
        finally:
            worker.refuses = None
        assert answer.status == error_class.http_status
        error = answer.error
        assert set(error) == {"type", "code", "message", "param", "details", "request_id"}
        assert (error["code"], error["message"]) == (error_class.code, "what happened")
        assert error["details"] == {"num_bytes": 9}
        assert error["request_id"] == answer.headers["x-request-id"]
        told_when = answer.status in (429, 503) or error_class.code == "worker_lost"
        assert ("retry-after" in answer.headers) == told_when
        assert answer.headers["x-should-retry"] == str(error_class.retryable).lower()

    def test_an_unknown_path_and_method(self, url):
        assert call(url, "GET", "/v1/nothing").error["type"] == "not_found_error"
        answer = call(url, "DELETE", "/v1/models")
        assert (answer.status, answer.headers["allow"]) == (405, "GET")
        assert answer.error["code"] == "invalid_request"

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"\xff\xfe",
            b'{"messages": NaN}',
            b'{"a": ' + b"9" * 5000 + b"}",
            b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"messages": []}',
            b'{"messages": [{"role": "user"}]}',
            b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
            b'{"messages": [{"role": "user", "content": "x"}], "hypic": {"mod": "off"}}',
            b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        ],
        ids=lambda body: body[:40].decode("latin-1"),
    )
    def test_bodies_that_are_wrong(self, url, body):
        answer = call(url, "POST", CHAT, body)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


class TestKeysFile:
    def test_lines_of_name_and_key(self, tmp_path):
        path = tmp_path / "keys"
        path.write_text("# ours\nred key-of-red-0123456789\n\nblue key-of-blue-0123456789 # his\n")
        tenants = Tenants.from_file(path)
        assert tenants.of(RED["Authorization"]).name == "red"
        assert tenants.of(BLUE["Authorization"]).namespace == "blue"

    def test_quotas_of_a_tenant(self, tmp_path):
        path = tmp_path / "keys"
        path.write_text(
            "red key-of-red-0123456789 num_segments=7 text_bytes=3MiB # little\n"
            "red second-key-of-red-0123\nblue key-of-blue-0123456789\n"
        )
        tenants = Tenants.from_file(path)
        red = tenants.of(RED["Authorization"])
        assert red == tenants.of("Bearer second-key-of-red-0123")
        assert red.quota == Quota(num_segments=7, text_bytes=3 * MIB)
        assert tenants.of(BLUE["Authorization"]).quota is None
        assert [one.name for one in tenants.all] == ["red", "blue"]

    @pytest.mark.parametrize(
        "words",
        ["segments=7", "text_bytes", "text_bytes=", "text_bytes=-1", "text_bytes=3mb",
         "in_flight=x", "in_flight=1 in_flight=2",
         "in_flight=1\nred second-key-of-red-0123 in_flight=2"],
    )  # fmt: skip
    def test_quotas_that_are_none(self, tmp_path, words):
        path = tmp_path / "keys"
        path.write_text(f"red key-of-red-0123456789 {words}\n")
        with pytest.raises(ConfigError, match="keys:"):
            Tenants.from_file(path)

    @pytest.mark.parametrize(
        "text",
        ["", "red", "red short", "a/b key-of-red-0123456789", "a b c", "r k" * 9,
         "a key-of-red-0123456789\nb key-of-red-0123456789"],
    )  # fmt: skip
    def test_what_is_no_such_file_is_told(self, tmp_path, text):
        path = tmp_path / "keys"
        path.write_text(text)
        with pytest.raises(ConfigError):
            Tenants.from_file(path)

    def test_no_file(self, tmp_path):
        with pytest.raises(ConfigError, match="keys file"):
            Tenants.from_file(tmp_path / "none")
