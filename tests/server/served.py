"""An application on a loopback socket, its event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from hypic_sdk.prompt.tokenizer import PromptTokenizer
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.serving import serving
from tests.prompt import tiny
from tests.server.pushing_worker import PushingWorker

if TYPE_CHECKING:
    from aiohttp import web


@contextmanager
def serve(app: web.Application, **options: Any) -> Iterator[str]:
    """The base URL of an application that answers inside of the block."""
    loop = asyncio.new_event_loop()
    address: Future[str] = Future()
    stop = asyncio.Event()

    async def run() -> None:
        try:
            async with serving(app, **options) as url:
                address.set_result(url)
                await stop.wait()
        except BaseException as error:
            if address.done():
                raise
            address.set_exception(error)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    try:
        yield address.result(timeout=30)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=60)
        assert not thread.is_alive(), "the server does not stop"
        loop.close()


@contextmanager
def serve_fake(
    worker: PushingWorker,
    *,
    template: str | None = tiny.CHATML,
    tokenizer: PromptTokenizer | None = None,
    **options: Any,
) -> Iterator[str]:
    """A server over a fake worker and the small tokenizer."""
    tokenizer = tokenizer or tiny.tokenizer()
    services = ServiceFactory(
        tokenizer=tokenizer,
        template=None if template is None else tiny.chat_template(template, tokenizer),
        worker=worker,
        model_name="tiny",
    )
    with serve(create_app(services, worker, **options)) as url:
        yield url


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str
    json: Any = field(default=None)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[str]:
        """The data of server-sent events."""
        blocks = [block for block in self.text.split("\n\n") if block]
        lines = [line for block in blocks for line in block.split("\n")]
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def call(
    url: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Answer:
    """One call without any client library; `body` is JSON values, or bytes as they are."""
    host = url.removeprefix("http://")
    connection = HTTPConnection(host, timeout=timeout_s)
    raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} if raw is not None else {}
    try:
        connection.request(method, path, raw, {**given, **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        is_json = response.headers.get_content_type() == "application/json"
        return Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            text,
            json.loads(text) if is_json else None,
        )
    finally:
        connection.close()
