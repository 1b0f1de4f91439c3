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
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from hypic_sdk.config import keep_heap
from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.opening import load_engine
from hypic_sdk.engine.peers import joined, own_share
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.errors import HypicError, WorkerError, from_payload
from hypic_sdk.links.courier import Courier
from hypic_sdk.transport.channel import Channel, MessageEnd
from hypic_sdk.transport.codec import Message
from hypic_sdk.transport.control import (
    Alive,
    Answer,
    Ask,
    CancelRequest,
    EngineFailed,
    EngineReady,
    FinishRequest,
    PeerHere,
    PeerLost,
    Refused,
    RequestsBegun,
)
from hypic_sdk.transport.messages import EngineRequest, WarmRequest
from hypic_sdk.transport.peer_messages import Carrier
from hypic_sdk.transport.process_settings import SETTINGS_FILE, ProcessSettings

logger = logging.getLogger(__name__)

ALIVE_EVERY_S = 0.8
POLL_S = 0.5  # how soon a lost parent is noticed


Load = Callable[[ProcessSettings], Engine]
"""From what a process is started with to its engine; raises HypicError if there can be none."""


def load_checkpoint(settings: ProcessSettings) -> Engine:
    """The engine of a model folder."""
    return load_engine(Path(settings.model_folder), settings.config)


def main(load: Load = load_checkpoint) -> None:
    """Serve until the parent is gone."""
    folder = Path(sys.argv[1])
    settings = msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=ProcessSettings)
    log_to_stderr(settings.log_level)
    # a terminal's Ctrl-C goes to the whole group; the API process drains and then ends this one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    with Channel(folder, is_api=False) as channel:
        run(settings, channel, kept(load), lambda: os.getppid() == parent)
    if settings.peers is not None:
        end_at_once()


def kept(load: Load) -> Load:
    """The same, in a process that is the engine's own: what was loaded is never collected."""

    def load_and_keep(settings: ProcessSettings) -> Engine:
        engine = load(settings)
        keep_heap()
        return engine

    return load_and_keep


def log_to_stderr(level: str) -> None:
    """Lines of this process, beside those of the one that started it."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s engine %(name)s %(message)s")


def end_at_once(status: int = 0) -> None:
    """End one of several workers.

    A thread may still wait inside a link whose other end is gone; nothing can end it, and the
    process would abort in the destructors of what it waits in.
    """
    logging.shutdown()
    os._exit(status)


def run(
    settings: ProcessSettings, channel: MessageEnd, load: Load, is_wanted: Callable[[], bool]
) -> bool:
    """Load the model and serve while wanted; false if there is no engine, which was said.

    Raises:
        HypicError: a router on another host has no place for this worker any more.
    """
    started_s = time.monotonic()
    opened = open_engine(settings, channel, load)
    if opened is None:
        return False
    engine, carrier = opened
    with LocalWorker(engine) as worker, ExitStack() as stack:
        courier = None
        if settings.peers is not None:
            courier = stack.enter_context(joined(worker, settings.peers, carrier))
            name = settings.peers.worker
            worker.call(lambda engine: engine.watch_entries(name, channel.send))
        say_ready(channel, engine, started_s)
        serve(channel, worker, is_wanted, courier)
    return True


def open_engine(
    settings: ProcessSettings, channel: MessageEnd, load: Load
) -> tuple[Engine, Carrier] | None:
    """Load the model, and say what carries its entries; none if it failed, which is told."""
    carrier = Carrier.TCP
    try:
        if settings.peers is not None:
            carrier = own_share(settings.config, settings.peers)
        engine = load(settings)
    except HypicError as error:
        channel.send(EngineFailed(error.to_payload()))
        time.sleep(POLL_S)  # what is queued is dropped by closing; let it go out
        return None
    engine.watch(lambda request_ids: channel.send(RequestsBegun(request_ids)))
    return engine, carrier


def say_ready(channel: MessageEnd, engine: Engine, started_s: float) -> None:
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
            compute_fingerprint=described.settings.compute_fingerprint,
            dtype=str(described.settings.dtype).removeprefix("torch."),
        )
    )


def serve(
    channel: MessageEnd,
    worker: LocalWorker,
    is_wanted: Callable[[], bool],
    courier: Courier | None = None,
) -> None:
    """Take messages while wanted, and give signs of life, however long a step takes.

    Raises:
        HypicError: a router on another host has no place for this worker any more.
    """
    told_s = 0.0
    while is_wanted():
        if time.monotonic() - told_s > ALIVE_EVERY_S:
            told_s = time.monotonic()
            channel.send(Alive("") if courier is None else courier.alive())
            if courier is not None:
                worker.post(lambda engine: engine.tell_entries())
        try:
            message = channel.receive(POLL_S)
        except WorkerError:
            logger.exception("a message was not understood")
            continue
        if isinstance(message, Refused):
            raise from_payload(message.error)
        if isinstance(message, PeerLost | PeerHere | Alive):
            hear_of_peer(courier, message)
        elif message is not None:
            handle(channel, worker, message)


def hear_of_peer(courier: Courier | None, message: PeerLost | PeerHere | Alive) -> None:
    """Another worker came or went; a router's own sign of life asks for nothing."""
    if courier is None or isinstance(message, Alive):
        return
    if isinstance(message, PeerLost):
        courier.lose(message.worker)
        return
    try:
        courier.meet(message.worker, message.endpoint)
    except HypicError:
        logger.exception("a worker can not be met where it is said to be")


def handle(channel: MessageEnd, worker: LocalWorker, message: Message) -> None:
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


def reply(channel: MessageEnd, ask: Ask, engine: Engine) -> None:
    """Answer a question, on the engine's thread."""
    try:
        channel.send(Answer(ask.ask_id, answer_of(ask, engine)))
    except HypicError as error:
        channel.send(Answer(ask.ask_id, error=error.to_payload()))


if __name__ == "__main__":
    main()
