"""Data that a strategy moves in one step, drawn for the user's own model, batch and devices.

    draft changed -> stop the running planner -> wait until typing pauses -> put this strategy into a copy of
    the draft and apply fixes -> start the planner -> read one plan line -> build the timeline

The changes that make the configuration runnable are listed in `notes`, and are not written into the draft.
Read rankdeck/run/movement.py first; widgets/step_drawing.py draws the timeline.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError, DeviceError, Problem, format_changes
from rankdeck.config import RunConfig, from_dict
from rankdeck.config.catalog import StrategySpec, option_fields
from rankdeck.config.devices import parse_devices
from rankdeck.config.planning import StrategyOptions
from rankdeck.run.movement import MAX_OPERATIONS, Timeline, build_timeline
from rankdeck.run.plan_lines import CANNOT, PlanLine
from rankdeck_app.language import tr, translate, translate_problem
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan import DEBOUNCE_MS, relevant_tables
from rankdeck_app.state.plan_process import Planner, PlannerClient
from rankdeck_app.state.plan_text import reason_text

MOVING_SHARE = 0.3
"""Share of the drawn step's time that the device with the most bytes to send spends on sending."""
FALLBACK_DEVICES = ("cpu:4", "cpu:2")
"""Devices to try if no step can be drawn for the draft's devices; the first entry that differs from the
draft's is used."""
_CONFIGURED_STRATEGY = "own"
# One fix may reveal another problem, so several rounds are tried.
_MAX_FIXES = 4


@dataclass
class RunnableConfig:
    """A configuration made runnable by fixes; `config` is None if `problem` could not be fixed.

    `notes` lists the changes that were made, and the reason for each.
    """

    config: RunConfig | None = None
    problem: Problem | None = None
    notes: list[str] = field(default_factory=list)


class StepMovement(PlannerClient):
    """Data that a strategy moves in one step. `changed` is emitted when `timeline`, `is_planning` or
    `problem` (the reason why no step is drawn) changes."""

    changed = Signal()

    def __init__(
        self, draft: Draft, planner: Planner, card: StrategySpec, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._draft, self._planner, self._spec = draft, planner, card
        self.variant: StrategyOptions = {}
        """Options that the user tries on the strategy page; they are not written into the draft."""
        self.line: PlanLine | None = None
        self.timeline: Timeline | None = None
        self.notes: list[str] = []
        self.problem = ""
        self.needs_trust = False
        self._is_wanted = False
        self._question = ""
        self._devices: str | None = None
        self._debounce_timer = QTimer(self, interval=DEBOUNCE_MS, singleShot=True)
        self._debounce_timer.timeout.connect(self.plan_now)
        draft.changed.connect(self._on_draft_changed)

    @property
    def is_planning(self) -> bool:
        return self._process is not None or self._debounce_timer.isActive()

    @property
    def overlaps(self) -> bool:
        """Whether a step uses data that was sent in an earlier step."""
        return self._spec.is_stale

    @property
    def options(self) -> StrategyOptions:
        """The options of the draft's strategy that this strategy also has; choosing this strategy would keep
        them."""
        draft_options = self._draft.tables.get("strategy")
        known_keys = self._spec.options.model_fields
        return (
            {key: value for key, value in draft_options.items() if key in known_keys}
            if isinstance(draft_options, dict)
            else {}
        )

    def variants(self) -> list[StrategyOptions]:
        """Return the sets of options that can be drawn instead of the current options: a set for each choice
        of an option, and the sets that the planner compares."""
        use = self._draft.value(("devices", "use"))
        try:
            num_devices = parse_devices(str(use)).known_count or 4
        except DeviceError:
            num_devices = 4
        return list_variants(self._spec, self.options, num_devices)

    def set_wanted(self, is_wanted: bool) -> None:
        """Set whether the drawing is shown; a request that is already running continues."""
        self._is_wanted = is_wanted
        self._on_draft_changed()

    def set_variant(self, variant: StrategyOptions) -> None:
        if variant != self.variant:
            self.variant = variant
            self._on_draft_changed()

    def plan_now(self) -> None:
        """Plan now, even if automatic planning is off."""
        self._clear()
        self._question = self._make_question()
        self._plan(None, [])
        self.changed.emit()

    def close(self) -> None:
        self._is_wanted = False
        self._debounce_timer.stop()
        self._abort_processes()

    def _make_question(self) -> str:
        tables = relevant_tables(self._draft.tables)
        values = [tables, str(self._draft.folder), {**self.options, **self.variant}]
        return json.dumps(values, sort_keys=True, default=str)

    def _on_draft_changed(self) -> None:
        """Drop an outdated result; if the drawing is shown, request a new one after a delay."""
        if self._make_question() == self._question:
            return
        self._clear()
        if self._is_wanted and self._planner.is_automatic():
            self._debounce_timer.start()
        self.changed.emit()

    def _clear(self) -> None:
        self._debounce_timer.stop()
        self._stop_process()
        self.line = self.timeline = None
        self.notes, self.problem, self.needs_trust, self._question = [], "", False, ""

    def _plan(self, devices: str | None, notes: Sequence[str]) -> None:
        """Plan the step on `devices`, or on the draft's devices if `devices` is None. `notes` gives the
        reasons for using other devices."""
        drawable = make_runnable(self._draft, self._spec, {**self.options, **self.variant}, devices)
        self._devices, self.notes = devices, [*notes, *drawable.notes]
        config = drawable.config
        if config is None:
            self.problem = drawable.problem.sentence if drawable.problem else ""
        elif self._is_single_device(config):
            self._plan_fallback(tr("On a single device, no data moves."))
        elif config.user_code():
            self._planner.check_trust(config, partial(self._on_trust_checked, config), key=self)
        else:
            self._start_process(config)

    def _on_trust_checked(self, config: RunConfig, needs_trust: bool) -> None:
        if self._question != self._make_question():
            return  # the draft has changed meanwhile
        if needs_trust:
            self.problem = tr(
                "This configuration uses code that is not trusted yet; drawing a step would execute it."
            )
            self.needs_trust = True
        else:
            self._start_process(config)
        self.changed.emit()

    def _is_single_device(self, config: RunConfig) -> bool:
        return parse_devices(config.devices.use).known_count == 1 and not self._spec.one_device

    def _plan_fallback(self, why: str) -> None:
        devices = next(use for use in FALLBACK_DEVICES if use != self._draft.value(("devices", "use")))
        count = parse_devices(devices).known_count
        note = tr("{why} The step is drawn for {count} virtual devices instead.", why=why, count=count)
        self._stop_process()
        self._plan(devices, [note])

    def _start_process(self, config: RunConfig) -> None:
        process = self._planner.plan(config, _CONFIGURED_STRATEGY, None, self, movement=True)
        process.line_received.connect(self._on_line)
        process.ended.connect(self._on_ended)
        self._process = process
        process.start()

    def _on_line(self, line: PlanLine) -> None:
        if self.sender() is not self._process or not line.configured or line.changes:
            return
        self._stop_process()  # fixes are not requested
        if line.movement is None:
            unknown = tr("The planner cannot predict which data this step moves.")
            self._set_problem(reason_text(line) or unknown, can_retry=line.verdict == CANNOT)
        else:
            devices = line.movement.by_device()
            # Only the planner's answer shows that `auto` means a single device.
            if len(devices) == 1 and not self._spec.one_device and self._devices is None:
                self._plan_fallback(tr("On a single device, no data moves."))
            else:
                self._set_timeline(line, build_timeline(devices, MOVING_SHARE, overlaps=self.overlaps))
        self.changed.emit()

    def _set_timeline(self, line: PlanLine, laid_out: Timeline | None) -> None:
        self.line, self.timeline = line, laid_out
        if laid_out is None:
            self.problem = tr(
                "Steps with more than {most} operations are not drawn. Try fewer "
                "micro-batches, layers or devices.",
                most=MAX_OPERATIONS,
            )

    def _on_ended(self, reason: str) -> None:
        if self.sender() is not self._process:
            return
        self._process = None
        use = str(self._draft.value(("devices", "use")) or "auto")
        tries = not use.startswith("cpu")  # GPUs, which the machine may lack
        self._set_problem(reason or tr("The planner ended without a result."), can_retry=tries)
        self.changed.emit()

    def _set_problem(self, reason: str, *, can_retry: bool) -> None:
        """Set the reason why the draft's step is not drawn. If `can_retry` is True and no other devices have
        been tried yet, try other devices instead."""
        if self._devices is None and can_retry:
            self._plan_fallback(reason)
        else:
            self.problem = reason


def list_variants(card: StrategySpec, options: Mapping[str, Any], num_devices: int) -> list[StrategyOptions]:
    """Return sets of options that differ from `options`: a set for each choice of a single option, and the
    sets that the planner compares."""
    planned = card.planning.variants(num_devices)
    flags = {key for variant in planned for key, value in variant.items() if isinstance(value, bool)}
    by_option: list[StrategyOptions] = [
        {entry.name: choice}
        for entry in option_fields(card.options)
        for choice in (entry.choices if entry.kind == "choice" else (True, False) * (entry.name in flags))
    ]
    current = {**card.options().model_dump(), **options}
    new = [
        variant
        for variant in [*by_option, *planned]
        if any(current.get(key) != variant[key] for key in variant)
    ]
    return [variant for at, variant in enumerate(new) if variant not in new[:at]]


def make_runnable(
    draft: Draft, card: StrategySpec, options: Mapping[str, Any], devices: str | None
) -> RunnableConfig:
    """Return the draft's configuration with the strategy `card`, after applying the fixes that the
    configuration's problems offer."""
    # Fixes are applied to a copy: nothing is written into the draft.
    tables = copy.deepcopy(draft.tables)
    tables["strategy"] = {"use": card.name, **options}
    if devices is not None:
        tables["devices"] = {"use": devices}
    drawable = RunnableConfig()
    for _ in range(_MAX_FIXES):
        try:
            drawable.config = from_dict(tables, folder=draft.folder, stem=draft.stem, resolve=Path.absolute)
        except ConfigError as error:
            problems = [translate_problem(problem) for problem in error.problems]
        else:
            return drawable
        for problem in problems:
            # A fix that changes the strategy would draw another strategy than the page describes.
            if not problem.cure or "strategy.use" in problem.cure:
                drawable.problem = problem
                return drawable
            for dotted, value in problem.cure.items():
                _set_nested(tables, dotted.split("."), value)
            drawable.notes.append(_fix_note(problem))
    drawable.problem = problems[0]
    return drawable


def _fix_note(problem: Problem) -> str:
    """Return a problem's message, followed by the fix that was applied so that the step can be drawn."""
    settings, left_out = map(translate, format_changes(problem.cure))
    if not left_out:
        return tr("{problem} The step is drawn with {settings}.", problem=problem.message, settings=settings)
    if not settings:
        return tr("{problem} The step is drawn without {keys}.", problem=problem.message, keys=left_out)
    return tr(
        "{problem} The step is drawn with {settings} and without {keys}.",
        problem=problem.message,
        settings=settings,
        keys=left_out,
    )


def _set_nested(tables: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value in nested tables; None removes it."""
    *parents, last = path
    for key in parents:
        inside = tables.get(key)
        if not isinstance(inside, dict):
            # The text form, strategy = "dp", is short for strategy.use = "dp".
            inside = tables[key] = {} if inside is None else {"use": inside}
        tables = inside
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value
