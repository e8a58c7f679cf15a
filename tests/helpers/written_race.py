"""A race as its racer would have written it, for readers: the real file, the real lock, nothing trains."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankdeck.events import DeviceInfo
from rankdeck.launch import locks
from rankdeck.run import race as races
from rankdeck.run.race import EntryMeasurement, ExcludedStrategy, Race, RaceEntry, write_race
from rankdeck.run.race_verdicts import judge
from rankdeck.run_dir import RaceDir, RunDir, add_to_index, create_race
from tests.helpers.racing import plan_line

STEPS = 25
LOSSES = [4.0 / (1 + step) for step in range(STEPS)]


def shifted_losses(by: float, from_step: int = 1) -> list[float]:
    """Losses that are apart from the plain ones by such a share of themselves, from a step on."""
    return [loss * (1 + by * (step >= from_step)) for step, loss in enumerate(LOSSES, start=1)]


def make_entry(
    number: int,
    strategy: str,
    step_s: float | None = 0.1,
    losses: Sequence[float | None] = LOSSES,
    *,
    jitter: float = 0.001,
    reasons: dict[str, str] | None = None,
    repeats: int | None = None,
    state: str | None = None,
    **options: Any,
) -> RaceEntry:
    """One that completed, or failed where it has no step time."""
    predicted = plan_line(strategy, **options)
    measured = None
    if step_s is not None:
        times = [step_s * (1 + jitter * (at % 5 - 2)) for at in range(STEPS - 5)]
        measured = EntryMeasurement(
            step_s=times,
            samples_per_s=1 / step_s,
            peak_bytes=[5000, 4000],
            sent_bytes=2048,
            losses=list(losses),
            seconds=1.0,
        )
    return RaceEntry(
        number=number,
        folder=f"entries/{number}-{strategy}",
        label=strategy,
        strategy=strategy,
        options=predicted.options,
        predicted=predicted,
        state=state or (races.FAILED if measured is None else races.COMPLETED),
        measured=measured,
        repeats=repeats,
        seen=reasons or {},
    )


def judged_race(*entries: RaceEntry, kind: str = "gpu", precision: str = "fp32", **more: Any) -> Race:
    race = Race(
        name="r",
        title="Race · GPT · 2",
        began=0.0,
        source="measured on GPU" if kind == "gpu" else "measured in rehearsal",
        devices=[DeviceInfo(0, "H100", kind), DeviceInfo(1, "H100", kind)],
        steps=STEPS,
        global_batch=4,
        seed=0,
        precision=precision,
        entries=list(entries),
        **more,
    )
    judge(race)
    return race


class WrittenRace:
    """A race's folder. Its lock is held until `lose` or `end`."""

    def __init__(self, runs: Path) -> None:
        self.folder: RaceDir = create_race(runs, "Race · GPT · 2", "")
        self._lock = locks.lock(str(self.folder.lock), f"{os.getpid()}\n")

    def write(self, *entries: RaceEntry, left_out: Sequence[ExcludedStrategy] = (), **more: Any) -> Race:
        race = judged_race(*entries, left_out=list(left_out), **more)
        write_race(self.folder, race)
        add_to_index(RunDir(self.folder.path))
        return race

    def lose(self) -> None:
        os.close(self._lock)
