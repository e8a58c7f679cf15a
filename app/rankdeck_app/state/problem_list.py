"""List of all current problems: those of the draft, of refused launches, and of the open runs.

Each owner, such as the draft or a run, replaces only its own entries; views show all entries, those of the
newest owner first.
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
    """A problem; `owner` is one of the OWNER constants or a string that starts with the path of `run`."""

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
    """Return `Problem.text` in the window's language."""
    translated = translate_problem(problem)
    return "\n".join(filter(None, (translate(translated.headline()), translated.advice)))


class ProblemList(QObject):
    """All problems by owner.

    `entries` is in display order: the entries of one run are together, errors first, and those of runs other
    than `shown_run` come last.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._owners: dict[str, list[ListedProblem]] = {}
        self.shown_run: Path | None = None

    def set_shown_run(self, run: Path | None) -> None:
        """Set the run that is shown; None if no run is shown."""
        if run != self.shown_run:
            self.shown_run = run
            self.changed.emit()

    def is_of_other_run(self, entry: ListedProblem) -> bool:
        return self.shown_run is not None and entry.run not in (None, self.shown_run)

    @property
    def entries(self) -> list[ListedProblem]:
        newest_first = [entry for entries in reversed(self._owners.values()) for entry in entries]
        # Reversed, so that the first index of each group is the one that remains.
        groups = {entry.group: index for index, entry in reversed(list(enumerate(newest_first)))}
        return sorted(
            newest_first,
            key=lambda entry: (self.is_of_other_run(entry), groups[entry.group], entry.is_warning),
        )

    @property
    def num_errors(self) -> int:
        return sum(not entry.is_warning for entry in self.entries)

    @property
    def num_warnings(self) -> int:
        return sum(entry.is_warning for entry in self.entries)

    def set(self, owner: str, title: str, problems: Sequence[Problem], run: Path | None = None) -> None:
        """Replace the problems of an owner with `problems`, translated; if `problems` is empty, remove the
        owner."""
        entries = [ListedProblem(owner, title, translate_problem(problem), run) for problem in problems]
        if entries == self._owners.get(owner, []):
            return
        if entries:
            self._owners[owner] = entries
        else:
            self._owners.pop(owner, None)
        self.changed.emit()
