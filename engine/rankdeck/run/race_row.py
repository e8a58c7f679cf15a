"""Read the list row of a race and the rows of its entries from race.json.

Only the step of a running entry is read from that entry's event files.

Read race.py and row.py first.
"""

from __future__ import annotations

from rankdeck.run.imbalance import find_imbalance
from rankdeck.run.race import (
    AGREES,
    DIFFERS,
    EXPECTED,
    LOST,
    RUNNING,
    Race,
    RaceEntry,
    entry_run,
    read_race,
)
from rankdeck.run.row import RaceFacts, RunInfo, RunMetrics, last_step
from rankdeck.run.run_intervals import RunInterval
from rankdeck.run_dir import RaceDir, labels_stamp, read_labels

_WORST_FIRST = (DIFFERS, EXPECTED, AGREES)


def race_info(folder: RaceDir) -> RunInfo:
    """Return the row of one race; values that are missing from its file remain unknown."""
    stamp, labels = labels_stamp(folder.path), read_labels(folder.path)
    race = read_race(folder)
    if race is None:
        return RunInfo(
            path=folder.path,
            title=labels.name or folder.name,
            outcome=LOST,
            labels=labels,
            labels_stamp=stamp,
            metrics=RunMetrics(),
            race=RaceFacts(),
        )
    fastest = race.entry(race.verdicts.fastest)
    verdicts = {entry.agreement.verdict for entry in race.unique_entries if entry.agreement is not None}
    return RunInfo(
        path=folder.path,
        title=race.title,
        outcome=race.outcome,
        started=race.began,
        intervals=()
        # A race that was killed has no end time.
        if race.outcome != RUNNING and race.ended is None
        else (RunInterval(race.began, race.ended),),
        num_devices=len(race.devices),
        device_kind=race.devices[0].kind,
        labels=labels,
        labels_stamp=stamp,
        metrics=RunMetrics(),
        race=RaceFacts(
            entries=tuple(_entry_info(folder, race, entry) for entry in race.entries),
            num_entries=len(race.unique_entries),
            num_done=race.num_finished,
            fastest=None if fastest is None else fastest.label,
            is_inconclusive=bool(race.verdicts.inconclusive),
            losses=next((verdict for verdict in _WORST_FIRST if verdict in verdicts), None),
        ),
    )


def _entry_info(folder: RaceDir, race: Race, entry: RaceEntry) -> RunInfo:
    run, measured = entry_run(folder, entry), entry.measured
    metrics, step = RunMetrics(), 0
    if entry.state == RUNNING:
        step = last_step(run)
    if measured is not None:
        peaks = dict(enumerate(measured.peak_bytes))
        losses = [loss for loss in measured.losses if loss is not None]
        step = race.steps
        metrics = RunMetrics(
            loss=losses[-1] if losses else None,
            peak_bytes=max((peak for peak in peaks.values() if peak is not None), default=None),
            imbalance=find_imbalance(peaks),
            samples_per_s=measured.samples_per_s,
        )
    # The process that ran the race was killed, so the state of the running entry was not updated any more.
    was_left = entry.state == RUNNING and race.outcome != RUNNING
    return RunInfo(
        path=run.path,
        title=entry.label if entry.repeats is None else f"{entry.label} again",
        outcome=LOST if was_left else entry.state,
        strategy=entry.strategy,
        num_devices=len(entry.predicted.devices) or None,
        device_kind=race.devices[0].kind,
        steps=race.steps,
        reason=None if entry.problem is None else entry.problem.message,
        step=step,
        metrics=metrics,
        entry_of=folder.path,
    )
