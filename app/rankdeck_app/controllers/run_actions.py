"""Defines the actions on selected runs in one table, from which menus, keys and the palette are built.

`selected_runs` are the runs selected in the list that has the keyboard focus, or had the focus when the
palette or a menu was opened. For each action, the context has a fact that is True if the action applies
("runsCan.rename"). "runsComparable" is True if two to eight runs (and no race) are selected; the menu then
offers the command `runs.compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMenu, QWidget

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.compare.run_ref import MAX_RUNS, MIN_RUNS
from rankdeck.run.row import RunInfo
from rankdeck_app.commands.table import Command
from rankdeck_app.language import tr
from rankdeck_app.shell.window import MainWindow

COMPARE_COMMAND = "runs.compare"
MAX_OPENED_RUNS = 20
"""Maximum number of runs to open at once; limited, because each run gets a tab and is read in full."""

ActionHandlers = Mapping[str, Callable[[list[RunInfo]], object]]


@dataclass(frozen=True)
class RunAction:
    """An action on selected runs. `applies_to` checks whether the action applies to the selected runs. `keys`
    are the shortcuts of the command "runs.<key>"."""

    key: str
    text: str
    group: int
    applies_to: Callable[[Sequence[RunInfo]], bool]
    keys: tuple[str, ...] = ()
    plural_text: Callable[[int], str] | None = None
    """Function that returns the label for a given number of runs."""


def _if_any(infos: Sequence[RunInfo]) -> bool:
    return bool(infos)


def _if_single(
    predicate: Callable[[RunInfo], bool] = lambda info: True,
) -> Callable[[Sequence[RunInfo]], bool]:
    return lambda infos: len(infos) == 1 and predicate(infos[0])


def _if_all(predicate: Callable[[RunInfo], bool]) -> Callable[[Sequence[RunInfo]], bool]:
    return lambda infos: bool(infos) and all(map(predicate, infos))


def _is_run(info: RunInfo) -> bool:
    return info.race is None and info.entry_of is None


def _is_standalone(info: RunInfo) -> bool:
    """Check whether the run can be named, archived and deleted on its own, unlike a run that is a race's
    entry."""
    return info.entry_of is None


RUN_ACTIONS = (
    RunAction(
        "open",
        tr_noop("Open"),
        0,
        lambda infos: 0 < len(infos) <= MAX_OPENED_RUNS,
        plural_text=lambda n: tr("Open {n} Runs", "Open {n} Run", n),
    ),
    RunAction(
        "save",
        tr_noop("Save Checkpoint Now"),
        1,
        _if_single(lambda info: info.is_alive and _is_run(info) and not info.is_script),
    ),
    RunAction(
        "stop",
        tr_noop("Stop"),
        1,
        _if_all(lambda info: info.is_alive and _is_standalone(info)),
        plural_text=lambda n: tr("Stop {n} Runs", "Stop {n} Run", n),
    ),
    RunAction("resume", tr_noop("Resume"), 1, _if_single(lambda info: info.is_resumable)),
    RunAction("again", tr_noop("Run Again"), 1, _if_single(lambda info: not info.is_alive and _is_run(info))),
    RunAction("reuse", tr_noop("Rerun with Changes"), 1, _if_single()),
    RunAction("rename", tr_noop("Rename"), 2, _if_single(_is_standalone), ("F2",)),
    RunAction(
        "tags",
        tr_noop("Edit Tags…"),
        2,
        _if_all(_is_standalone),
        ("Ctrl+K T",),
        lambda n: tr("Edit Tags of {n} Runs…", "Edit Tags of {n} Run…", n),
    ),
    RunAction("note", tr_noop("Edit Note…"), 2, _if_single(_is_standalone), ("Ctrl+K N",)),
    RunAction(
        "archive",
        tr_noop("Archive"),
        2,
        _if_all(lambda info: not info.labels.is_archived and _is_standalone(info)),
        ("Ctrl+K A",),
        lambda n: tr("Archive {n} Runs", "Archive {n} Run", n),
    ),
    RunAction(
        "unarchive",
        tr_noop("Unarchive"),
        2,
        _if_all(lambda info: info.labels.is_archived),
        plural_text=lambda n: tr("Unarchive {n} Runs", "Unarchive {n} Run", n),
    ),
    RunAction("reveal", tr_noop("Show in File Manager"), 4, _if_single(), ("Shift+Alt+R",)),
    RunAction(
        "copy",
        tr_noop("Copy Path"),
        4,
        _if_any,
        ("Shift+Alt+C",),
        lambda n: tr("Copy {n} Paths", "Copy {n} Path", n),
    ),
    RunAction(
        "trash",
        tr_noop("Delete"),
        5,
        _if_all(_is_standalone),
        ("Delete",),
        lambda n: tr("Delete {n} Runs", "Delete {n} Run", n),
    ),
)
# Compare is a separate command; this is its place among the groups.
_COMPARE_GROUP = 3


class RunActions(QObject):
    """The run actions of one window. `acts` maps each action's key to a function that is called with a list
    of runs."""

    def __init__(self, window: MainWindow, acts: ActionHandlers) -> None:
        super().__init__(window)
        assert acts.keys() == {act.key for act in RUN_ACTIONS}
        self._window, self._handlers = window, acts
        self.selected_runs: list[RunInfo] = []

    def select(self, infos: Sequence[RunInfo]) -> None:
        """Set the runs selected in the focused list, and update the context."""
        self.selected_runs = list(infos)
        facts: dict[str, object] = {f"runsCan.{act.key}": act.applies_to(infos) for act in RUN_ACTIONS}
        facts["runsComparable"] = MIN_RUNS <= len(infos) <= MAX_RUNS and all(
            info.race is None for info in infos
        )
        self._window.context.update(facts)

    def commands(self) -> list[Command]:
        return [
            Command(
                f"runs.{act.key}",
                phrase("Runs: {act}", act=phrase(act.text)),
                partial(self._run_on_selected, act.key),
                act.keys,
                f"runsCan.{act.key}",
            )
            for act in RUN_ACTIONS
        ]

    def _run_on_selected(self, key: str) -> None:
        self._handlers[key](self.selected_runs)

    def build_menu(self, infos: Sequence[RunInfo], parent: QWidget) -> QMenu:
        """Build the context menu for these runs."""
        menu, chosen, group = QMenu(parent), list(infos), 0
        for act in RUN_ACTIONS:
            if not act.applies_to(chosen):
                continue
            if act.group != group:
                if group < _COMPARE_GROUP < act.group:
                    self._add_compare(menu, chosen)
                menu.addSeparator()
                group = act.group
            text = act.plural_text(len(chosen)) if act.plural_text and len(chosen) > 1 else tr(act.text)
            menu.addAction(
                self._with_shortcut(text, f"runs.{act.key}"), partial(self._handlers[act.key], chosen)
            )
        return menu

    def _with_shortcut(self, text: str, command_id: str) -> str:
        keys = self._window.keymap.text_for(command_id)
        return f"{text}\t{keys}" if keys else text

    def _add_compare(self, menu: QMenu, chosen: list[RunInfo]) -> None:
        # The compare command acts on the selection, so it must be the menu's runs.
        self.select(chosen)
        commands = self._window.commands
        if self._window.context.get("runsComparable") and commands.is_enabled(COMPARE_COMMAND):
            menu.addSeparator()
            text = self._with_shortcut(commands[COMPARE_COMMAND].label, COMPARE_COMMAND)
            menu.addAction(text, partial(commands.run, COMPARE_COMMAND))
