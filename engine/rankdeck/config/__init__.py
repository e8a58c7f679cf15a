"""Configuration files: their schema, the catalog of choices, and the checks that involve several options.

`from rankdeck.config import RunConfig, load` is public API. Read schema.py first, then loading.py.
"""

from rankdeck.config.loading import from_dict, from_text, load
from rankdeck.config.rules import batch_problems, on_devices
from rankdeck.config.schema import (
    Choice,
    DataConfig,
    DevicesConfig,
    HostsConfig,
    LaunchConfig,
    LossConfig,
    ModelConfig,
    RehearsalConfig,
    RunConfig,
    TrainConfig,
)

__all__ = [
    "Choice",
    "DataConfig",
    "DevicesConfig",
    "HostsConfig",
    "LaunchConfig",
    "LossConfig",
    "ModelConfig",
    "RehearsalConfig",
    "RunConfig",
    "TrainConfig",
    "batch_problems",
    "from_dict",
    "from_text",
    "load",
    "on_devices",
]
