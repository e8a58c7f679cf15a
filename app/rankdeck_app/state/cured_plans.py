"""What a cure would make of a run's memory, before anybody takes it: planned when a person looks at it.

The planner is asked for the run's configuration with the cure applied, on the run's own devices, and what it
says stands beside the live bars of that run. One cure is looked at at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, QTimer

from rankdeck.base.errors import ConfigError
from rankdeck.config import RunConfig
from rankdeck.config.cures import cured
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.ways_out import cure_name
from rankdeck_app.language import in_words, tr
from rankdeck_app.state.cured_plan import CuredPlan
from rankdeck_app.state.plan_process import Asker, Planner
from rankdeck_app.state.plan_words import reason_text

if TYPE_CHECKING:
    from rankdeck_app.state.live_run import LiveRun

REST_MS = 250
"""So long a pointer rests before a plan is asked for: it may only be on its way."""


class CuredPlans(Asker):
    """`show` and `hide` change what one LiveRun shows."""

    def __init__(self, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._planner = planner
        self._run: LiveRun | None = None
        self._cure: Mapping[str, Any] = {}
        self._known: dict[str, CuredPlan] = {}
        self._rest = QTimer(self, interval=REST_MS, singleShot=True)
        self._rest.timeout.connect(self._look)

    def show(self, run: LiveRun, cure: Mapping[str, Any]) -> None:
        """Somebody looks at a cure of a run."""
        if self._run is not run:
            self.hide()
        self._run, self._cure = run, cure
        self._rest.start()

    def hide(self) -> None:
        """Nobody looks at any more."""
        self._rest.stop()
        run, self._run = self._run, None
        if run is not None:
            run.show_cured(None)

    def forget(self, run: LiveRun) -> None:
        """The run is closed."""
        if self._run is run:
            self._rest.stop()
            self._run = None

    def close(self) -> None:
        self._rest.stop()
        self._run = None
        self._end_processes()

    def _look(self) -> None:
        run = self._run
        if run is None or run.config is None:
            return
        plan = CuredPlan(cure_name(self._cure))
        try:
            config = cured(run.config, self._cure)
        except ConfigError as error:
            run.show_cured(replace(plan, why_not=in_words(error.problem).message))
            return
        ask = partial(self._plan, run, plan, config)
        self._planner.look_at_trust(config, ask, key=self, run=run.run.path)

    def _plan(self, run: LiveRun, plan: CuredPlan, config: RunConfig, needs_trust: bool) -> None:
        if run is not self._run:
            return
        key = f"{_devices(run)}\n{config.to_toml()}"
        if needs_trust:
            run.show_cured(replace(plan, why_not=tr("its code is not trusted")))
        elif key in self._known:
            run.show_cured(self._known[key])
        else:
            run.show_cured(plan)
            self._ask(config, key, plan)

    def _ask(self, config: RunConfig, key: str, plan: CuredPlan) -> None:
        assert self._run is not None
        self._drop_process()
        process = self._process = self._planner.ask(config, config.strategy.use, _devices(self._run), self)
        process.line_came.connect(lambda line: self._take(key, plan, line))
        process.ended.connect(lambda reason: self._ended(key, plan, reason))
        process.start()

    def _take(self, key: str, plan: CuredPlan, line: PlanLine) -> None:
        """The cured configuration's own row; the others are other options of its strategy."""
        if line.configured and not line.changes and key not in self._known:
            why_not = "" if line.devices else reason_text(line) or tr("the planner does not know")
            self._tell(key, replace(plan, line=line if line.devices else None, why_not=why_not))

    def _ended(self, key: str, plan: CuredPlan, reason: str) -> None:
        self._process = None
        if key not in self._known:
            self._tell(key, replace(plan, why_not=reason or tr("the planner does not know")), keep=False)

    def _tell(self, key: str, plan: CuredPlan, *, keep: bool = True) -> None:
        if keep:
            self._known[key] = plan
        if self._run is not None and cure_name(self._cure) == plan.words:
            self._run.show_cured(plan)


def _devices(run: LiveRun) -> str | None:
    """The run's own, as the planner is told: what it would take by itself may be others by now."""
    uuids = [device.uuid for device in run.devices if device.uuid]
    if run.has_gpus:
        return f"gpu:{','.join(uuids)}" if uuids else None
    return f"cpu:{len(run.devices)}" if run.devices else None
