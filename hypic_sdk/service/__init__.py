"""The road of the text wing: a request in, text and a report out."""

from hypic_sdk.service.async_stream import AsyncReplyStream
from hypic_sdk.service.growing_reply import GrowingReply, PreparedRequest
from hypic_sdk.service.model_facts import ModelFacts
from hypic_sdk.service.reply import ReplyAssembler, ReplyDelta
from hypic_sdk.service.service import Service
from hypic_sdk.service.stream import ChunkStream, ReplyStream
from hypic_sdk.service.warm_job import WarmJob
from hypic_sdk.service.warm_progress import WarmProgress
from hypic_sdk.service.worker_port import WorkerPort

__all__ = [
    "AsyncReplyStream",
    "ChunkStream",
    "GrowingReply",
    "ModelFacts",
    "PreparedRequest",
    "ReplyAssembler",
    "ReplyDelta",
    "ReplyStream",
    "Service",
    "WarmJob",
    "WarmProgress",
    "WorkerPort",
]
