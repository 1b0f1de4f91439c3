"""Chats, plain prompts, and the reference's `/generate`: whole or streamed."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web
from pydantic import BaseModel

from hypic_sdk.errors import CapacityError, HypicError, RequestCancelled
from hypic_sdk.server.bodies import parsed, read_body
from hypic_sdk.server.envelope import dumped, envelope
from hypic_sdk.server.meter import Meter
from hypic_sdk.server.recent import Asked, asked_of
from hypic_sdk.server.replies import reply
from hypic_sdk.server.site import (
    ERROR_CODE,
    Desk,
    Site,
    desk_of,
    request_id_of,
    site_of,
    trace_of,
)
from hypic_sdk.server.sse import DONE, EventWriter, Patient
from hypic_sdk.server.tracing import timed
from hypic_sdk.server.warm_board import ended
from hypic_sdk.service import AsyncReplyStream, GrowingReply, PreparedRequest, ReplyDelta, Service
from hypic_sdk.service.separated import GenerateChunks, whole_generate
from hypic_sdk.wire.chat import ChatRequest
from hypic_sdk.wire.completions import CompletionRequest
from hypic_sdk.wire.generate import GenerateRequest
from hypic_sdk.wire.replies import CancelledRequest

logger = logging.getLogger(__name__)

Body = TypeVar("Body", ChatRequest, CompletionRequest, GenerateRequest)
MakeChunks = Callable[[ReplyDelta], Sequence[BaseModel]]


@dataclass(frozen=True, slots=True)
class Kind(Generic[Body]):
    """What sets one of the endpoints apart."""

    model: type[Body]
    prepare: Callable[[Service, Body, str], PreparedRequest]
    whole: Callable[[Service, GrowingReply], BaseModel]
    chunks: Callable[[Service, GrowingReply], MakeChunks]


CHAT = Kind(
    ChatRequest,
    Service.prepare_chat,
    lambda service, reply: service.chat_shape.whole(reply),
    lambda service, reply: service.chat_shape.chunks(reply),
)
COMPLETION = Kind(
    CompletionRequest,
    Service.prepare_completion,
    lambda service, reply: service.completion_shape.whole(reply),
    lambda service, reply: service.completion_shape.chunks(reply),
)
GENERATE = Kind(
    GenerateRequest,
    Service.prepare_generate,
    lambda service, reply: whole_generate(reply),
    lambda service, reply: GenerateChunks(reply),
)


async def chat(request: web.Request) -> web.StreamResponse:
    """`POST /v1/chat/completions`."""
    return await _answer(request, CHAT)


async def completions(request: web.Request) -> web.StreamResponse:
    """`POST /v1/completions`."""
    return await _answer(request, COMPLETION)


async def generate(request: web.Request) -> web.StreamResponse:
    """`POST /generate`: a text without a separator is kept as a segment, then answered."""
    return await _answer(request, GENERATE, keep=Service.keep_text)


async def cancel(request: web.Request) -> web.Response:
    """`DELETE /v1/requests/{id}`: end a request of one's own, by its id."""
    request_id = request.match_info["id"]
    cancelled = (await desk_of(request)).cancel(request_id)
    return reply(CancelledRequest(id=request_id, cancelled=cancelled))


async def _answer(
    request: web.Request,
    kind: Kind[Body],
    keep: Callable[[Service, GenerateRequest], object] | None = None,
) -> web.StreamResponse:
    site, desk = site_of(request), await desk_of(request)
    site.check_ready()
    async with _admitted(site, desk):
        raw = await read_body(request)
        with timed(trace_of(request), "prompt"):
            body, prepared = await site.prepare.run(
                _prepare, desk.service, kind, raw, request_id_of(request)
            )
        if keep is not None and isinstance(body, GenerateRequest):
            job = await site.prepare.run(desk.service.keep_text, body)
            if job is not None:
                await ended(job)
        asked = asked_of(body, time.time())
        async with _under_way(request, desk, prepared, asked) as (stream, deltas):
            if body.stream:
                return await _stream(request, kind, desk.service, stream, deltas)
            async for _ in deltas:
                pass  # the reply itself keeps what was said
            whole = await site.prepare.run(_dump_whole, kind, desk.service, stream.reply)
            return web.Response(text=whole, content_type="application/json")


@asynccontextmanager
async def _admitted(site: Site, desk: Desk) -> AsyncIterator[None]:
    with site.drain.entered(), desk.in_flight(), site.telemetry.in_flight.track_inprogress():
        yield


def _prepare(
    service: Service, kind: Kind[Body], raw: bytes, request_id: str
) -> tuple[Body, PreparedRequest]:
    body = parsed(raw, kind.model)
    return body, kind.prepare(service, body, request_id)


def _dump_whole(kind: Kind[Body], service: Service, reply: GrowingReply) -> str:
    return kind.whole(service, reply).model_dump_json()


@asynccontextmanager
async def _under_way(
    request: web.Request, desk: Desk, prepared: PreparedRequest, asked: Asked
) -> AsyncIterator[tuple[AsyncReplyStream, Meter]]:
    """A submitted request; leaving the block early, as when the caller goes away, cancels it."""
    site, begun_s = site_of(request), time.monotonic()
    stream = desk.service.async_stream(prepared)
    meter = Meter(stream, site.telemetry)
    with (
        site.drain.ended_by(lambda: stream.fail(CapacityError("the server is stopping"))),
        desk.cancelled_by(
            prepared.request_id, lambda: stream.fail(RequestCancelled("it was cancelled"))
        ),
    ):
        try:
            await site.prepare.run(stream.submit)
            yield stream, meter
        except HypicError as error:
            request[ERROR_CODE] = error.code
            raise
        finally:
            stream.close()
            meter.close()
            meter.trace(trace_of(request))
            desk.recent.note(
                asked,
                stream.reply,
                error_code=request.get(ERROR_CODE),
                total_ms=1000 * (time.monotonic() - begun_s),
            )


async def _stream(
    request: web.Request,
    kind: Kind[Body],
    service: Service,
    stream: AsyncReplyStream,
    deltas: Meter,
) -> web.StreamResponse:
    chunks = kind.chunks(service, stream.reply)
    first = await anext(deltas)
    writer = EventWriter(request)
    await writer.begin()
    site = site_of(request)
    try:
        await _send(writer, chunks(first))
        async with Patient(deltas, site.settings.keep_alive_s) as patient:
            async for delta in patient:
                if delta is None:
                    await writer.keep_alive()
                else:
                    await _send(writer, chunks(delta))
        await writer.send(DONE)
    except HypicError as error:
        await _send_error(request, writer, error)
    except (ConnectionError, RuntimeError) as error:
        # RuntimeError: aiohttp's word for writing to a stream that it has closed
        logger.info("a caller went away request=%s error=%s", request_id_of(request), error)
    except Exception:
        logger.exception("a stream failed request=%s", request_id_of(request))
        await _send_error(request, writer, HypicError("internal error"))
    return await writer.end()


async def _send(writer: EventWriter, chunks: Sequence[BaseModel]) -> None:
    await writer.send(*(chunk.model_dump_json() for chunk in chunks))


async def _send_error(request: web.Request, writer: EventWriter, error: HypicError) -> None:
    """An error after the status went out is told as an event, and no `[DONE]` follows."""
    site_of(request).telemetry.errors.labels(error.code).inc()
    request[ERROR_CODE] = error.code
    await writer.send(dumped(envelope(error, request_id=request_id_of(request))))
