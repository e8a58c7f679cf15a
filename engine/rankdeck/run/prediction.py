"""Read the prediction for an attempt of a run: one plan line, stored next to the attempt's configuration."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.config import RunConfig
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run_dir import RunDir, parse_attempt


def prediction_file(run: RunDir, attempt: int | None = None) -> Path:
    """Return the prediction file of `attempt`, by default the latest attempt. The number in its name is that
    of the attempt's configuration file."""
    number = parse_attempt(run.attempt_file("config", "toml", attempt).name)
    return run.path / (f"plan.{number}.json" if number else "plan.json")


def read_prediction(run: RunDir, attempt: int | None = None) -> PlanLine | None:
    """Return the prediction for the latest attempt, or for `attempt`; None if there is none."""
    try:
        return plan_lines.decode(files.read_bytes(prediction_file(run, attempt)))
    except (OSError, msgspec.DecodeError):
        return None


def config_to_predict(run: RunDir) -> RunConfig | None:
    """Return the configuration to plan; None if the prediction exists or the run never started.

    Planning executes the code that the configuration names.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    if read_prediction(run) is not None:
        return None
    config = run.config()
    return config if run.environment().get("devices") else None
