"""What an engine process is started with, as a file in its folder."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypic_sdk.config import EngineConfig

SETTINGS_FILE = "settings.json"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Plain values only: they are written as JSON and read back by type."""

    model_folder: str
    config: EngineConfig = field(default_factory=EngineConfig)
    log_level: str = "WARNING"
