"""Plan of the draft: the planner's predictions by strategy for the current draft.

    draft changed -> stop the process, drop old answers -> wait until typing pauses -> new process -> rows

Answers remain valid if only the strategy changes, so choosing another strategy requests only missing answers;
any other change that affects memory drops all answers. Unless all strategies are shown, only the chosen one
is planned. Planning a configuration with the user's own code executes that code, so its folder must be
trusted first. Read rankdeck/run/plan_lines.py first, and plan_text.py for how an answer is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import Problem
from rankdeck.config import RunConfig
from rankdeck.config.catalog import STRATEGIES
from rankdeck.diagnose.fixes import strategy_changes
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, TIGHT, PlanLine
from rankdeck.run.plan_marks import PlanMarks, mark_lines
from rankdeck_app.language import tr, translate, translate_problem
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.plan_process import Planner, PlannerClient
from rankdeck_app.state.plan_text import requested_target_text, target_text
from rankdeck_app.state.plan_verification import PlanVerification
from rankdeck_app.state.toml_writer import KeyPath

DEBOUNCE_MS = 400
_ALL_STRATEGIES = "all"
# Verdicts for which the planner has fixes, if the strategy is the configuration's own.
_FIXABLE_VERDICTS = (TIGHT, DOES_NOT_FIT)
# Keys that do not change a step's memory.
_IRRELEVANT_KEYS = {
    "": ("name", "strategy", "launch"),
    "train": ("steps", "seed", "evaluate_every", "verify"),
}


@dataclass
class PlanRow:
    """Row of a strategy with its options: it has an answer (`line`) or a `failure`, or is still pending."""

    strategy: str
    label: str
    line: PlanLine | None = None
    failure: str = ""


class DraftPlan(PlannerClient):
    """The plan of the draft; `changed` is emitted when rows, requests or obstacles change."""

    changed = Signal()

    def __init__(self, draft: Draft, planner: Planner, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._draft, self.planner = draft, planner
        self.devices: str | None = None
        """Devices to plan for, as in `--devices` (GPUs need not exist); None for the draft's devices."""
        self.rows: list[PlanRow] = []
        self.fixes: list[PlanLine] = []
        self._failure = ""
        self._wants_chosen = self._wants_all = False
        self._has_all = False
        self._question = ""
        self._answered_choices: set[str] = set()
        self._trusted_code: tuple[str, ...] | None = None
        """The code that the last check found to be trusted."""
        self._asked_strategy = ""
        self._debounce_timer = QTimer(self, interval=DEBOUNCE_MS, singleShot=True)
        self._debounce_timer.timeout.connect(self._request)
        self.verification = PlanVerification(self, self)
        self.verification.changed.connect(self.changed)
        draft.changed.connect(self._on_draft_changed)
        self._clear_answers()

    # Answers

    @property
    def config(self) -> RunConfig | None:
        """The draft's configuration; None while it has problems other than those of the chosen strategy."""
        return self._draft.plan_config

    @property
    def lines(self) -> list[PlanLine]:
        """The planner's lines so far, in the order of the rows; lines for fixes are not included."""
        return [row.line for row in self.rows if row.line is not None]

    @property
    def target(self) -> str:
        """The devices that the rows are planned for; until the planner has answered, those requested."""
        planned = next((target_text(line) for line in self.lines if line.target), None)
        configured = str(self._draft.value(("devices", "use")) or "auto")
        return planned or self.devices or requested_target_text(configured)

    @property
    def is_planning(self) -> bool:
        return self._process is not None or self._debounce_timer.isActive()

    @property
    def is_complete(self) -> bool:
        return self._has_all and self._process is None

    @property
    def problem(self) -> str:
        """Why there are no answers, or no further answers; "" if there is no obstacle."""
        if self._draft.plan_config is None:
            return self._draft.problems[0].sentence
        if self.needs_trust:
            return tr("This configuration uses code that is not trusted yet; planning would execute it.")
        return self._failure

    @property
    def needs_trust(self) -> bool:
        """Whether the draft uses user code that is not trusted, or whose trust has not been checked yet."""
        config = self._draft.plan_config
        return config is not None and bool(config.user_code()) and self._trusted_code != _code_key(config)

    @property
    def chosen_line(self) -> PlanLine | None:
        """The planner's line for the draft's strategy and options, or None."""
        return next((line for line in self.lines if self.is_chosen(line)), None)

    @property
    def refusal(self) -> Problem | None:
        """The problem that would make the draft's run fail at once; None if the planner found none."""
        line = None if self.devices is not None else self.chosen_line
        return None if line is None or line.refusal is None else translate_problem(line.refusal)

    def recheck_refusal(self) -> None:
        """Plan again if the refusal depends on files that the user may have corrected in the meantime."""
        config, refusal = self._draft.plan_config, self.refusal
        reads_files = refusal is not None and (refusal.path or "").startswith("data.")
        if config is not None and refusal is not None and (reads_files or config.user_code()):
            self.plan_again()

    @property
    def chosen_failure(self) -> str:
        """Why the draft's strategy has no answer and will get none; "" if planning it has not failed."""
        strategy = self.chosen_strategy
        return next((row.failure for row in self.rows if row.strategy == strategy and row.failure), "")

    @property
    def chosen_strategy(self) -> str:
        """The draft's strategy, even if the planner has no prediction for it."""
        return str(self._draft.value(("strategy", "use")) or "single")

    @property
    def marks(self) -> tuple[PlanLine | None, PlanLine | None, str]:
        """The least-memory line, the recommended line and why it is recommended, once all answers have
        arrived."""
        if not self.is_complete or self._failure:
            return None, None, ""
        lines = self.lines
        marked: PlanMarks = mark_lines(lines)
        return (
            None if marked.cheapest is None else lines[marked.cheapest],
            None if marked.recommended is None else lines[marked.recommended],
            translate(marked.reason),
        )

    def is_chosen(self, line: PlanLine) -> bool:
        config = self._draft.plan_config
        return config is not None and is_same_strategy(line, config)

    # Requests

    def start(self) -> None:
        """Plan the chosen strategy soon, and again whenever the draft changes."""
        self._wants_chosen = True
        self._request_soon()

    def set_wants_all(self, is_wanted: bool) -> None:
        """Set whether all strategies are shown; running requests continue."""
        self._wants_all = is_wanted
        self._request_soon()

    def set_devices(self, devices: str | None) -> None:
        if devices != self.devices:
            self.devices = devices
            self._clear_answers()
            self.verification.discard_if_outdated()
            self._request_soon()

    def plan_again(self) -> None:
        """Drop the planner's answers so far, and plan again without delay."""
        self._clear_answers()
        self._check_trust(self._request)

    def find_line(self, config: RunConfig) -> PlanLine | None:
        """Return the plan line for `config`, which may differ from the draft only in strategy and devices."""
        draft_config = self._draft.config
        if (
            draft_config is None
            or self.devices is not None
            or _step_tables(draft_config) != _step_tables(config)
        ):
            return None
        return next((line for line in self.lines if is_same_strategy(line, config)), None)

    def close(self) -> None:
        self._debounce_timer.stop()
        self._wants_all = self._wants_chosen = False
        self.verification.close()
        self._abort_processes()

    def _on_draft_changed(self) -> None:
        """Drop outdated answers at once, and request new answers after a delay."""
        if self.question != self._question:
            self._clear_answers()
            self.verification.discard_if_outdated()
        self._request_soon()

    def _check_trust(self, then: Callable[[], object]) -> None:
        """Check whether the draft's user code, if any, is trusted, and call `then` in either case."""
        config = self._draft.plan_config
        if config is None or not config.user_code():
            then()
            return
        code = _code_key(config)

        def on_checked(needs_trust: bool) -> None:
            self._trusted_code = None if needs_trust else code
            then()

        self.planner.check_trust(config, on_checked, key=self)

    def _request_soon(self) -> None:
        self._check_trust(self._start_debounce)

    def _start_debounce(self) -> None:
        if self.planner.is_automatic() and self._needs_answers():
            self._debounce_timer.start()
        self.changed.emit()

    @property
    def question(self) -> str:
        """Everything in the draft that the planner's answers depend on, as a string."""
        tables = relevant_tables(self._draft.tables)
        return json.dumps([tables, str(self._draft.folder), self.devices], sort_keys=True, default=str)

    def _clear_answers(self) -> None:
        """Drop the planner's answers so far; rows keep their positions and become pending."""
        self._debounce_timer.stop()
        self._stop_process()
        self._question = self.question
        self._has_all = False
        self._answered_choices.clear()
        self._failure, self.fixes = "", []
        row_keys = [(row.strategy, row.label) for row in self.rows if not row.failure]
        self.rows = [PlanRow(*row) for row in row_keys or [(name, name) for name in STRATEGIES]]

    def _needs_answers(self) -> bool:
        config = self._draft.plan_config
        if not (self._wants_all or self._wants_chosen):
            return False
        if config is None or self.needs_trust:
            return False
        if self._wants_all and not self._has_all:
            return self._process is None or self._asked_strategy != _ALL_STRATEGIES
        if self._process is not None or _choice_key(config) in self._answered_choices:
            return False
        chosen = self.chosen_line
        return chosen is None or (self._wants_all and chosen.verdict in _FIXABLE_VERDICTS)

    def _request(self) -> None:
        self._debounce_timer.stop()
        config = self._draft.plan_config
        if config is not None and self._needs_answers():
            self._start_process(config)
        self.changed.emit()

    def _start_process(self, config: RunConfig) -> None:
        self._stop_process()
        self._failure = ""
        self._asked_strategy = (
            _ALL_STRATEGIES if self._wants_all and not self._has_all else config.strategy.use
        )
        # Added before the answer, so that a choice that fails is not requested again.
        self._answered_choices.add(_choice_key(config))
        single_fixes = (line for line in self.fixes if line.saves_bytes is not None)
        self.fixes = [line for line in single_fixes if line.strategy != config.strategy.use]
        process = self.planner.plan(config, self._asked_strategy, self.devices, self)
        process.line_received.connect(self._on_line)
        process.ended.connect(self._on_ended)
        self._process = process
        process.start()

    def _on_line(self, line: PlanLine) -> None:
        if self.sender() is not self._process:
            return
        if line.changes:
            self.fixes.append(line)
        else:
            self._insert_line(line)
            is_fixable = self._wants_all and line.verdict in _FIXABLE_VERDICTS
            if line.configured and self._asked_strategy != _ALL_STRATEGIES and not is_fixable:
                self._stop_process()  # further lines were not requested
        self.changed.emit()

    def _insert_line(self, line: PlanLine) -> None:
        """Add a row for a plan line. The row replaces an earlier row with the same strategy and label, and
        the strategy's placeholder row."""
        expected = PlanRow(line.strategy, line.strategy)
        same = (line.strategy, line.label)
        self.rows = [row for row in self.rows if (row.strategy, row.label) != same and row != expected]
        self.rows.append(PlanRow(line.strategy, line.label, line))
        order = {name: at for at, name in enumerate(STRATEGIES)}
        self.rows.sort(key=lambda row: (order.get(row.strategy, len(order)), row.label))

    def _on_ended(self, reason: str) -> None:
        if self.sender() is not self._process:
            return
        self._process = None
        asked_all = self._asked_strategy == _ALL_STRATEGIES
        self._failure = reason
        self._has_all = self._has_all or asked_all
        answered = {line.strategy for line in self.lines}
        if asked_all:
            # Drop rows that got no answer: labels of an older draft, or a placeholder with the strategy's
            # name.
            self.rows = [row for row in self.rows if row.line or (reason and row.strategy not in answered)]
        for row in self.rows:
            if row.line is None and reason and (asked_all or row.strategy == self._asked_strategy):
                row.failure = reason
        if reason:
            self.changed.emit()
        else:
            self._request_soon()


def relevant_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's tables with only those keys on which the planner's answers can depend."""
    relevant = {key: value for key, value in tables.items() if key not in _IRRELEVANT_KEYS[""]}
    train = relevant.get("train")
    if isinstance(train, dict):
        relevant["train"] = {
            key: value for key, value in train.items() if key not in _IRRELEVANT_KEYS["train"]
        }
    return relevant


def _step_tables(config: RunConfig) -> dict[str, Any]:
    """Return the tables that define a configuration's training step, except the table of devices."""
    tables = relevant_tables(config.to_dict())
    tables.pop("devices")
    return tables


def _code_key(config: RunConfig) -> tuple[str, ...]:
    return (str(config.folder), *config.user_code())


def _choice_key(config: RunConfig) -> str:
    return json.dumps([config.strategy.use, config.strategy.options], sort_keys=True, default=str)


def full_options(line: PlanLine) -> dict[str, Any]:
    """Return a line's options, with defaults for those that the line omits."""
    card = STRATEGIES.get(line.strategy)
    defaults = {} if card is None else card.options().model_dump(exclude_none=True)
    return {**defaults, **line.options}


def is_same_strategy(line: PlanLine, config: RunConfig) -> bool:
    if line.strategy != config.strategy.use or line.changes:
        return False
    configured: Mapping[str, Any] = config.strategy.options
    options = full_options(line)
    return all(
        _to_json_value(options.get(key)) == _to_json_value(configured.get(key))
        for key in {*options, *configured}
    )


def _to_json_value(value: Any) -> Any:
    """Return a value as it would be after a round trip through JSON: tuples become lists."""
    return list(value) if isinstance(value, tuple) else value


def can_choose(line: PlanLine) -> bool:
    return line.verdict != CANNOT


def choose_line(draft: Draft, line: PlanLine) -> None:
    """Write a line's strategy, options and changes into the draft, all at once.

    Options with default values are left out, and the previous strategy's options are removed.
    """
    before = draft.value(("strategy",))
    values: dict[KeyPath, Any] = {
        ("strategy", key): None for key in (before if isinstance(before, dict) else {}) if key != "use"
    }
    changes = {**strategy_changes(line), **line.changes}
    values |= {tuple(dotted.split(".")): value for dotted, value in changes.items()}
    draft.set_values(values)
