"""One of every view of the app, on runs that were written: for claims about all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QGraphicsView,
    QKeySequenceEdit,
    QLineEdit,
    QMenu,
    QMenuBar,
    QPlainTextEdit,
    QScrollBar,
    QTabBar,
    QWidget,
)

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.fixes import fixes_file
from rankdeck.run import plan_lines
from rankdeck.run.plan_lines import FITS, PlanLine, PlannedDevice
from rankdeck.run.race import RUNNING
from rankdeck_app.composition import App
from rankdeck_app.shell.status_bar import StatusItem
from rankdeck_app.state.problem_list import LAUNCH_OWNER
from rankdeck_app.views.dashboard.page import RunPage
from rankdeck_app.views.launch.side_bar import LaunchView
from rankdeck_app.views.launch.trust_dialog import TrustDialog
from rankdeck_app.views.out_of_memory_page import OutOfMemoryPage
from rankdeck_app.views.runs_page import NoteDialog
from tests.helpers.app_window import wait_for
from tests.helpers.fake_doctor import encoded_checks
from tests.helpers.verified import VERIFIED, with_race_verification
from tests.helpers.written_race import WrittenRace, make_entry
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript

ACTIVITIES = ("launch", "runs", "compare", "strategies")
PANELS = ("problems", "output")


class EveryView:
    """Runs in the folder of runs: one alive on four devices, one that failed, a script's, and a race."""

    def __init__(self) -> None:
        runs = Path(os.environ["RANKDECK_RUNS"])
        self.alive = self._write_training(WrittenRun(runs, "alive"))
        self.failed = self._write_training(WrittenRun(runs, "failed"))
        self.failed.end("failed", 1, "rank 1: out of memory")
        self.script = WrittenScript(runs)
        self.script.start_script(2)
        self.script.observe_rank(0)
        self.script.write_step_line(0, 1, [3.0, 2.0, 1.0])
        self.race = WrittenRace(runs)
        self.race.write(
            make_entry(1, "single"),
            with_race_verification("equal", make_entry(2, "fsdp")),
            make_entry(3, "ddp", None, state=RUNNING),
            kind="virtual",
        )

    @staticmethod
    def _write_training(run: WrittenRun) -> WrittenRun:
        run.start(1, device_infos(4), steps=40)
        run.writer("rank-0").write(VERIFIED["noted"])
        run.write_steps(0, 1, [4.0 - 0.1 * step for step in range(30)])
        lead = {"parameters": 20 * MIB, "activations": 60 * MIB, "gathered": 200 * MIB}
        others = {"parameters": 20 * MIB, "activations": 60 * MIB}
        run.write_memory(0, 3, {device: others if device else lead for device in range(4)})
        run.writer("rank-0").write(events.Evaluation(step=20, loss=2.0, samples=64, seconds=0.1))
        return run

    @staticmethod
    def _write_out_of_memory(run: WrittenRun) -> None:
        """With planned ways out of it."""
        allocation = Allocation(
            asked_bytes=200 * MIB, capacity_bytes=300 * MIB, free_bytes=9 * MIB, in_use_bytes=MIB
        )
        failed = events.OutOfMemory(
            rank=1, step=31, device=1, module="", modules={"": {"parameters": MIB}}, allocation=allocation
        )
        run.writer("rank-1").write(failed)
        raised = Problem("out-of-memory", phrase("It did not fit."), path=str(Path(__file__)), line=3, rank=1)
        run.writer("supervisor").write(events.ProblemRaised(problem=raised))
        lines = []
        for strategy, size in (("dp", 400 * MIB), ("fsdp", 100 * MIB)):
            device = PlannedDevice(
                device=1, active_bytes=size, total_bytes=size, capacity_bytes=300 * MIB, name="Virtual 1"
            )
            line = PlanLine(strategy=strategy, options={}, label=strategy, verdict=FITS, devices=[device])
            line.configured = strategy == "dp"
            lines.append(plan_lines.encode(line))
        fixes_file(run.dir).write_bytes(b"".join(lines))

    @property
    def page_ids(self) -> list[str]:
        """All that open by their id; a comparison and the code page open by a call."""
        runs = [f"run:{run.path}" for run in (self.alive, self.failed, self.script)]
        plain = [
            "welcome",
            "config",
            "settings",
            "keys",
            "notifications",
            "plan",
            "devices",
            "runs",
            "doctor",
        ]
        return [*runs, f"race:{self.race.folder.path}", *(f"{name}:" for name in plain), "strategy:ddp"]

    def open_pages(self, app: App) -> None:
        """A tab of every kind of page, the last of them in front."""
        for page_id in self.page_ids:
            app.window.editor.open(page_id)
        app.comparisons.open_comparison([self.alive.path, self.failed.path])
        app.problem_navigator.open_location(Path(__file__), 3, "what is wrong here")
        app.doctor_tab.doctor._on_lines(encoded_checks().splitlines())
        app.session.problems.set(
            LAUNCH_OWNER,
            "alive",
            [Problem("launch", phrase("It did not start."), advice=phrase("Try again."))],
        )

    def walk(self, app: App) -> Iterator[tuple[str, QWidget]]:
        """Every page, side bar, panel and dialog, each shown while it is looked at."""
        self.open_pages(app)
        editor = app.window.editor
        for tab in list(editor.active_group.tabs):
            editor.show_tab(tab)
            page = tab.build()
            if isinstance(page, RunPage):
                wait_for(partial(self._is_drawn, page), 30, "the charts of a run")
            yield tab.page_id.split(":")[0], page
        for activity in ACTIVITIES:
            view = app.window.show_activity(activity)
            assert not isinstance(view, LaunchView) or view.model.more_form  # made when first asked for
            yield f"side bar {activity}", view
        for panel in PANELS:
            yield f"panel {panel}", app.window.show_panel(panel)
        yield "frame", app.window
        yield from self._dialogs(app)
        yield from self._out_of_memory_page(app)

    @staticmethod
    def _is_drawn(page: RunPage) -> bool:
        """Everything was read, and every card that is to be seen has its chart and its figures."""
        visible_cards = [card for card in page.cards.values() if not card.visibleRegion().isEmpty()]
        is_read = bool(page.run.outcome) and not page.run.has_unread and not page._pending
        return is_read and bool(visible_cards) and all(card.built_body is not None for card in visible_cards)

    def _dialogs(self, app: App) -> Iterator[tuple[str, QWidget]]:
        dialogs: list[QWidget] = [
            TrustDialog([self.alive.path], app.window),
            NoteDialog("alive", "a note", app.window),
        ]
        for widget in dialogs:
            widget.show()
            yield type(widget).__name__, widget
            widget.close()
            widget.deleteLater()

    def _out_of_memory_page(self, app: App) -> Iterator[tuple[str, QWidget]]:
        """Why a run ran out of memory, and nothing else of that run."""
        run = self._write_training(WrittenRun(app.session.workspace.runs_folder, "exhausted"))
        self._write_out_of_memory(run)
        run.end("failed", 1)
        page = app.window.editor.open(f"why:{run.path}")
        assert isinstance(page, OutOfMemoryPage)

        def has_fixes() -> bool:
            page.analysis.update()
            return bool(page.fix_list.buttons)

        wait_for(has_fixes, 30, "the planner's answer")
        yield "why", page
        app.window.editor.close_page(page.page_id)

    def end(self) -> None:
        """Let go of what is locked."""
        for run in (self.alive, self.failed, self.script):
            run.lose()
        self.race.lose()


_INTERACTIVE_WIDGETS: tuple[type[QWidget], ...] = (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QTabBar,
)


def usable_widgets(root: QWidget) -> Iterator[QWidget]:
    """What of a view can be clicked or can have the keyboard; inner parts of one control are not asked.

    No focus proxy is: PySide would keep a plot alive for it.
    """
    takes_keys = bool(root.focusPolicy() & Qt.FocusPolicy.TabFocus)
    is_empty = isinstance(root, StatusItem) and not root.text()  # shown with its first text
    if (takes_keys or isinstance(root, _INTERACTIVE_WIDGETS)) and not (
        is_empty or isinstance(root, QScrollBar)
    ):
        yield root
    if not isinstance(root, _COMPOSITE_WIDGETS):
        for child in root.children():
            if isinstance(child, QWidget):
                yield from usable_widgets(child)


_COMPOSITE_WIDGETS = (
    QAbstractItemView,
    QAbstractSpinBox,
    QComboBox,
    QGraphicsView,
    QKeySequenceEdit,
    QLineEdit,
    QMenu,
    QMenuBar,
    QTabBar,
)


def widget_facts(widget: QWidget) -> dict[str, Any]:
    """For a message: what one can find the widget by."""
    chain, parent = [], widget.parentWidget()
    while parent is not None and len(chain) < 4:
        chain.append(type(parent).__name__)
        parent = parent.parentWidget()
    text = widget.text() if isinstance(widget, QAbstractButton) else ""
    return {"type": type(widget).__name__, "text": text, "tip": widget.toolTip()[:40], "in": chain}
