"""`hypic serve` as a process of its own, as an operator starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_START_S = 60.0


@contextmanager
def serving(*words: str) -> Iterator[str]:
    """Its base URL; `words` are arguments of the command."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "hypic_sdk.cli", "serve", "--port", "0", *words]
        environment = {**os.environ, "HYPIC_CACHE_DIR": cache, "COLUMNS": "200"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert process.stdout is not None
        # a server that says nothing must not hold up the run: killed, its line is empty
        alarm = threading.Timer(_START_S, process.kill)
        alarm.start()
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            alarm.cancel()
            yield found.group()
        finally:
            alarm.cancel()
            process.terminate()
            process.stdout.close()
            process.wait(timeout=60)
