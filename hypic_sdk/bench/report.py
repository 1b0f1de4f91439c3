"""How a measurement is reported: its circumstances, and minimum, median and maximum of its runs."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypic_sdk.version import __version__

if TYPE_CHECKING:
    import torch

CHANGED = "-dirty"  # behind a commit from which files differ
UNKNOWN = "unknown"  # no checkout
_CORES = re.compile(r" \(\d+ cores\)$")


def write_whole(path: Path, text: str) -> Path:
    """Write a report so that whoever looks finds it whole: a run may be killed while it writes."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    return new.replace(path)


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of several runs, in the unit of the name it stands under."""

    minimum: float
    median: float
    maximum: float
    num_runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(min(values), statistics.median(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.minimum:.1f} / {self.median:.1f} / {self.maximum:.1f}"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what a number was taken."""

    hardware: str
    num_threads: int
    python: str
    torch: str
    transformers: str
    hypic_sdk: str
    commit: str

    def __str__(self) -> str:
        return (
            f"{self.hardware}, {self.num_threads} threads, python {self.python}, "
            f"torch {self.torch}, hypic_sdk {self.hypic_sdk}, commit {self.commit}"
        )

    @property
    def is_cpu(self) -> bool:
        """Whether it ran on a processor, whose name comes with its cores."""
        return _CORES.search(self.hardware) is not None

    @property
    def is_of_commit(self) -> bool:
        """Whether the code that ran is that of a commit, and no file differed from it."""
        return self.commit not in ("", UNKNOWN) and not self.commit.endswith(CHANGED)


def circumstances(device: torch.device | str) -> Circumstances:
    """Those of this process.

    Args:
        device: that was measured, or its setting: `auto` is the GPU if there is one.
    """
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device)
    return Circumstances(
        hardware=torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        num_threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=_version("transformers"),
        hypic_sdk=__version__,
        commit=_commit(),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    """The processor's model name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} ({os.cpu_count()} cores)"


def _commit() -> str:
    """The commit of the checkout this package lies in, with a mark if files differ from it."""
    command = ["git", "describe", "--always", f"--dirty={CHANGED}", "--abbrev=12"]
    try:
        done = subprocess.run(
            command,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return UNKNOWN
    return done.stdout.strip() or UNKNOWN


def append_json_line(path: Path, row: dict[str, Any], where: Circumstances) -> None:
    """Add one measurement to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps({**row, "circumstances": asdict(where)}) + "\n")
