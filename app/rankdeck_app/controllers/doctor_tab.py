"""The Doctor's tab: opened from the palette, Help, the Devices tab or a problem. Asking for it begins a look
where none has come to its end; a tab that is only restored begins none.

A look is nobody's but the page's: it ends with it. A launch ends it too, for its two ranks hold GPUs for some
seconds which the run may want.
"""

from __future__ import annotations

from PySide6.QtCore import QObject

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.doctor import Doctor

PAGE_ID = "doctor:"


class DoctorTab(QObject):
    def __init__(self, window: MainWindow, session: Session, launching: Launching) -> None:
        super().__init__(window)
        self._window, self._launching = window, launching
        self._num_pages = 0
        self.doctor = Doctor(session.engine, session.workspace, self)
        window.editor.register_page_kind("doctor", lambda _id: self._make_page(), tr("Doctor"))
        launching.changed.connect(self._make_way)
        window.closing.connect(self.doctor.stop)

    def rows(self) -> list[Command]:
        return [
            Command("doctor.show", phrase("Help: Look This Machine Over"), self.show, menu="Help/3_machine")
        ]

    def show(self) -> None:
        self._window.editor.open(PAGE_ID)
        if self.doctor.done is None:
            self.doctor.look()

    def _make_page(self) -> Page:
        from rankdeck_app.views.doctor_page import DoctorPage

        self._num_pages += 1
        return DoctorPage(self._window.theme, self.doctor, self._left)

    def _left(self) -> None:
        """A page that is moved is there twice for a moment."""
        self._num_pages -= 1
        if not self._num_pages:
            self.doctor.stop()

    def _make_way(self) -> None:
        if self._launching.num_pending:
            self.doctor.stop(tr("It was stopped for a launch."))
