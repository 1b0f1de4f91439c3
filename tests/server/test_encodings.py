"""Bodies in an encoding: one that can not be read is the caller's mistake, and is named."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve_fake

BODY = b'{"prompt": "hello"}'
ENCODINGS = ("gzip", "deflate", "br", "zstd", "compress", "identity", "x", "gzip, gzip", "GZIP", "")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve_fake(PushingWorker()) as one:
        yield one


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(body=st.one_of(st.just(BODY), st.just(b""), st.binary(max_size=40)))
def test_no_encoding_is_the_servers_fault(url: str, encoding: str, body: bytes) -> None:
    for sent in (body, gzip.compress(body)[:-3], zlib.compress(body) + b"more"):
        answer = call(url, "POST", "/v1/tokenize", sent, headers={"Content-Encoding": encoding})
        assert answer.status < 500, answer.text
        if answer.status >= 400:
            assert answer.error["code"]


def test_a_false_encoding_is_named(url: str) -> None:
    answer = call(url, "POST", "/v1/tokenize", BODY, headers={"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert "gzip" in answer.error["message"]


def test_a_true_one_is_read(url: str) -> None:
    for encoding, sent in (("gzip", gzip.compress(BODY)), ("deflate", zlib.compress(BODY))):
        answer = call(url, "POST", "/v1/tokenize", sent, headers={"Content-Encoding": encoding})
        assert answer.status == 200, answer.text


def test_what_unpacks_to_too_much_is_too_large(url: str) -> None:
    bomb = gzip.compress(b" " * (80 << 20))
    answer = call(url, "POST", "/v1/tokenize", bomb, headers={"Content-Encoding": "gzip"})
    assert answer.status == 413
