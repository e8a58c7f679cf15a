"""The table rows.toml, and what `rankdeck plan` says of each row: the same command that a person types.

Read rows.toml first, page.py next.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import tomlkit

from rankdeck.base.units import parse_bytes
from tests.helpers.cli import rankdeck

FOLDER = Path(__file__).parent
_PLAN_TIMEOUT_S = 600.0
_MORE_STEPS = {"steps": 16, "evaluate_every": 0}


@dataclass(frozen=True)
class Source:
    """Who published figures, and where."""

    title: str
    url: str
    read: date
    software: str


@dataclass(frozen=True)
class Row:
    """One published figure and its configuration; see the top of rows.toml."""

    id: str
    source: str
    what: str
    devices: str
    reading: Literal["allocated", "reserved", "nvidia-smi"]
    published: str
    model: str
    train: Mapping[str, Any]
    strategy: Mapping[str, Any] | None = None
    capacity: str | None = None
    device: int = 0
    assumed: str = ""
    miss: str = ""

    @property
    def published_bytes(self) -> int:
        return parse_bytes(self.published)


@dataclass(frozen=True)
class Table:
    sources: Mapping[str, Source]
    models: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Planned:
    """What the plan says of the figure that was published."""

    row: Row
    num_bytes: int
    is_bound: bool

    @property
    def error(self) -> float:
        """As a share of the published figure; below zero where the plan says less."""
        return self.num_bytes / self.row.published_bytes - 1


def load() -> Table:
    read = tomllib.loads((FOLDER / "rows.toml").read_text(encoding="utf-8"))
    sources = {name: Source(**fields) for name, fields in read["sources"].items()}
    return Table(sources, read["models"], tuple(Row(**fields) for fields in read["rows"]))


def planned(row: Row, table: Table) -> Planned:
    """Raises AssertionError with both streams where the plan fails, or where it has no figures."""
    tables = {
        "name": row.id,
        "folder": str(FOLDER),
        **table.models[row.model],
        "train": {**_MORE_STEPS, **row.train},
        "strategy": dict(row.strategy or {"use": "single"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / f"{row.id}.toml"
        config.write_text(tomlkit.dumps(tables), encoding="utf-8")
        size = () if row.capacity is None else ("--capacity", row.capacity)
        strategy = tables["strategy"]["use"]
        command = ("plan", config, "--strategy", strategy, "--devices", row.devices, *size, "--json")
        lines = rankdeck(
            *command, timeout_s=_PLAN_TIMEOUT_S, env={"RANKDECK_HOME": folder}, exit_code=0
        ).lines
    line = next(line for line in lines if line["configured"] and line["advice"] is None)
    assert line["devices"], f"{row.id}: {line['reason']}"
    device = line["devices"][row.device]
    field = {"allocated": "active_bytes", "reserved": "reserved_bytes", "nvidia-smi": "total_bytes"}
    return Planned(row, device[field[row.reading]], line["is_bound"])
