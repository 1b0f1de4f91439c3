"""The engine process of `--model scripted`: the channel of a real one, a script behind it.

Run as `python -m hypic_sdk.scripted.process FOLDER`, as `hypic_sdk.engine.process` is.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from hypic_sdk.errors import HypicError, WorkerError
from hypic_sdk.scripted.opening import Opened, open_scripted
from hypic_sdk.scripted.rules import Script, read_script
from hypic_sdk.scripted.worker import ScriptedWorker
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Alive,
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    FinishRequest,
)
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings

logger = logging.getLogger(__name__)

ALIVE_EVERY_S = 0.8
POLL_S = 0.5  # how soon a lost parent is noticed


def main() -> None:
    """Serve until the parent is gone."""
    folder = Path(sys.argv[1])
    settings = msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=ProcessSettings)
    logging.basicConfig(
        level=settings.log_level,
        format="%(asctime)s %(levelname)s engine %(name)s %(message)s",
    )
    # a terminal's Ctrl-C goes to the whole group; the API process drains and then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    with Channel(folder, is_api=False) as channel:
        opened = _open(settings, channel)
        if opened is not None:
            with opened.worker as worker:
                told_s = 0.0
                while os.getppid() == parent:
                    if time.monotonic() - told_s > ALIVE_EVERY_S:
                        told_s = time.monotonic()
                        channel.send(Alive(""))
                    _take(channel, worker)


def _open(settings: ProcessSettings, channel: Channel) -> Opened | None:
    try:
        script = Script()
        if settings.script_file is not None:
            script = read_script(Path(settings.script_file))
        opened = open_scripted(script, settings.config)
    except HypicError as error:
        channel.send(EngineFailed(error.to_payload()))
        time.sleep(POLL_S)  # what is queued is dropped by closing; let it go out
        return None
    channel.send(opened.ready)
    return opened


def _take(channel: Channel, worker: ScriptedWorker) -> None:
    try:
        message = channel.receive(POLL_S)
    except WorkerError:
        logger.exception("a message was not understood")
        return
    if message is not None:
        handle(channel, worker, message)


def handle(channel: Channel, worker: ScriptedWorker, message: Message) -> None:
    """Begin what a message asks for."""
    if isinstance(message, EngineRequest | WarmRequest):
        try:
            worker.submit(message, channel.send)
        except HypicError:
            logger.exception("a request was refused request=%s", message.request_id)
    elif isinstance(message, CancelRequest):
        worker.cancel(message.request_id)
    elif isinstance(message, FinishRequest):
        worker.finish(message.request_id, message.reply_index)
    elif isinstance(message, Ask):
        try:
            answer = worker.ask(message.question, message.parts, message.namespace, message.number)
            channel.send(Answer(message.ask_id, answer))
        except HypicError as error:
            channel.send(Answer(message.ask_id, error=error.to_payload()))
    else:
        logger.error("a message of another direction: %s", type(message).__name__)


if __name__ == "__main__":
    main()
