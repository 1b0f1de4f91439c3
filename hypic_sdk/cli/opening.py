"""Opening a model and warming documents, with progress bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from hypic_sdk.config import EngineConfig
from hypic_sdk.errors import UnsupportedError
from hypic_sdk.wire.segments import SegmentObject, WarmJobObject

if TYPE_CHECKING:
    from rich.console import Console

    from hypic_sdk.client import Hypic
    from hypic_sdk.models.weights import LoadProgress
    from hypic_sdk.offline import LocalHypic


def open_local(console: Console, model: str | None, config: EngineConfig) -> LocalHypic:
    """Load a model into this process.

    Raises:
        UnsupportedError: the extra `server` is not installed.
        ModelFileError, ConfigError: of `LocalHypic`.
    """
    try:
        import torch  # noqa: F401  asked for its presence, so that its absence has a sentence

        from hypic_sdk.offline import LocalHypic
    except ImportError as error:
        raise UnsupportedError(
            f"running a model here needs: pip install 'hypic-sdk[server]' ({error})"
        ) from error
    columns = (TextColumn("loading the model"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("load", total=None)

        def show(load: LoadProgress) -> None:
            progress.update(task, completed=load.done_bytes, total=load.total_bytes)

        return LocalHypic(model, config=config, on_progress=show)


def warm(
    console: Console, local: LocalHypic | Hypic, segments: Sequence[SegmentObject]
) -> WarmJobObject:
    """Put segments into the public pool and wait for it."""
    columns = (TextColumn("caching documents"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("warm", total=len(segments))

        def show(job: WarmJobObject) -> None:
            progress.update(task, completed=_num_over(job))

        return local.segments.warm.create(segments).wait(on_progress=show)


def _num_over(job: WarmJobObject) -> int:
    """Segments of a job that are no longer waited for."""
    counts = job.counts
    over = (counts.done, counts.already_warm, counts.not_kept, counts.failed, counts.cancelled)
    return sum(over)
