"""What was predicted for the runs on show, so that it stands beside what they measure.

The answer is the one that the form showed before the launch; else it is kept from an earlier look, or the
planner is asked about the run's own configuration, one run after the other. Kept in the cache, not in the
run's directory, which the app only reads: a file that is gone is predicted anew.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from PySide6.QtCore import QObject

from rankdeck import plan_lines
from rankdeck.plan_lines import PlanLine
from rankdeck_app.files import write_whole
from rankdeck_app.state.plan import Plan
from rankdeck_app.state.plan_process import Planner, PlanProcess

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun


class Predictions(QObject):
    """Tells each run that is followed what was predicted for it, as soon as that is known."""

    def __init__(self, folder: Path, planner: Planner, plan: Plan, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._folder, self._planner, self._plan = folder, planner, plan
        self._awaited: list[LiveRun] = []
        self._ready: list[LiveRun] = []
        self._process: PlanProcess | None = None
        plan.changed.connect(self._go_on)

    def follow(self, run: LiveRun) -> None:
        """A run is being read; its devices are known a little later."""
        self._awaited.append(run)
        run.changed.connect(partial(self._look, run))

    def forget(self, run: LiveRun) -> None:
        for runs in (self._awaited, self._ready):
            if run in runs:
                runs.remove(run)

    def close(self) -> None:
        self._awaited.clear()
        self._ready.clear()
        if self._process is not None:
            self._process.end()
        for process in self.findChildren(PlanProcess):
            process.wait()

    def _look(self, run: LiveRun, _changed: object = None) -> None:
        if run in self._awaited and run.config is not None and run.devices:
            self._awaited.remove(run)
            kept = self._read(run)
            if kept is not None:
                run.predict(kept)
            else:
                self._ready.append(run)
                self._go_on()

    def _go_on(self) -> None:
        """Take what the form knows; ask about the next run when the form has no question open."""
        for run in list(self._ready):
            assert run.config is not None
            line = self._plan.line_for(run.config)
            if line is not None and _is_of(line, run):
                self._tell(run, line)
        if (
            self._ready
            and self._process is None
            and not self._plan.is_asking
            and self._planner.is_automatic()
        ):
            self._ask(self._ready[0])

    def _ask(self, run: LiveRun) -> None:
        assert run.config is not None
        if self._planner.needs_trust(run.config):
            self._ready.remove(run)
            return
        try:
            process = self._planner.ask(run.config, run.config.strategy.use, _devices_of(run), self)
        except OSError:
            self._ready.remove(run)
            return
        process.told.connect(partial(self._told, run))
        process.ended.connect(lambda _reason: self._answered(run))
        self._process = process
        process.start()

    def _told(self, run: LiveRun, line: PlanLine) -> None:
        if line.configured and not line.changes and self._process is not None:
            self._process.end()
            if run in self._ready and _is_of(line, run):
                self._tell(run, line)
            self._answered(run)

    def _answered(self, run: LiveRun) -> None:
        self._process = None
        self.forget(run)
        self._go_on()

    def _tell(self, run: LiveRun, line: PlanLine) -> None:
        self._ready.remove(run)
        run.predict(line)
        try:
            write_whole(self._file(run), plan_lines.encode(line).decode())
        except OSError:
            pass  # it is predicted anew at the next look

    def _file(self, run: LiveRun) -> Path:
        return self._folder / f"{run.name}.json"

    def _read(self, run: LiveRun) -> PlanLine | None:
        try:
            line = plan_lines.decode(self._file(run).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return line if _is_of(line, run) else None


def _is_of(line: PlanLine, run: LiveRun) -> bool:
    """Whether a line speaks of devices like the run's."""
    is_virtual = all((device.name or "").startswith("Virtual ") for device in line.devices)
    return len(line.devices) == len(run.devices) and is_virtual == run.is_rehearsal


def _devices_of(run: LiveRun) -> str:
    if run.is_rehearsal:
        return f"cpu:{len(run.devices)}"
    return "gpu:" + ",".join(device.info.uuid or str(device.info.index) for device in run.devices)
