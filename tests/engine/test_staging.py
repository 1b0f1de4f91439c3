"""Numbers go out of memory that is taken once."""

from __future__ import annotations

import torch

from hypic_sdk.engine.staging import Staging


def test_what_is_written_arrives_each_time():
    staging, there = Staging(5, torch.device("cpu")), torch.zeros(5, dtype=torch.int64)
    addresses = set()
    for turn in range(6):
        host = staging.next()
        host[:] = range(turn, turn + 5)
        addresses.add(host.ctypes.data)
        staging.send(there)
        host[:] = -1  # what was sent was read, here at once
        assert there.tolist() == list(range(turn, turn + 5))
    assert len(addresses) == 1
