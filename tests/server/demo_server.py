"""A real server process' insides over the demo model: one worker, real sockets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hypic_sdk.config import EngineConfig
from hypic_sdk.demo import reader_path
from hypic_sdk.engine.answers import answer_of
from hypic_sdk.engine.worker import LocalWorker
from hypic_sdk.offline import DEMO_NAME, LocalHypic
from hypic_sdk.server.app import create_app
from hypic_sdk.server.services import ServiceFactory
from hypic_sdk.server.settings import ServerSettings
from hypic_sdk.server.tenants import Tenants
from hypic_sdk.server.worker_status import StatusOf
from hypic_sdk.service import ModelFacts
from hypic_sdk.transport.control import Ask, Question
from tests.server.served import serve


@dataclass(frozen=True)
class DemoServer:
    """Where it answers, and its worker."""

    url: str
    local: LocalHypic
    worker: LocalWorker

    @property
    def usage(self) -> Mapping[str, Any]:
        return asdict(self.worker.call(lambda engine: engine.usage()))

    @property
    def in_use_bytes(self) -> int:
        """Bytes that a request or an unfinished entry holds."""
        usage = self.usage
        pools = ("state_rows", "transition_rows", "kv_slots")
        states = ("reserved", "filling", "pinned")
        return sum(usage[pool][state] for pool in pools for state in states)


@contextmanager
def demo_server(
    config: EngineConfig | None = None,
    *,
    settings: ServerSettings | None = None,
    tenants: Tenants | None = None,
) -> Iterator[DemoServer]:
    """The demo model behind a socket of this machine."""
    config = config or EngineConfig()
    with LocalHypic(config=config) as local:
        worker = local.worker
        assert worker is not None
        width = worker.call(lambda engine: engine.describe().settings.conv_width)
        services = ServiceFactory.from_folder(
            reader_path(),
            local.service._worker,
            model_name=DEMO_NAME,
            facts=ModelFacts(config.reuse, conv_width=width, is_checked=config.shadow is not None),
        )
        books = partial(answer_of, Ask(0, Question.USAGE))
        status = StatusOf(lambda: worker.call(books))
        app = create_app(services, status, settings=settings, tenants=tenants)
        with serve(app) as url:
            yield DemoServer(url, local, worker)
