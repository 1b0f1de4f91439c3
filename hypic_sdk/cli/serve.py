"""`hypic serve`: start, say where, and stay until told to end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_sdk.config import EngineConfig, cache_folder
from hypic_sdk.demo import reader_path
from hypic_sdk.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console


def default_segments_file() -> Path:
    """In the user's cache folder, which is made if need be."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache folder {folder} can not be made: {error}; name a --segments-file"
        ) from error
    return folder / "segments.sqlite"


def run_serve(
    console: Console,
    *,
    model: str | None,
    model_name: str | None,
    host: str,
    port: int,
    keys_file: Path | None,
    segments_file: Path | None,
    config: EngineConfig,
) -> None:
    """Serve until a signal.

    Raises:
        UnsupportedError: the extra `server` is not installed.
        HypicError: what keeps the server from starting.
    """
    try:
        from hypic_sdk.server.launch import LaunchSettings, serve
    except ImportError as error:
        raise UnsupportedError(
            f"a server needs: pip install 'hypic-sdk[server]' ({error})"
        ) from error
    folder = reader_path() if model is None else Path(model)
    settings = LaunchSettings(
        model_folder=folder,
        model_name=model_name or ("hypic-reader" if model is None else folder.name),
        host=host,
        port=port,
        keys_file=keys_file,
        segments_file=segments_file or default_segments_file(),
        log_level=logging.getLevelName(logging.getLogger().level),
        engine=config,
    )

    def announce(url: str) -> None:
        console.print(f"hypic serves {settings.model_name} at {url} (Ctrl-C ends it)")

    asyncio.run(serve(settings, announce))
