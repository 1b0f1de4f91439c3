"""The error tree: what it draws is what it is, and what it sends comes back."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk import errors
from hypic_sdk.errors import (
    CapacityError,
    ConnectionFailed,
    HypicError,
    PoolExhausted,
    PromptTooLong,
    RequestError,
    WorkerError,
    from_payload,
    walk,
)

TREE = list(walk())
by_name = pytest.mark.parametrize("error_class", TREE, ids=lambda error_class: error_class.__name__)

# 499 is not in HTTPStatus: the caller closed the connection, as nginx writes it
KNOWN_STATUS = {status.value for status in HTTPStatus} | {499}

json_values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(), st.floats(allow_nan=False)
)
# names that the constructor has taken already
detail_names = st.from_regex(r"[a-z][a-z_]{0,12}", fullmatch=True).filter(
    lambda name: name not in {"message", "request_id", "self"}
)


def test_the_walk_finds_every_class_of_the_module():
    """A class that is defined there but not derived from the root would be lost to the caller."""
    defined = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert set(TREE) == defined
    assert len(TREE) == len(defined)


def test_codes_are_unique():
    codes = [error_class.code for error_class in TREE]
    assert len(codes) == len(set(codes)), sorted(codes)


@by_name
def test_each_class_names_itself(error_class):
    """A code that was not set is its parent's; then the reply would raise the parent."""
    assert "code" in vars(error_class)
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error_class.code)
    assert error_class.http_status in KNOWN_STATUS
    assert 400 <= error_class.http_status < 600
    assert isinstance(error_class.retryable, bool)
    assert (error_class.__doc__ or "").strip()


@by_name
def test_the_kind_tells_who_must_act(error_class):
    """The caller's errors are 4xx; only waiting or another try makes a retry sensible."""
    if issubclass(error_class, RequestError):
        assert 400 <= error_class.http_status < 500
    assert error_class.retryable == issubclass(
        error_class, CapacityError | WorkerError | ConnectionFailed
    )


@by_name
def test_the_tree_is_at_most_two_levels_below_the_root(error_class):
    assert error_class.__mro__.index(HypicError) <= 2


def drawn_tree() -> dict[str, tuple[str | None, int | None]]:
    """Name -> (parent, status) as the module's docstring draws it; a line may name two classes."""
    drawn: dict[str, tuple[str | None, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^( *)([A-Z]\w+)(?:\s{2,}(.*?)(?:\s{2,}(\d{3}))?)?$", line)
        if match is None or not hasattr(errors, match[2]):
            continue
        indent, name, status = len(match[1]), match[2], match[4]
        above = [(column, other) for column, other in above if column < indent]
        drawn[name] = (above[-1][1] if above else None, int(status) if status else None)
        above.append((indent, name))
        # "try again: WorkerLost": a child that has no line of its own
        for child in re.findall(r": ([A-Z]\w+)$", match[3] or ""):
            drawn[child] = (name, int(status) if status else None)
    return drawn


def test_the_drawn_tree_is_the_real_one():
    real = {
        error_class.__name__: (
            error_class.__base__.__name__ if error_class is not HypicError else None,
            error_class.http_status if error_class is not HypicError else None,
        )
        for error_class in TREE
    }
    assert drawn_tree() == real


@by_name
@settings(max_examples=30)
@given(
    message=st.text(),
    request_id=st.none() | st.text(),
    details=st.dictionaries(detail_names, json_values, max_size=3),
)
def test_a_payload_comes_back_through_json(error_class, message, request_id, details):
    sent = error_class(message, request_id=request_id, **details)
    received = from_payload(json.loads(json.dumps(sent.to_payload())))
    assert type(received) is error_class
    assert str(received) == received.message == message
    assert received.request_id == request_id
    assert received.details == details
    assert received.to_payload() == sent.to_payload()


def test_an_unknown_code_becomes_the_root_and_keeps_its_words():
    error = from_payload({"code": "from_the_future", "message": "later", "details": {"a": 1}})
    assert type(error) is HypicError
    assert (error.message, error.details, error.retryable) == ("later", {"a": 1}, False)


def test_a_poor_payload_is_still_an_error():
    error = from_payload({})
    assert type(error) is HypicError
    assert error.message
    assert error.request_id is None
    assert error.details == {}


def test_details_are_fields_not_text():
    error = PromptTooLong("prompt has 9 tokens, limit is 8", num_tokens=9, limit_tokens=8)
    assert error.details == {"num_tokens": 9, "limit_tokens": 8}
    assert PoolExhausted("full").retryable


@pytest.mark.parametrize("details", [["a", "list"], "text", 7, {"message": "m", "request_id": 3}])
def test_odd_details_of_a_foreign_reply_do_no_harm(details):
    error = from_payload({"code": "queue_full", "message": "later", "details": details})
    assert (error.code, error.message) == ("queue_full", "later")
    assert error.details == (details if isinstance(details, dict) else {})


def test_an_error_that_knows_better_than_its_class_says_so_everywhere():
    never = PoolExhausted("can never fit", retryable=False)
    assert not never.retryable
    assert not from_payload(never.to_payload()).retryable
    assert PoolExhausted("full").retryable
