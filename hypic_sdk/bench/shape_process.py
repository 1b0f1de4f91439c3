"""An engine process over random weights of a known shape, for measurements.

Run as `python -m hypic_sdk.bench.shape_process FOLDER`, as `hypic_sdk.engine.process` is; what its
settings call the model's folder is the name of a shape.
"""

from __future__ import annotations

from hypic_sdk.bench.serving_model import random_model
from hypic_sdk.engine import process
from hypic_sdk.engine.engine import Engine
from hypic_sdk.engine.opening import usable_device
from hypic_sdk.transport.process_settings import ProcessSettings


def random_engine(settings: ProcessSettings) -> Engine:
    """The same weights in every process on the same kind of device."""
    shape = settings.model_folder
    model = random_model(shape, usable_device(settings.config.device))
    engine = Engine(model, f"random {shape}", settings.config)
    engine.capture_ahead(settings.config)
    return engine


if __name__ == "__main__":
    process.main(random_engine)
