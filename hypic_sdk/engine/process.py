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
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.engine.peers import joined, own_share
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.errors import HypicError, WorkerError
from hypic_sdk.links.courier import Courier
from hypic_sdk.transport.channel import Channel
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    FinishRequest,
    PeerLost,
    RequestsBegun,
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
    parent, started_s = os.getppid(), time.monotonic()
    with Channel(folder, is_api=False) as channel:
        engine = open_engine(settings, channel)
        if engine is None:
            return
        with LocalWorker(engine) as worker, ExitStack() as stack:
            courier = None
            if settings.peers is not None:
                courier = stack.enter_context(joined(worker, settings.peers))
                name = settings.peers.worker
                worker.call(lambda engine: engine.watch_entries(name, channel.send))
            say_ready(channel, engine, started_s)
            serve(channel, worker, parent, courier)
    if settings.peers is not None:
        # a thread may still wait inside a link whose other end is gone; nothing can end it, and the
        # process would abort in the destructors of what it waits in
        logging.shutdown()
        os._exit(0)


def open_engine(settings: ProcessSettings, channel: Channel) -> Engine | None:
    """Load the model; none if it failed, which is said."""
    try:
        config = settings.config
        if settings.peers is not None:
            config = own_share(config, settings.peers)
        engine = load_engine(Path(settings.model_folder), config)
    except HypicError as error:
        channel.send(EngineFailed(error.to_payload()))
        time.sleep(POLL_S)  # what is queued is dropped by closing; let it go out
        return None
    engine.watch(lambda request_ids: channel.send(RequestsBegun(request_ids)))
    return engine


def say_ready(channel: Channel, engine: Engine, started_s: float) -> None:
    """Tell the API process that requests are taken from now on."""
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


def serve(
    channel: Channel, worker: LocalWorker, parent: int, courier: Courier | None = None
) -> None:
    """Take messages until the parent is gone; a worker among several gives signs of life."""
    told_s = 0.0
    while os.getppid() == parent:
        if courier is not None and time.monotonic() - told_s > ALIVE_EVERY_S:
            told_s = time.monotonic()
            channel.send(courier.alive())
            worker.post(lambda engine: engine.tell_entries())
        try:
            message = channel.receive(POLL_S)
        except WorkerError:
            logger.exception("a message was not understood")
            continue
        if isinstance(message, PeerLost):
            if courier is not None:
                courier.lose(message.worker)
        elif message is not None:
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
    elif isinstance(message, FinishRequest):
        worker.finish(message.request_id, message.reply_index)
    elif isinstance(message, Ask):
        worker.post(partial(reply, channel, message))
    else:
        logger.error("a message of another direction: %s", type(message).__name__)


def reply(channel: Channel, ask: Ask, engine: Engine) -> None:
    """Answer a question, on the engine's thread."""
    try:
        channel.send(Answer(ask.ask_id, answer_of(ask, engine)))
    except HypicError as error:
        channel.send(Answer(ask.ask_id, error=error.to_payload()))


if __name__ == "__main__":
    main()
