"""The engine process: one model, one worker, a channel to the API process that started it.

Run as `python -m hypic_sdk.engine.process FOLDER`; FOLDER holds `settings.json`, and the sockets of
the channel.  It ends when its parent is gone, whatever became of it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.errors import HypicError, WorkerError
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    Question,
)
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings

logger = logging.getLogger(__name__)

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
        engine = open_engine(settings, channel)
        if engine is not None:
            with LocalWorker(engine) as worker:
                serve(channel, worker, parent)


def open_engine(settings: ProcessSettings, channel: Channel) -> Engine | None:
    """Load the model and say so; none if it failed, which is said too."""
    started_s = time.monotonic()
    try:
        engine = load_engine(Path(settings.model_folder), settings.config)
    except HypicError as error:
        channel.send(EngineFailed(error.to_payload()))
        time.sleep(POLL_S)  # what is queued is dropped by closing; let it go out
        return None
    described = engine.describe()
    channel.send(
        EngineReady(
            model_fingerprint=described.model_fingerprint,
            vocab_size=described.spec.vocab_size,
            max_context_tokens=described.settings.max_context_tokens,
            eos_token_ids=described.spec.eos_token_ids,
            conv_width=described.settings.conv_width,
            load_s=time.monotonic() - started_s,
        )
    )
    return engine


def serve(channel: Channel, worker: LocalWorker, parent: int) -> None:
    """Take messages until the parent is gone."""
    while os.getppid() == parent:
        try:
            message = channel.receive(POLL_S)
        except WorkerError:
            logger.exception("a message was not understood")
            continue
        if message is not None:
            handle(channel, worker, message)


def handle(channel: Channel, worker: LocalWorker, message: Message) -> None:
    """Begin what a message asks for; nothing here waits for a step of the engine."""
    if isinstance(message, EngineRequest | WarmRequest):
        try:
            worker.submit(message, channel.send)
        except HypicError:
            # the id is in flight already, so its events are the other's: a bug of the API process
            logger.exception("a request was refused request=%s", message.request_id)
    elif isinstance(message, CancelRequest):
        worker.cancel(message.request_id)
    elif isinstance(message, Ask):
        worker.post(partial(reply, channel, message))
    else:
        logger.error("a message of another direction: %s", type(message).__name__)


def reply(channel: Channel, ask: Ask, engine: Engine) -> None:
    """Answer a question, on the engine's thread."""
    try:
        channel.send(Answer(ask.ask_id, value_of(ask, engine)))
    except HypicError as error:
        channel.send(Answer(ask.ask_id, error=error.to_payload()))


def value_of(ask: Ask, engine: Engine) -> Any:
    """The plain value that answers a question."""
    match ask.question:
        case Question.PROBE:
            return engine.probe(ask.parts, ask.namespace)
        case Question.DELETE:
            engine.delete(ask.parts, ask.namespace)
            return None
        case Question.USAGE:
            return asdict(engine.usage())


if __name__ == "__main__":
    main()
