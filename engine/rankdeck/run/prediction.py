"""What was predicted for a run, kept in its directory as one line of a plan."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.config import RunConfig
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.rundir import RunDir


def prediction_file(run: RunDir) -> Path:
    """Where a run keeps what was predicted for it."""
    return run.path / "plan.json"


def read_prediction(run: RunDir) -> PlanLine | None:
    """What was predicted for a run, None where nobody did."""
    try:
        return plan_lines.decode(files.read_bytes(prediction_file(run)))
    except (OSError, msgspec.DecodeError):
        return None


def to_predict(run: RunDir) -> RunConfig | None:
    """The configuration that a prediction would plan, which executes what it names; None where the line is
    known or the run never began.

    Raises: ConfigError when it cannot be read.
    """
    if read_prediction(run) is not None:
        return None
    config = run.config()
    return config if run.environment().get("devices") else None
