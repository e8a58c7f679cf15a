"""Verify that a plan's strategies give the same result as a single device: `rankdeck plan FILE --verify
--json`.

Real ranks rehearse the strategies one after another, which takes seconds or minutes, so a verification runs
on request only; a new plan does not start one. The results are valid while the draft is unchanged. Read
plan.py first.
"""

from __future__ import annotations

from typing import Protocol

from PySide6.QtCore import QObject, Signal

from rankdeck.config import RunConfig
from rankdeck.config.devices import MAX_VIRTUAL_DEVICES
from rankdeck.run.plan_lines import CANNOT, PlanLine
from rankdeck.run.verified import DIFFERS
from rankdeck_app.language import tr, translate
from rankdeck_app.state.plan_process import Planner, PlannerClient

PENDING = "pending"


class VerifiablePlan(Protocol):
    """Interface of a plan that can be verified; DraftPlan implements it."""

    devices: str | None

    @property
    def planner(self) -> Planner: ...
    @property
    def config(self) -> RunConfig | None: ...
    @property
    def question(self) -> str: ...
    @property
    def problem(self) -> str: ...
    @property
    def lines(self) -> list[PlanLine]: ...


class PlanVerification(PlannerClient):
    """Verification of a plan; `changed` is emitted for each result, and when the process starts or ends."""

    changed = Signal()

    def __init__(self, plan: VerifiablePlan, parent: QObject) -> None:
        super().__init__(parent)
        self._plan = plan
        self._question = ""
        self._lines: dict[tuple[str, str], PlanLine] = {}
        self._failure = ""

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def failure(self) -> str:
        """Why the verification ended early, or ""."""
        return self._failure if self._is_current else ""

    @property
    def _is_current(self) -> bool:
        return bool(self._question) and self._question == self._plan.question

    @property
    def obstacle(self) -> str:
        """Why nothing can be verified now; "" if there is no obstacle."""
        if self._plan.problem and not self._plan.lines:
            return self._plan.problem
        num_devices = max((len(line.devices) for line in self._plan.lines), default=0)
        if num_devices > MAX_VIRTUAL_DEVICES:
            return tr(
                "Strategies can be verified on at most {most} virtual devices.", most=MAX_VIRTUAL_DEVICES
            )
        return ""

    def get_outcome(self, line: PlanLine) -> str | None:
        """Return a plan line's outcome: "failed", "single", or an outcome that events.Verified lists.

        Return PENDING while the result may still arrive, and None if the outcome is unknown.
        """
        verified_line = self._find_line(line)
        if verified_line is not None:
            return verified_line.verified_outcome
        return PENDING if self.is_running and line.verdict != CANNOT else None

    def get_text(self, line: PlanLine) -> str:
        """Return the text of a line's verification result; "" if the result is unknown."""
        verified_line = self._find_line(line)
        return "" if verified_line is None else translate(verified_line.verified, verified_line.phrases)

    def is_different(self, line: PlanLine | None) -> bool:
        return line is not None and self.get_outcome(line) == DIFFERS

    def _find_line(self, line: PlanLine) -> PlanLine | None:
        return self._lines.get((line.strategy, line.label)) if self._is_current else None

    def start(self) -> None:
        """Verify every strategy of the plan, unless a verification is running."""
        config = self._plan.config
        if config is None or self.obstacle or self.is_running:
            return
        self._lines.clear()
        self._failure, self._question = "", self._plan.question
        process = self._plan.planner.verify(config, self._plan.devices, self)
        process.line_received.connect(self._on_line)
        process.ended.connect(self._on_ended)
        self._process = process
        process.start()
        self.changed.emit()

    def cancel(self) -> None:
        """Stop the verification; the results so far remain."""
        if self.is_running:
            self._stop_process()
            self.changed.emit()

    def discard_if_outdated(self) -> None:
        """Drop the results if the plan has changed since they were requested."""
        if self._question and not self._is_current:
            self._question = ""
            self._lines.clear()
            self.cancel()

    def close(self) -> None:
        self._abort_processes()

    def _on_line(self, line: PlanLine) -> None:
        if self.sender() is self._process and not line.changes:
            self._lines[line.strategy, line.label] = line
            self.changed.emit()

    def _on_ended(self, reason: str) -> None:
        if self.sender() is self._process:
            self._process, self._failure = None, reason
            self.changed.emit()
