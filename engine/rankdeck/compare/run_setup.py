"""Read a run's files other than its events: its configuration, environment and prediction.

They are read once, and never on the UI thread, because a disk may be slow. If a file is missing or damaged,
its values are unknown.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdeck.base import files
from rankdeck.base.masking import mask_arguments, mask_table
from rankdeck.base.parsing import JsonObject
from rankdeck.compare.run_ref import RunRef
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.prediction import read_prediction


@dataclass(frozen=True)
class RunSetup:
    """Setup of a run.

    `tables` are the tables of the run's resolved configuration, including [script] if the run executes a
    script; empty if the file cannot be read.
    """

    title: str
    tables: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    prediction: PlanLine | None = None
    is_past: bool = False
    """Whether this is the setup of an attempt that was followed by another attempt."""

    @property
    def versions(self) -> dict[str, str]:
        versions = self.environment.get("versions")
        return (
            {str(name): str(version) for name, version in versions.items()}
            if isinstance(versions, dict)
            else {}
        )

    @property
    def host(self) -> str | None:
        return _text_or_none(self.environment.get("host"))

    @property
    def python(self) -> str | None:
        return _text_or_none(self.environment.get("python"))

    @property
    def commit(self) -> str | None:
        return _text_or_none(self.environment.get("commit"))

    @property
    def command_line(self) -> str | None:
        arguments = self.environment.get("command_line")
        return shlex.join(mask_arguments(list(map(str, arguments)))) if isinstance(arguments, list) else None


def read_run_setup(at: RunRef) -> RunSetup:
    """Read the setup of a run, or of a single attempt, from the run's directory."""
    run = at.run_dir
    is_past = at.attempt is not None and at.attempt < run.next_attempt() - 1
    return RunSetup(
        title=run.title,
        tables=mask_table(files.read_toml_or_empty(config_file_of(at))),  # older versions stored secrets
        environment=_read_json_or_empty(run.attempt_file("environment", "json", at.attempt)),
        prediction=read_prediction(run, at.attempt),
        is_past=is_past,
    )


def config_file_of(at: RunRef) -> Path:
    """Return the path of the resolved configuration of a run in its current state, or of a single attempt."""
    return at.run_dir.attempt_file("config", "toml", at.attempt)


def _read_json_or_empty(file: Path) -> JsonObject:
    try:
        return files.read_json(file)
    except (OSError, ValueError):
        return {}


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
