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
from rankdeck_app.controllers.launcher import Launcher
from rankdeck_app.controllers.run_tabs import RunTabs
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import tr, translate
from rankdeck_app.shell.page import Page
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.doctor import Doctor
from rankdeck_app.state.problem_list import DEVICES_OWNER
from rankdeck_app.widgets.gpu_text import gpu_status_text

PAGE_KIND = "devices"
PAGE_ID = f"{PAGE_KIND}:"
_FAILED_TOAST_KEY = "GPUs failed"
_PROBLEM_CODES = ("lost", "xid", "slow", "silent", "restarted", "driver")


class DeviceMonitor(QObject):
    """Follows the session's GPUs for as long as the window lives."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._lost_uuids: set[str] = set()
        self._toast_messages: dict[str, str] = {}
        """What the toast about GPUs, while it is shown, says of each."""
        self._open_problems: dict[tuple[str, str | None, int | None], Problem] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page, tr("Devices"))
        window.editor.active_page_changed.connect(self._on_page_activated)
        session.gpus.notice_received.connect(self._on_notice)
        session.gpus.changed.connect(self._on_gpus_changed)
        session.gpus.readings_changed.connect(self._show_status)

    def show(self) -> None:
        """Open the tab of this machine's GPUs, or bring it to the front."""
        self.show_host("")

    def show_host(self, host: str) -> None:
        """The same of another one."""
        self._window.editor.open(f"{PAGE_ID}{host}")

    def dismiss(self) -> None:
        self._open_problems.clear()
        self._list_problems()

    def _make_page(self, page_id: str) -> Page:
        from rankdeck_app.views.devices.host_bar import HostBar
        from rankdeck_app.views.devices.page import DevicesPage  # brings the plots

        window, hosts, host = self._window, self._session.hosts, page_id.partition(":")[2]
        gpus = hosts.acquire(host)
        bar = HostBar(hosts, gpus.host, self.show_host)
        page = DevicesPage(gpus, window.theme, window.clock, self._memory_of, bar)
        page.destroyed.connect(partial(hosts.release, host))
        return page

    def _memory_of(self, gpu: GpuStatus) -> DeviceMemory | None:
        """What the run that holds the GPU reports of its memory, if a tab shows that run."""
        for run in self._tabs.open_runs.list_runs() if gpu.run is not None else ():
            for device in run.devices if str(run.run_dir.path) == gpu.run else ():
                if device.uuid == gpu.uuid:
                    return run.device_memory(device)
        return None

    # Problems

    def _on_notice(self, notice: NoticeLine) -> None:
        message = translate(notice.message, notice.phrases)
        if notice.code in _PROBLEM_CODES:
            severity = "error" if notice.code in ("lost", "driver") else "warning"
            advice = translate(notice.advice, notice.phrases) if notice.advice else None
            problem = Problem(notice.code, message, advice=advice, severity=severity)
            self._open_problems[(notice.code, notice.uuid, notice.xid)] = problem
        if notice.code in ("lost", "driver") or (notice.code == "xid" and notice.severity == "error"):
            self._show_toast(notice.uuid or "", message)
        self._list_problems()

    def _show_toast(self, uuid: str, message: str) -> None:
        """One toast for all that fails while it is shown, unless the tab that says it all is."""
        toasts, active = self._window.toasts, self._window.editor.active_page()
        if active is not None and active.page_id == PAGE_ID:
            return
        told = self._toast_messages if toasts.find(_FAILED_TOAST_KEY) else {}
        self._toast_messages = told = {**told, uuid: told.get(uuid, message)}
        if len(told) > 1:
            names = ", ".join(gpu.label for gpu in self._session.gpus.physical_gpus if gpu.uuid in told)
            message = tr(
                "{n} GPUs have failed: {gpus}.", "{n} GPU has failed: {gpus}.", len(told), gpus=names
            )
        else:
            message = told[uuid]
        toasts.show(message, "error", [(tr("Show Devices"), self.show)], key=_FAILED_TOAST_KEY)

    def _on_page_activated(self, page: Page | None) -> None:
        if page is not None and page.page_id == PAGE_ID:
            self._window.toasts.dismiss(_FAILED_TOAST_KEY)

    def _on_gpus_changed(self) -> None:
        gpus = self._session.gpus
        if gpus.devices:
            self._open_problems.pop(("driver", None, None), None)
        lost = {gpu.uuid: gpu for gpu in gpus.physical_gpus if gpu.lost_at is not None}
        for uuid in lost.keys() - self._lost_uuids:
            message = tr("{gpu} is lost: it answers no more.", gpu=lost[uuid].label)
            problem = Problem("lost", message, advice=tr("See the kernel's log (dmesg)."))
            self._open_problems.setdefault(("lost", uuid, None), problem)
        for uuid in self._lost_uuids - lost.keys():
            self._open_problems.pop(("lost", uuid, None), None)
        self._lost_uuids = set(lost)
        if not any(gpu.is_stale for gpu in gpus.devices):
            self._open_problems.pop(("silent", None, None), None)
        self._list_problems()
        self._show_status()

    def _list_problems(self) -> None:
        self._session.problems.set(DEVICES_OWNER, tr("devices"), list(self._open_problems.values()))

    # The status bar

    def _show_status(self) -> None:
        gpus = self._session.gpus.physical_gpus
        self._window.status_bar.item("gpus", "right", 1).show_text(
            gpu_status_text(gpus) if gpus else "",
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
    def __init__(self, window: MainWindow, session: Session, launching: Launcher) -> None:
        super().__init__(window)
        self._window, self._launcher = window, launching
        self._num_pages = 0
        self.doctor = Doctor(session.engine, session.workspace, self)
        window.editor.register_page_kind("doctor", lambda _id: self._make_page(), tr("Doctor"))
        launching.changed.connect(self._stop_for_launch)
        window.closing.connect(self.doctor.stop)

    def commands(self) -> list[Command]:
        return [
            Command("doctor.show", phrase("Help: Look This Machine Over"), self.show, menu="Help/3_machine")
        ]

    def show(self) -> None:
        self._window.editor.open(DOCTOR_ID)
        if self.doctor.done is None:
            self.doctor.start()

    def _make_page(self) -> Page:
        from rankdeck_app.views.doctor_page import DoctorPage

        self._num_pages += 1
        return DoctorPage(self._window.theme, self.doctor, self._on_page_closed)

    def _on_page_closed(self) -> None:
        """A page that is moved is there twice for a moment."""
        self._num_pages -= 1
        if not self._num_pages:
            self.doctor.stop()

    def _stop_for_launch(self) -> None:
        if self._launcher.num_pending:
            self.doctor.stop(tr("It was stopped for a launch."))
