"""Everything that is wrong now: with the draft, with launches that were refused, and with the open runs.

Each owner replaces its own entries; views show them all, the newest owner first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import Problem
from rankdeck_app.language import translate, translate_problem

DRAFT_OWNER = "draft"
SCRIPT_OWNER = "script"
LAUNCH_OWNER = "launch"
DEVICES_OWNER = "devices"


@dataclass(frozen=True)
class ListedProblem:
    """A problem and whose it is: DRAFT, SCRIPT, LAUNCH, DEVICES, or what begins with a run's path (`run` is
    then its directory).
    """

    owner: str
    title: str
    problem: Problem
    run: Path | None = None

    @property
    def group(self) -> str:
        return self.owner if self.run is None else str(self.run)

    @property
    def is_warning(self) -> bool:
        return self.problem.severity != "error"


def problem_text(problem: Problem) -> str:
    """`Problem.text` in the window's words."""
    said = translate_problem(problem)
    return "\n".join(filter(None, (translate(said.headline()), said.advice)))


class ProblemList(QObject):
    """`entries` in the order in which they are shown: what is of one run together, its errors first; of other
    runs than the one on show (`shown_run`) at the end."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._owners: dict[str, list[ListedProblem]] = {}
        self.shown_run: Path | None = None

    def set_shown_run(self, run: Path | None) -> None:
        """Another run is on show; None where none is."""
        if run != self.shown_run:
            self.shown_run = run
            self.changed.emit()

    def is_of_other_run(self, entry: ListedProblem) -> bool:
        return self.shown_run is not None and entry.run not in (None, self.shown_run)

    @property
    def entries(self) -> list[ListedProblem]:
        found = [entry for entries in reversed(self._owners.values()) for entry in entries]
        groups = {entry.group: place for place, entry in reversed(list(enumerate(found)))}
        return sorted(
            found,
            key=lambda entry: (self.is_of_other_run(entry), groups[entry.group], entry.is_warning),
        )

    @property
    def num_errors(self) -> int:
        return sum(not entry.is_warning for entry in self.entries)

    @property
    def num_warnings(self) -> int:
        return sum(entry.is_warning for entry in self.entries)

    def set(self, owner: str, title: str, problems: Sequence[Problem], run: Path | None = None) -> None:
        """The problems of an owner are these now, which are said in the window's words; none takes the owner
        off the list.
        """
        entries = [ListedProblem(owner, title, translate_problem(problem), run) for problem in problems]
        if entries == self._owners.get(owner, []):
            return
        if entries:
            self._owners[owner] = entries
        else:
            self._owners.pop(owner, None)
        self.changed.emit()
