"""The road of the text wing: a request in, text and a report out."""

from hypic_sdk.service.reply import ReplyAssembler, ReplyDelta
from hypic_sdk.service.service import Service
from hypic_sdk.service.stream import ChunkStream, PreparedRequest, ReplyStream
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.warm_progress import WarmProgress
from hypic_sdk.service.worker_port import WorkerPort

__all__ = [
    "ChunkStream",
    "PreparedRequest",
    "ReplyAssembler",
    "ReplyDelta",
    "ReplyStream",
    "Service",
    "WarmJob",
    "WarmProgress",
    "WorkerPort",
]
