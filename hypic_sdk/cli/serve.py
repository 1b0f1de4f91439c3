"""`hypic serve`: start, say where, and stay until told to end."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hypic_sdk.config import EngineConfig, cache_folder, keep_heap
from hypic_sdk.errors import ConfigError, UnsupportedError

if TYPE_CHECKING:
    from rich.console import Console

    from hypic_sdk.server.worker_gate import GateSettings


SCRIPTED = "scripted"
"""The model that is none: rules answer, for tests."""


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
    script_file: Path | None = None,
    num_workers: int = 1,
    gate: GateSettings | None = None,
    config: EngineConfig,
) -> None:
    """Serve until a signal.

    Raises:
        UnsupportedError: the extra `server` is not installed.
        HypicError: what keeps the server from starting.
    """
    is_scripted = model == SCRIPTED
    if script_file is not None and not is_scripted:
        raise ConfigError(f"a script is for --model {SCRIPTED}")
    try:
        from hypic_sdk.offline import find_model
        from hypic_sdk.server.launch import LaunchSettings, serve
    except ImportError as error:
        needed = f"a server needs: pip install 'hypic-sdk[server]' ({error})"
        raise UnsupportedError(needed) from error
    # without a model of its own, a script has the tokenizer of the packaged one
    folder, name = find_model(None if is_scripted else model)
    settings = LaunchSettings(
        model_folder=folder,
        model_name=model_name or (SCRIPTED if is_scripted else name),
        host=host,
        port=port,
        keys_file=keys_file,
        segments_file=segments_file or default_segments_file(),
        log_level=logging.getLevelName(logging.getLogger().level),
        engine=config,
        is_scripted=is_scripted,
        script_file=script_file,
        num_workers=num_workers,
        gate=gate,
    )
    asyncio.run(serve(settings, partial(_announce, console, settings.model_name)))


def gate_settings(at: str | None, key_file: Path | None) -> GateSettings | None:
    """Where workers of other hosts are let in; none: nowhere.

    Raises:
        ConfigError: an address without a key, or a key without an address.
    """
    if at is None and key_file is None:
        return None
    if at is None or key_file is None:
        raise ConfigError("workers of other hosts need both --gate and --worker-key")
    from hypic_sdk.server.worker_gate import GateSettings

    host, port = host_and_port(at)
    return GateSettings(host, port, key_file)


def host_and_port(text: str) -> tuple[str, int]:
    """The two halves of 10.0.0.1:7000.  Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"an address and a port are written 10.0.0.1:7000, got {text!r}")
    return host.strip("[]"), int(port)


def _announce(console: Console, model_name: str, url: str) -> None:
    """Ready: tokenizer, catalog and routes stay as long as this process does."""
    keep_heap()
    console.print(f"hypic serves {model_name} at {url} (Ctrl-C ends it)")
