"""Callers name no workers, addresses or slots: whatever a body holds, hints are a router's."""

from __future__ import annotations

import pytest

from hypic_sdk.transport.messages import EngineRequest
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker
from tests.server.served import call, serve_fake

NAMES = {
    "placements": [{"segment_id": "seg_1", "worker": "w0-0"}],
    "worker": "w0-0",
    "combine": "w1-0",
    "host": "10.0.0.1",
    "port": 1,
    "endpoint": "tcp://10.0.0.1:1",
    "epoch": 7,
    "state_slot": 3,
    "kv_slots": [1, 2, 3],
}


@pytest.mark.parametrize("where", ["top", "hypic", "document"])
@pytest.mark.parametrize("name", NAMES)
def test_a_body_that_names_a_worker_is_refused_or_what_it_names_is_ignored(
    where: str, name: str
) -> None:
    worker = PushingWorker(tiny.tokenizer().encode_text("there"))
    body = {
        "messages": [{"role": "user", "content": "Where?"}],
        "documents": [{"text": "Norwick lies on the Ash."}],
    }
    plain = dict(body)
    stolen = {name: NAMES[name]}
    if where == "top":
        body |= stolen
    elif where == "hypic":
        body["hypic"] = stolen
    else:
        body["documents"] = [{"text": "Norwick lies on the Ash.", **stolen}]
    with serve_fake(worker) as url:
        call(url, "POST", "/v1/chat/completions", plain)
        status = call(url, "POST", "/v1/chat/completions", body).status
    worker.join()
    usual, *asked = [one for one in worker.messages if isinstance(one, EngineRequest)]
    assert status in (200, 400, 422)
    assert len(asked) == (status == 200)
    for message in asked:
        assert message.placements == ()
        assert message.prompt == usual.prompt
