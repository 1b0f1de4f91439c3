"""Token ids that no vocabulary has are refused with both ends of it."""

from __future__ import annotations

import pytest

from hypic_sdk.errors import RequestError
from hypic_sdk.transport.messages import WarmRequest
from tests.engine.harness import drain, engine_of, events_of, request_of
from tests.engine.prompts import VOCAB, inner, prompt_of


@pytest.mark.parametrize("token_id", [-1, VOCAB, 2**31 - 1, 2**31, 2**70, -(2**40)])
def test_a_token_id_outside_the_vocabulary_is_named(token_id):
    """Also one that four bytes do not hold."""
    engine = engine_of()
    message = request_of(prompt_of((5, token_id, 7)))
    engine.submit(message)
    [refused] = events_of(drain(engine), message.request_id)
    error = refused.error
    assert error["code"] == RequestError.code
    assert str(token_id) in error["message"]
    assert error["details"] == {"vocab_size": VOCAB}
    segment = inner((5, token_id, 7))
    engine.warm(WarmRequest("w", (segment,)))
    [told] = drain(engine)
    assert str(token_id) in told.error["message"]
