"""What was predicted for an attempt of a run, kept beside its configuration as one line of a plan."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.config import RunConfig
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run_dir import RunDir, parse_attempt


def prediction_file(run: RunDir, attempt: int | None = None) -> Path:
    """Where a run keeps the prediction for its latest attempt, or for `attempt`: numbered like the
    configuration that it is of."""
    number = parse_attempt(run.attempt_file("config", "toml", attempt).name)
    return run.path / (f"plan.{number}.json" if number else "plan.json")


def read_prediction(run: RunDir, attempt: int | None = None) -> PlanLine | None:
    """The prediction for the latest attempt, or for `attempt`; None where there is none."""
    try:
        return plan_lines.decode(files.read_bytes(prediction_file(run, attempt)))
    except (OSError, msgspec.DecodeError):
        return None


def config_to_predict(run: RunDir) -> RunConfig | None:
    """The configuration that a prediction would plan, which executes what it names; None where the line is
    known or the run never began.

    Raises: ConfigError when it cannot be read.
    """
    if read_prediction(run) is not None:
        return None
    config = run.config()
    return config if run.environment().get("devices") else None
