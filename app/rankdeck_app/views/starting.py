"""The tab of a launch until its run has a directory: what is starting, or why it was refused."""

from __future__ import annotations

import time

from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout

from rankdeck.base.errors import Problem
from rankdeck_app.shell.page import Page
from rankdeck_app.state.engine_process import Launch
from rankdeck_app.theme import Theme, set_look

PAGE_KIND = "starting"


class StartingPage(Page):
    """Closing the tab does not cancel the launch: its run appears in a tab of its own."""

    can_split = False

    def __init__(self, wanted_id: str, launch: Launch, theme: Theme) -> None:
        super().__init__(wanted_id, title=launch.name, icon="loading")
        self._launch = launch
        self._began_s = time.monotonic()
        self.title_label = QLabel(f"Starting {launch.name}…")
        self.title_label.setProperty("tone", "title")
        self.status = QLabel()
        self.status.setProperty("tone", "dim")
        self.problems = QLabel()
        self.problems.setWordWrap(True)
        self.problems.setTextFormat(Qt.TextFormat.PlainText)
        self.problems.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.cancel_button = QPushButton("Cancel")
        self.cancel_button.setToolTip("Give up before the run begins")
        self.cancel_button.clicked.connect(launch.cancel)
        row = QHBoxLayout()
        row.addWidget(self.cancel_button)
        row.addStretch(1)
        column = QVBoxLayout(self)
        column.setContentsMargins(32, 32, 32, 32)
        column.setSpacing(12)
        for widget in (self.title_label, self.status, self.problems):
            column.addWidget(widget)
        column.addLayout(row)
        column.addStretch(1)
        self._timer = QTimer(self, interval=500)
        self._timer.timeout.connect(self._tick)
        self._timer.start()
        launch.refused.connect(self._refused)
        launch.arrived.connect(self._timer.stop)
        self.setFocusProxy(self.cancel_button)
        self._tick()

    def breadcrumbs(self) -> list[str]:
        return ["runs", self._launch.name, "Starting"]

    def _tick(self) -> None:
        elapsed_s = time.monotonic() - self._began_s
        self.status.setText(
            f"The engine reads the configuration and makes the run's folder · {elapsed_s:.0f} s"
        )

    def _refused(self, problems: list[Problem]) -> None:
        self._timer.stop()
        cancelled = problems[0].code == "cancelled"
        self.set_title(self._launch.name, icon="circle-slash" if cancelled else "error")
        self.title_label.setText(f"{self._launch.name} {'was cancelled' if cancelled else 'did not start'}")
        self.status.setText("Nothing of it is running.")
        self.problems.setText("\n\n".join(problem.text() for problem in problems))
        set_look(self.problems, tone="dim" if cancelled else "error")
        self.cancel_button.hide()
