"""What moves in one step of a strategy with the reader's own model, batch and devices: the draft with that
strategy put in, asked of the planner.

    draft changed -> old process ended -> a moment of quiet -> the draft with this strategy, fixed where it
    cannot run -> one line of the planner -> a timeline

What had to be changed for it to run is said (`notes`), and nothing of it is written into the draft. Read
rankdeck/run/movement.py before; widgets/step_drawing.py draws the timeline.
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
"""Of the time of the device that sends most, in the drawing."""
FALLBACK_DEVICES = ("cpu:4", "cpu:2")
"""The first that the draft does not have, where a step cannot be drawn for its own."""
_CONFIGURED_STRATEGY = "own"
_MAX_FIXES = 4


@dataclass
class RunnableConfig:
    """A configuration that can run; None where `problem` has no fix. `notes`: what was changed, and why."""

    config: RunConfig | None = None
    problem: Problem | None = None
    notes: list[str] = field(default_factory=list)


class StepMovement(PlannerClient):
    """`changed`: the timeline, what is asked, or what stands in the way is new."""

    changed = Signal()

    def __init__(
        self, draft: Draft, planner: Planner, card: StrategySpec, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._draft, self._planner, self._spec = draft, planner, card
        self.variant: StrategyOptions = {}
        """Options that are tried here, and not in the draft."""
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
        """Whether a device takes in a step what was sent to it in one before."""
        return self._spec.is_stale

    @property
    def options(self) -> StrategyOptions:
        """The draft's options that this strategy has as well, as choosing it would keep them."""
        given = self._draft.tables.get("strategy")
        known = self._spec.options.model_fields
        return {key: value for key, value in given.items() if key in known} if isinstance(given, dict) else {}

    def variants(self) -> list[StrategyOptions]:
        """What else can be drawn: each choice of an option, and what a plan varies."""
        use = self._draft.value(("devices", "use"))
        try:
            num_devices = parse_devices(str(use)).known_count or 4
        except DeviceError:
            num_devices = 4
        return list_variants(self._spec, self.options, num_devices)

    def set_wanted(self, is_wanted: bool) -> None:
        """Somebody looks at the drawing, or no longer does; what has begun goes on."""
        self._is_wanted = is_wanted
        self._on_draft_changed()

    def set_variant(self, variant: StrategyOptions) -> None:
        if variant != self.variant:
            self.variant = variant
            self._on_draft_changed()

    def plan_now(self) -> None:
        """Ask now, whether planning is automatic or not."""
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
        own = [tables, str(self._draft.folder), {**self.options, **self.variant}]
        return json.dumps(own, sort_keys=True, default=str)

    def _on_draft_changed(self) -> None:
        """What is shown of an older draft goes; what is new waits for quiet, and for somebody to see it."""
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
        """`devices`: where it is drawn for instead of the draft's own, as `notes` say."""
        drawable = make_runnable(self._draft, self._spec, {**self.options, **self.variant}, devices)
        self._devices, self.notes = devices, [*notes, *drawable.notes]
        config = drawable.config
        if config is None:
            self.problem = drawable.problem.sentence if drawable.problem else ""
        elif self._is_single_device(config):
            self._plan_fallback(tr("On one device nothing moves."))
        elif config.user_code():
            self._planner.check_trust(config, partial(self._on_trust_checked, config), key=self)
        else:
            self._start_process(config)

    def _on_trust_checked(self, config: RunConfig, needs_trust: bool) -> None:
        if self._question != self._make_question():
            return  # the draft is another by now
        if needs_trust:
            self.problem = tr("This configuration has code of its own, which is run to draw its step.")
            self.needs_trust = True
        else:
            self._start_process(config)
        self.changed.emit()

    def _is_single_device(self, config: RunConfig) -> bool:
        return parse_devices(config.devices.use).known_count == 1 and not self._spec.one_device

    def _plan_fallback(self, why: str) -> None:
        devices = next(one for one in FALLBACK_DEVICES if one != self._draft.value(("devices", "use")))
        count = parse_devices(devices).known_count
        words = tr("{why} Drawn for {count} virtual devices instead.", why=why, count=count)
        self._stop_process()
        self._plan(devices, [words])

    def _start_process(self, config: RunConfig) -> None:
        process = self._planner.plan(config, _CONFIGURED_STRATEGY, None, self, movement=True)
        process.line_received.connect(self._on_line)
        process.ended.connect(self._on_ended)
        self._process = process
        process.start()

    def _on_line(self, line: PlanLine) -> None:
        if self.sender() is not self._process or not line.configured or line.changes:
            return
        self._stop_process()  # what would help is not asked for
        if line.movement is None:
            unknown = tr("The planner does not know what moves in it.")
            self._set_problem(reason_text(line) or unknown, can_retry=line.verdict == CANNOT)
        else:
            devices = line.movement.by_device()
            if len(devices) == 1 and not self._spec.one_device and self._devices is None:
                self._plan_fallback(tr("On one device nothing moves."))
            else:
                self._set_timeline(line, build_timeline(devices, MOVING_SHARE, overlaps=self.overlaps))
        self.changed.emit()

    def _set_timeline(self, line: PlanLine, laid_out: Timeline | None) -> None:
        self.line, self.timeline = line, laid_out
        if laid_out is None:
            self.problem = tr(
                "A step of more than {most} parts is not drawn. Try fewer microbatches, layers or devices.",
                most=MAX_OPERATIONS,
            )

    def _on_ended(self, reason: str) -> None:
        if self.sender() is not self._process:
            return
        self._process = None
        use = str(self._draft.value(("devices", "use")) or "auto")
        tries = not use.startswith("cpu")  # which the machine may not have
        self._set_problem(reason or tr("The planner has ended without an answer."), can_retry=tries)
        self.changed.emit()

    def _set_problem(self, reason: str, *, can_retry: bool) -> None:
        """Why there is no drawing of the draft; it is tried once for other devices where those may do."""
        if self._devices is None and can_retry:
            self._plan_fallback(reason)
        else:
            self.problem = reason


def list_variants(card: StrategySpec, options: Mapping[str, Any], num_devices: int) -> list[StrategyOptions]:
    """Options of which each makes another step than `options` do."""
    planned = card.planning.variants(num_devices)
    flags = {key for one in planned for key, value in one.items() if isinstance(value, bool)}
    found: list[StrategyOptions] = [
        {entry.name: choice}
        for entry in option_fields(card.options)
        for choice in (entry.choices if entry.kind == "choice" else (True, False) * (entry.name in flags))
    ]
    current = {**card.options().model_dump(), **options}
    new = [one for one in [*found, *planned] if any(current.get(key) != one[key] for key in one)]
    return [one for at, one in enumerate(new) if one not in new[:at]]


def make_runnable(
    draft: Draft, card: StrategySpec, options: Mapping[str, Any], devices: str | None
) -> RunnableConfig:
    """The draft with this strategy, and where it cannot run, with the changes that fix the problems."""
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
            if not problem.cure or "strategy.use" in problem.cure:
                drawable.problem = problem
                return drawable
            for dotted, value in problem.cure.items():
                _set_nested(tables, dotted.split("."), value)
            drawable.notes.append(_fix_note(problem))
    drawable.problem = problems[0]
    return drawable


def _fix_note(problem: Problem) -> str:
    """A problem, and with which fix the step is drawn all the same."""
    settings, left_out = map(translate, format_changes(problem.cure))
    if not left_out:
        return tr("{problem} Drawn as if you set {settings}.", problem=problem.message, settings=settings)
    if not settings:
        return tr("{problem} Drawn as if you leave {keys} out.", problem=problem.message, keys=left_out)
    return tr(
        "{problem} Drawn as if you set {settings} and leave {keys} out.",
        problem=problem.message,
        settings=settings,
        keys=left_out,
    )


def _set_nested(tables: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """One value at its place in nested tables; None takes it out."""
    *parents, last = path
    for key in parents:
        inside = tables.get(key)
        if not isinstance(inside, dict):
            inside = tables[key] = {} if inside is None else {"use": inside}
        tables = inside
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value
