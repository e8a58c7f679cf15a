"""Races without the command line: what is asked, two simulated GPUs, and a racer that may be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from rankdeck.cli.display import Display
from rankdeck.cli.follow import follow
from rankdeck.config.catalog import STRATEGIES
from rankdeck.launch.race import RaceRequest, RaceRunner
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice, StepTime
from rankdeck.run.race import RaceEntry
from rankdeck.telemetry.gpu_status import GpuStatus
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.launching import small_config

FAKE_RACER = Path(__file__).with_name("fake_racer.py")
UNSYNCED = Path(__file__).with_name("unsynced_worker.py")
UUIDS = ["GPU-00000000", "GPU-00000001"]
_RACER = """
import pathlib, sys
from tests.helpers.racing import race_request, fake_gpus, run_race
with fake_gpus():
    run_race(race_request(pathlib.Path(sys.argv[1]), sys.argv[2:], devices="gpu:0,1"))
"""


def plan_line(strategy: str, num_devices: int = 2, **options: Any) -> PlanLine:
    """What a plan might say of a strategy that fits."""
    card = STRATEGIES[strategy]
    count = 1 if card.one_device else num_devices
    devices = [
        PlannedDevice(device=index, active_bytes=5000, total_bytes=5000, by_kind={}) for index in range(count)
    ]
    return PlanLine(
        strategy=strategy,
        options={**card.options().model_dump(), **options},
        label=strategy,
        verdict=FITS,
        devices=devices,
        step=StepTime(low_s=0.1, high_s=0.4),
    )


def race_request(
    folder: Path,
    strategies: Sequence[str],
    *,
    devices: str = "cpu:2",
    worker: Path = FAKE_RACER,
    tables: Mapping[str, Any] | None = None,
    steps: int = 25,
) -> RaceRequest:
    config = small_config(folder, {"devices": {"use": devices}, **(tables or {})})
    lines = [plan_line(strategy) for strategy in strategies]
    return RaceRequest(config, lines, [], steps, folder / "runs", ["rankdeck", "race"], str(worker))


def fake_gpus() -> Any:
    """Two GPUs are there, as far as choosing devices goes."""
    gpus = [
        GpuStatus(index=index, uuid=uuid, name="H100", total_bytes=80 * 2**30, used_bytes=0, processes=())
        for index, uuid in enumerate(UUIDS)
    ]
    return mock.patch("rankdeck.launch.device_selection.list_gpus", lambda: gpus)


def run_race(
    what: RaceRequest,
    on_entry: Callable[[RaceRunner, RaceEntry], None] = lambda racing, entry: None,
    max_entries: int | None = None,
) -> RaceRunner:
    """The race from its start to its end; `on_entry` is called while an entry runs, after `max_entries` it is
    stopped."""
    with RaceRunner(what) as racing:
        for entry in racing.entries():
            run = racing.start(entry)
            on_entry(racing, entry)
            if run is not None:
                racing.finish(entry, follow(run, Display()))
            if entry.number == max_entries:
                racing.stop()
    return racing


def start_racer(folder: Path, strategies: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that races on two GPUs."""
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _RACER, str(folder), *strategies],
        env={**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS},
    )
