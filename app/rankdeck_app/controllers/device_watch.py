"""What the frame shows of the machine's GPUs: status bar, problems, toasts, and the tab with everything; and
the doctor's tab.

Readings come from state/gpus.py. A problem is what a person has to know: a GPU is lost, the driver reported
an error, or what reads the GPUs ended. It goes when it is over, or is dismissed.
"""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.events import DeviceMemory
from rankdeck.telemetry.gpu_status import GpuStatus
from rankdeck.telemetry.readings import NoticeLine
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.launching import Launching
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import spoken, tr
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.doctor import Doctor
from rankdeck_app.state.problem_list import DEVICES
from rankdeck_app.widgets.gpu_words import status_text

PAGE_KIND = "devices"
PAGE_ID = f"{PAGE_KIND}:"
_FAILED = "GPUs failed"
_PROBLEMS = ("lost", "xid", "slow", "silent", "restarted", "driver")


class DeviceWatch(QObject):
    """Follows the session's GPUs for as long as the window lives."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._lost: set[str] = set()
        self._told: dict[str, str] = {}
        """What the toast about GPUs, while it is shown, says of each."""
        self._open: dict[tuple[str, str | None, int | None], Problem] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page, tr("Devices"))
        window.editor.active_page_changed.connect(self._look_at)
        session.gpus.noticed.connect(self._noticed)
        session.gpus.changed.connect(self._changed)
        session.gpus.read.connect(self._show_status)

    def show(self) -> None:
        """Open the tab of this machine's GPUs, or bring it to the front."""
        self.show_host("")

    def show_host(self, host: str) -> None:
        """The same of another one."""
        self._window.editor.open(f"{PAGE_ID}{host}")

    def dismiss(self) -> None:
        self._open.clear()
        self._list()

    def _make_page(self, page_id: str) -> Page:
        from rankdeck_app.views.devices.host_bar import HostBar
        from rankdeck_app.views.devices.page import DevicesPage  # brings the plots

        window, hosts, host = self._window, self._session.hosts, page_id.partition(":")[2]
        gpus = hosts.hold(host)
        bar = HostBar(hosts, gpus.host, self.show_host)
        page = DevicesPage(gpus, window.theme, window.clock, self._memory_of, bar)
        page.destroyed.connect(partial(hosts.release, host))
        return page

    def _memory_of(self, gpu: GpuStatus) -> DeviceMemory | None:
        """What the run that holds the GPU reports of its memory, if a tab shows that run."""
        for run in self._tabs.open_runs.all() if gpu.run is not None else ():
            for device in run.devices if str(run.run.path) == gpu.run else ():
                if device.uuid == gpu.uuid:
                    return run.memory_of(device)
        return None

    # Problems

    def _noticed(self, notice: NoticeLine) -> None:
        message = spoken(notice.message, notice.phrases)
        if notice.code in _PROBLEMS:
            severity = "error" if notice.code in ("lost", "driver") else "warning"
            advice = spoken(notice.advice, notice.phrases) if notice.advice else None
            problem = Problem(notice.code, message, advice=advice, severity=severity)
            self._open[(notice.code, notice.uuid, notice.xid)] = problem
        if notice.code in ("lost", "driver") or (notice.code == "xid" and notice.severity == "error"):
            self._say(notice.uuid or "", message)
        self._list()

    def _say(self, uuid: str, message: str) -> None:
        """One toast for all that fails while it is shown, unless the tab that says it all is."""
        toasts, active = self._window.toasts, self._window.editor.active_page()
        if active is not None and active.page_id == PAGE_ID:
            return
        told = self._told if toasts.shown(_FAILED) else {}
        self._told = told = {**told, uuid: told.get(uuid, message)}
        if len(told) > 1:
            names = ", ".join(gpu.label for gpu in self._session.gpus.whole if gpu.uuid in told)
            message = tr(
                "{n} GPUs have failed: {gpus}.", "{n} GPU has failed: {gpus}.", len(told), gpus=names
            )
        else:
            message = told[uuid]
        toasts.show(message, "error", [(tr("Show Devices"), self.show)], key=_FAILED)

    def _look_at(self, page: Page | None) -> None:
        if page is not None and page.page_id == PAGE_ID:
            self._window.toasts.withdraw(_FAILED)

    def _changed(self) -> None:
        gpus = self._session.gpus
        if gpus.devices:
            self._open.pop(("driver", None, None), None)
        lost = {gpu.uuid: gpu for gpu in gpus.whole if gpu.lost_at is not None}
        for uuid in lost.keys() - self._lost:
            message = tr("{gpu} is lost: it answers no more.", gpu=lost[uuid].label)
            problem = Problem("lost", message, advice=tr("See the kernel's log (dmesg)."))
            self._open.setdefault(("lost", uuid, None), problem)
        for uuid in self._lost - lost.keys():
            self._open.pop(("lost", uuid, None), None)
        self._lost = set(lost)
        if not any(gpu.is_stale for gpu in gpus.devices):
            self._open.pop(("silent", None, None), None)
        self._list()
        self._show_status()

    def _list(self) -> None:
        self._session.problems.set(DEVICES, tr("devices"), list(self._open.values()))

    # The status bar

    def _show_status(self) -> None:
        gpus = self._session.gpus.whole
        self._window.status.item("gpus", "right", 1).show_text(
            status_text(gpus) if gpus else "",
            tooltip=tr("VRAM in use on this machine's GPUs. A click opens Devices"),
            command="devices.show",
            tone="error" if any(gpu.lost_at is not None for gpu in gpus) else "normal",
        )


# The Doctor's tab: opened from the palette, Help, the Devices tab or a problem. Asking for it begins a look
# where none has come to its end; a tab that is only restored begins none.
#
# A look is nobody's but the page's: it ends with it. A launch ends it too, for its two ranks hold GPUs for
# some seconds which the run may want.

DOCTOR_ID = "doctor:"


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
        self._window.editor.open(DOCTOR_ID)
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
