"""The tab of a launch until its run directory exists. It shows progress, or why the launch was refused."""

from __future__ import annotations

import time

from PySide6.QtCore import QTimer

from rankdeck.base.errors import Problem
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.page import Page
from rankdeck_app.state.engine_process import NOT_SHOWN_CODE, Launch
from rankdeck_app.theme import set_style_properties
from rankdeck_app.widgets.layouts import column, push_button, row, text_label

PAGE_KIND = "starting"


class StartingPage(Page):
    """Page of a pending launch. Closing the tab does not cancel the launch: its run opens in a new tab."""

    breadcrumb_command = "view.show.runs"
    can_split = False

    def __init__(self, wanted_id: str, launch: Launch) -> None:
        super().__init__(wanted_id, title=launch.name, icon="loading")
        self._launch = launch
        self._started_s = time.monotonic()
        self.title_label = text_label(tr("Starting {run}…", run=launch.name), "title", wrap=False)
        self.status_label = text_label(tone="dim", wrap=False)
        self.problems_label = text_label(selectable=True)
        give_up = tr("Cancel before the run starts")
        self.cancel_button = push_button(tr("Cancel"), give_up, launch.cancel)
        widgets = (
            self.title_label,
            self.status_label,
            self.problems_label,
            row(self.cancel_button, None),
            None,
        )
        column(*widgets, on=self, margins=(32, 32, 32, 32), spacing=12)
        self._timer = QTimer(self, interval=500)
        self._timer.timeout.connect(self._update_elapsed)
        self._timer.start()
        launch.refused.connect(self._on_refused)
        launch.arrived.connect(self._timer.stop)
        self.setFocusProxy(self.cancel_button)
        self._update_elapsed()

    def breadcrumbs(self) -> list[str]:
        return [tr("runs"), self._launch.name, tr("Starting")]

    def _update_elapsed(self) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self.status_label.setText(f"{self._launch.progress_text} · {elapsed_s:.0f} s")

    def _on_refused(self, problems: list[Problem]) -> None:
        self._timer.stop()
        cancelled = problems[0].code == "cancelled"
        self.set_title(self._launch.name, icon="circle-slash" if cancelled else "error")
        title, state = (
            tr("{run} did not start", run=self._launch.name),
            tr("None of its processes are running."),
        )
        if cancelled:
            title = tr("{run} was cancelled", run=self._launch.name)
        elif problems[0].code == NOT_SHOWN_CODE:
            title, state = tr("{run} is running on another host", run=self._launch.name), ""
        self.title_label.setText(title)
        self.status_label.setText(state)
        problem_texts = ((translate(problem.headline()), problem.advice) for problem in problems)
        self.problems_label.setText("\n\n".join("\n".join(filter(None, lines)) for lines in problem_texts))
        set_style_properties(self.problems_label, tone="dim" if cancelled else "error")
        self.cancel_button.hide()
