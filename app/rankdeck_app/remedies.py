"""What can be done about a problem from here: the buttons of the Problems panel.

A table of rows (when it fits, what the button says, what it does), so that a cause that the engine learns to
name gets its button by one more row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rankdeck_app.desk import Desk
from rankdeck_app.run_tabs import RunTabs
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.problem_list import DRAFT, LAUNCH, Entry
from rankdeck_app.state.suggestion import REHEARSAL

Remedy = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class _Row:
    fits: Callable[[Entry], bool]
    label: str
    act: Callable[[Entry], object]


class Remedies:
    """`of` gives the buttons of an entry. `show_config` opens the configuration at a line."""

    def __init__(
        self,
        window: MainWindow,
        desk: Desk,
        tabs: RunTabs,
        show_config: Callable[[int | None], object],
    ) -> None:
        self._window = window
        self._desk = desk
        self._tabs = tabs
        self._rows = (
            _Row(_needs_rehearsal, "Rehearse Instead", lambda _entry: self._rehearse()),
            _Row(
                lambda entry: entry.owner == DRAFT and entry.problem.line is not None,
                "Go to Line",
                lambda entry: show_config(entry.problem.line),
            ),
            _Row(lambda entry: entry.owner == LAUNCH, "Dismiss", lambda _entry: self._dismiss()),
            _Row(_has_output, "Show Output", self._show_output),
            _Row(lambda entry: entry.run is not None, "Open Its Folder", self._reveal),
        )

    def of(self, entry: Entry) -> list[Remedy]:
        return [(row.label, lambda row=row: row.act(entry)) for row in self._rows if row.fits(entry)]  # type: ignore[misc]

    def _rehearse(self) -> None:
        self._desk.draft.set_value(("devices", "use"), REHEARSAL)
        self._desk.problems.set(LAUNCH, "", [])

    def _dismiss(self) -> None:
        self._desk.problems.set(LAUNCH, "", [])

    def _show_output(self, entry: Entry) -> None:
        from rankdeck_app.views.output import OutputView

        if entry.run is not None:
            self._tabs.open(entry.run)
        view = self._window.show_panel("output")
        if isinstance(view, OutputView):
            view.set_rank(entry.problem.rank)

    def _reveal(self, entry: Entry) -> None:
        if entry.run is not None:
            self._tabs.reveal(entry.run)


def _needs_rehearsal(entry: Entry) -> bool:
    return entry.owner in (DRAFT, LAUNCH) and entry.problem.code in ("no-gpu", "no-driver")


def _has_output(entry: Entry) -> bool:
    return entry.run is not None
