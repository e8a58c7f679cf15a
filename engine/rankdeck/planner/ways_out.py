"""What would need less memory than a run that had no room: every strategy, and one thing changed at a time.

Planned once for each attempt, on the devices that it had, and kept in the run's directory. Which of the lines
are ways out, and in which order, says run/ways_out.py. Read advice.py before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from rankdeck.base import files
from rankdeck.config import load
from rankdeck.events import DeviceInfo
from rankdeck.planner.accuracy import target_of_run
from rankdeck.planner.advice import advise
from rankdeck.planner.candidates import Candidate, candidates_for
from rankdeck.planner.fixes import fixes
from rankdeck.planner.pool import look_at_samples, plan_lines_of
from rankdeck.run import plan_lines
from rankdeck.run.bounds import ROW_TIMEOUT_S
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.ways_out import kept_lines, ways_file
from rankdeck.rundir import RunDir


def way_lines(run: RunDir, timeout_s: float = ROW_TIMEOUT_S) -> Iterator[PlanLine]:
    """The lines that are kept, or planned now, as they are known; none for a run that had no devices.

    Raises:
        ConfigError: its configuration cannot be read.
    """
    kept = kept_lines(run)
    if kept is not None:
        yield from kept
        return
    config = load(run.config_to_go_on_with)
    infos = [msgspec.convert(entry, DeviceInfo) for entry in run.environment().get("devices", [])]
    if not infos:
        return
    target = target_of_run(infos)
    if not target.like_cuda:
        capacity = config.capacity_bytes
        devices = tuple(replace(device, total_bytes=capacity) for device in target.devices)
        target = replace(target, devices=devices)
    samples = look_at_samples(config, timeout_s)

    def ask(rows: Sequence[Candidate]) -> Iterator[PlanLine]:
        return plan_lines_of(config, rows, target, timeout_s=timeout_s, samples=samples)

    rows = candidates_for(config, None, target.num_devices)
    by_label = {row.label: row for row in rows}
    lines: list[PlanLine] = []
    for line in ask(rows):
        lines.append(line)
        yield line
    own = next((line for line in lines if line.configured), None)
    if own is not None:
        for line in advise(own, by_label[own.label], config, target, ask, always=True):
            lines.append(line)
            yield line
    for line in fixes(lines, config, target, lambda _, rows: ask(rows), more_devices=False):
        lines.append(line)
        yield line
    files.write_own(ways_file(run), b"".join(map(plan_lines.encode, lines)))
