"""Texts registered as segments, and what documents with these texts are told."""

from __future__ import annotations

import asyncio

import pytest

from hypic_sdk.errors import ConnectionFailed
from hypic_sdk.integrations import registering
from hypic_sdk.integrations.registering import Registered, aregister, forget, register
from hypic_sdk.integrations.served import Served
from hypic_sdk.offline import LocalHypic
from hypic_sdk.prompt.segment import segment_id
from tests.integrations.recording import AsyncRecording, Recording
from tests.service.services import saying, service

A = "Ada lives in Norwick and keeps a parrot. " * 3 + "End of A"
B = "Tomas lives in Marlow Bay and plays the cello. " * 3 + "End of B"
GIVEN = (f" {A}\n", "short", B, A)


@pytest.mark.parametrize("is_async", [False, True], ids=["waiting", "on a loop"])
class TestRegister:
    def told(self, client: Recording, is_async: bool) -> Registered:
        if is_async:
            served = Served(client=client, async_client=client)
            return asyncio.run(aregister(served, GIVEN, warm="none"))
        return register(Served(client=client), GIVEN, warm="none")

    def test_each_text_once_and_what_is_too_short_not_at_all(self, is_async):
        client = AsyncRecording() if is_async else Recording()
        told = self.told(client, is_async)
        assert client.registered == [([A, B], "none")]
        assert dict(told.ids) == {A: segment_id(A), B: segment_id(B)}
        marks = [told.marks(text) for text in GIVEN]
        assert marks == [
            {"hypic_segment_id": segment_id(A)},
            {},
            {"hypic_segment_id": segment_id(B)},
            {"hypic_segment_id": segment_id(A)},
        ]

    def test_an_error_is_told_of_every_document(self, is_async):
        client = (AsyncRecording if is_async else Recording)(error=ConnectionFailed("away"))
        told = self.told(client, is_async)
        assert [told.marks(text) for text in GIVEN] == [{"hypic_error": "connection_failed"}] * 4


@pytest.mark.parametrize("num_per_call", [1, 3, 100])
def test_forgetting_any_number(num_per_call, monkeypatch):
    monkeypatch.setattr(registering, "MAX_IDS_PER_CALL", num_per_call)
    local = LocalHypic.over(service(saying("x")))
    served = Served(client=local)
    made = local.segments.create_many(f"town {n}" for n in range(7))
    forget(served, [one.id for one in made[:6]] + ["seg_" + "a" * 32])
    assert [one.id for one in local.segments.list().data] == [made[6].id]
    forget(served, [])


class TestServed:
    def test_options_of_a_call_overrule_the_models_own(self):
        served = Served(temperature=0.5, max_tokens=3, hypic={"mode": "off", "session_id": "s"})
        asked = served._asked({"max_tokens": 7, "stream": True, "hypic": {"mode": "pic"}})
        assert asked == {
            "temperature": 0.5,
            "max_tokens": 7,
            "hypic": {"mode": "pic", "session_id": "s"},
        }
        assert Served()._asked({}) == {}

    def test_what_is_looked_for_in_prompts(self):
        served = Served()
        assert served._known() is served.registry
        assert Served(auto_segment=False)._known() is None

    def test_nothing_secret_is_written(self):
        assert "api_key" not in Served(api_key="a secret").model_dump()
        assert "a secret" not in repr(Served(api_key="a secret"))
