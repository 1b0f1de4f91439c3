"""An engine process that dies of one token: whenever a prompt with it is about to run."""

from __future__ import annotations

import os
import signal
import time

from hypic_sdk.engine import process
from hypic_sdk.engine.batch import Batch
from hypic_sdk.engine.launched import Launched
from hypic_sdk.engine.runner import Runner

DEADLY = 4242

_launch = Runner.launch


def launch(self: Runner, batch: Batch) -> Launched:
    prompts = [step.request.layout.prompt for step in batch.assemblies]
    if any(DEADLY in prompt.token_ids for prompt in prompts):
        time.sleep(0.2)  # what was said before goes out
        os.kill(os.getpid(), signal.SIGKILL)
    return _launch(self, batch)


if __name__ == "__main__":
    Runner.launch = launch
    process.main()
