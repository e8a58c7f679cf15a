"""What can be done to the runs that are chosen in a list, in one table: menus, keys and the palette are drawn
from it.

`selected_runs` are those of the list that has the keyboard, or had it when the palette or a menu was opened.
For each act the context says whether it applies ("runsCan.rename"), and "runsComparable" that two to eight
runs (and no race) are chosen: the menu offers the command `runs.compare` then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QMenu, QWidget

from rankdeck.base.phrases import marked, phrase
from rankdeck.compare.naming import LEAST_RUNS, MOST_RUNS
from rankdeck.run.row import RunInfo
from rankdeck_app.commands.table import Command
from rankdeck_app.language import tr
from rankdeck_app.shell.window import MainWindow

COMPARE = "runs.compare"
MOST_OPENED = 20
"""Each is a tab, and is read to its end."""

Acts = Mapping[str, Callable[[list[RunInfo]], object]]


@dataclass(frozen=True)
class RunAct:
    """`holds`: whether it applies to what is chosen. `keys` are those of the command "runs.<key>"."""

    key: str
    text: str
    group: int
    holds: Callable[[Sequence[RunInfo]], bool]
    keys: tuple[str, ...] = ()
    many: Callable[[int], str] | None = None
    """What it is called for so many runs."""


def _some(infos: Sequence[RunInfo]) -> bool:
    return bool(infos)


def _one(holds: Callable[[RunInfo], bool] = lambda info: True) -> Callable[[Sequence[RunInfo]], bool]:
    return lambda infos: len(infos) == 1 and holds(infos[0])


def _every(holds: Callable[[RunInfo], bool]) -> Callable[[Sequence[RunInfo]], bool]:
    return lambda infos: bool(infos) and all(map(holds, infos))


def _is_run(info: RunInfo) -> bool:
    return info.race is None and info.entry_of is None


def _is_kept(info: RunInfo) -> bool:
    """Of its own, to be named, put away and thrown away; an entry is its race's."""
    return info.entry_of is None


RUN_ACTS = (
    RunAct(
        "open",
        marked("Open"),
        0,
        lambda infos: 0 < len(infos) <= MOST_OPENED,
        many=lambda n: tr("Open {n} Runs", "Open {n} Run", n),
    ),
    RunAct(
        "save",
        marked("Save Checkpoint Now"),
        1,
        _one(lambda info: info.is_alive and _is_run(info) and not info.is_script),
    ),
    RunAct(
        "stop",
        marked("Stop"),
        1,
        _every(lambda info: info.is_alive and _is_kept(info)),
        many=lambda n: tr("Stop {n} Runs", "Stop {n} Run", n),
    ),
    RunAct("resume", marked("Resume"), 1, _one(lambda info: info.is_resumable)),
    RunAct("again", marked("Run Again"), 1, _one(lambda info: not info.is_alive and _is_run(info))),
    RunAct("reuse", marked("Rerun with Changes"), 1, _one()),
    RunAct("rename", marked("Rename"), 2, _one(_is_kept), ("F2",)),
    RunAct(
        "tags",
        marked("Edit Tags…"),
        2,
        _every(_is_kept),
        ("Ctrl+K T",),
        lambda n: tr("Edit Tags of {n} Runs…", "Edit Tags of {n} Run…", n),
    ),
    RunAct("note", marked("Edit Note…"), 2, _one(_is_kept), ("Ctrl+K N",)),
    RunAct(
        "archive",
        marked("Archive"),
        2,
        _every(lambda info: not info.labels.is_archived and _is_kept(info)),
        ("Ctrl+K A",),
        lambda n: tr("Archive {n} Runs", "Archive {n} Run", n),
    ),
    RunAct(
        "unarchive",
        marked("Bring Back from the Archive"),
        2,
        _every(lambda info: info.labels.is_archived),
        many=lambda n: tr("Bring {n} Runs Back from the Archive", "Bring {n} Run Back from the Archive", n),
    ),
    RunAct("reveal", marked("Open Its Folder"), 4, _one(), ("Shift+Alt+R",)),
    RunAct(
        "copy",
        marked("Copy Path"),
        4,
        _some,
        ("Shift+Alt+C",),
        lambda n: tr("Copy {n} Paths", "Copy {n} Path", n),
    ),
    RunAct(
        "trash",
        marked("Delete"),
        5,
        _every(_is_kept),
        ("Delete",),
        lambda n: tr("Delete {n} Runs", "Delete {n} Run", n),
    ),
)
_COMPARE_GROUP = 3


class RunActs(QObject):
    """`acts` does each of the table to a list of runs."""

    def __init__(self, window: MainWindow, acts: Acts) -> None:
        super().__init__(window)
        assert acts.keys() == {act.key for act in RUN_ACTS}
        self._window, self._acts = window, acts
        self.selected_runs: list[RunInfo] = []

    def choose(self, infos: Sequence[RunInfo]) -> None:
        """These runs are chosen, in a list that has the keyboard."""
        self.selected_runs = list(infos)
        facts: dict[str, object] = {f"runsCan.{act.key}": act.holds(infos) for act in RUN_ACTS}
        facts["runsComparable"] = LEAST_RUNS <= len(infos) <= MOST_RUNS and all(
            info.race is None for info in infos
        )
        self._window.context.update(facts)

    def rows(self) -> list[Command]:
        return [
            Command(
                f"runs.{act.key}",
                phrase("Runs: {act}", act=phrase(act.text)),
                partial(self._do_to_selected, act.key),
                act.keys,
                f"runsCan.{act.key}",
            )
            for act in RUN_ACTS
        ]

    def _do_to_selected(self, key: str) -> None:
        self._acts[key](self.selected_runs)

    def menu(self, infos: Sequence[RunInfo], parent: QWidget) -> QMenu:
        """What can be done to these runs."""
        menu, chosen, group = QMenu(parent), list(infos), 0
        for act in RUN_ACTS:
            if not act.holds(chosen):
                continue
            if act.group != group:
                if group < _COMPARE_GROUP < act.group:
                    self._add_compare(menu, chosen)
                menu.addSeparator()
                group = act.group
            text = act.many(len(chosen)) if act.many and len(chosen) > 1 else tr(act.text)
            menu.addAction(self._with_keys(text, f"runs.{act.key}"), partial(self._acts[act.key], chosen))
        return menu

    def _with_keys(self, text: str, command_id: str) -> str:
        keys = self._window.keymap.text_for(command_id)
        return f"{text}\t{keys}" if keys else text

    def _add_compare(self, menu: QMenu, chosen: list[RunInfo]) -> None:
        self.choose(chosen)
        commands = self._window.commands
        if self._window.context.get("runsComparable") and commands.enabled(COMPARE):
            menu.addSeparator()
            text = self._with_keys(commands[COMPARE].label, COMPARE)
            menu.addAction(text, partial(commands.run, COMPARE))
