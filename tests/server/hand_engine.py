"""An engine process without an engine: it says that it is ready, with a fingerprint by its place.

What it says is in the name of its model's folder: "same", or "odd", where w1 has another.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec

from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.control import Alive, EngineReady
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings


def main() -> None:
    folder, parent = Path(sys.argv[1]), os.getppid()
    settings = msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=ProcessSettings)
    assert settings.peers is not None
    is_odd = settings.model_folder == "odd" and settings.peers.index == 1
    time.sleep(0.5 * settings.peers.index)  # w0 is first
    with Channel(folder, is_api=False) as channel:
        compute = f"a CPU, {2 if is_odd else 1} threads; pair=float32"
        channel.send(EngineReady("model", 500, 4096, (2,), 4, 0.0, compute, "float32"))
        while os.getppid() == parent:
            channel.send(Alive(settings.peers.worker))
            channel.receive(0.5)


if __name__ == "__main__":
    main()
