"""What the text wing asks of a worker; the port stands in the corridor, where routers see it."""

from __future__ import annotations

from hypic_sdk.transport.events import Event as Event
from hypic_sdk.transport.worker_port import WorkerPort as WorkerPort
