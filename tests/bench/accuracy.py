"""How right the planner is: predicted beside measured, for every model and strategy that the tests know.

    .venv/bin/python -m tests.bench.accuracy [DEVICES ...]      a table for docs/accuracy.md

Measured is the peak of a followed training step by the ledger of real ranks, per device, and the lowest of
three such steps: now and then gloo's own thread holds a tensor for longer than it must. Predicted is the
planner's figure for the same configuration. Both count live tensors, unrounded.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base.units import format_bytes
from rankdeck.planner.accuracy import error_spread
from tests.helpers.planning import Case, Planner, cases, measure, relative_errors
from tests.helpers.ranks import RankSet

PACKAGES = ("torch", "transformers")


@dataclass(frozen=True)
class Row:
    """One configuration; `measured` is empty where it cannot run, with the reason."""

    case: Case
    predicted: list[int]
    measured: list[int]
    reason: str = ""
    is_bound: bool = False

    @property
    def errors(self) -> list[float]:
        return relative_errors(self.predicted, self.measured) if self.predicted and self.measured else []


def rows(num_devices: int) -> Iterator[Row]:
    """Every configuration on so many devices, one after another."""
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner()
        ranks = RankSet(num_devices, Path(folder))
        try:
            for case in cases(num_devices):
                line = planner.plan(case)
                predicted = [device.active_bytes for device in line.devices]
                peaks = measure(case, ranks, lowest_of=3)
                yield Row(case, predicted, peaks, line.reason or "", line.is_bound)
        finally:
            ranks.close()
            planner.close()


def main(counts: Sequence[int]) -> None:
    warnings.filterwarnings("ignore")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    print(f"{datetime.date.today()}, Python {platform.python_version()}, {versions}, CPU.\n", flush=True)
    print("| model | strategy | devices | predicted (fullest) | measured (fullest) | largest error |")
    print("| --- | --- | ---: | ---: | ---: | ---: |", flush=True)
    errors: list[float] = []
    num_exact = num_bounds = 0
    for count in counts:
        for row in rows(count):
            if row.is_bound:
                num_bounds += 1
            else:
                num_exact += 1
                errors += row.errors
            print(_line(row), flush=True)
    spread = error_spread(errors)
    assert spread is not None
    texts = (f"{share * 100:.4f} %" for share in (spread.median, spread.p95, spread.worst))
    median, p95, worst = texts
    print(f"\n{num_exact} configurations, {len(errors)} devices: median error {median}, ", end="")
    print(f"95th percentile {p95}, worst {worst}. {num_bounds} more have bounds.")


def _line(row: Row) -> str:
    case = row.case
    if not row.errors:
        return f"| {case.model} | {case.strategy} | {case.num_devices} | {row.reason} | | |"
    worst = max(map(abs, row.errors))
    bound = "at least " if row.is_bound else ""
    sizes = f"{bound}{format_bytes(max(row.predicted), 2)} | {format_bytes(max(row.measured), 2)}"
    return f"| {case.model} | {case.strategy} | {case.num_devices} | {sizes} | {worst * 100:.4f} % |"


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [4, 2])
