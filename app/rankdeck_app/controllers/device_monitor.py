"""Shows the machine's GPUs in the status bar, the problem list, toasts and the Devices tab; also manages the
Doctor tab.

Readings come from state/gpus.py. A problem is listed if a GPU is lost, the driver has reported an error, or
the process that reads the GPUs has ended. A problem disappears when it is over or dismissed.
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
    """Monitors this machine's GPUs for the window's lifetime."""

    def __init__(self, window: MainWindow, session: Session, tabs: RunTabs) -> None:
        super().__init__(window)
        self._window = window
        self._session = session
        self._tabs = tabs
        self._lost_uuids: set[str] = set()
        self._toast_messages: dict[str, str] = {}
        """Messages combined in the GPU toast while it is shown, keyed by the failed GPU's UUID."""
        self._open_problems: dict[tuple[str, str | None, int | None], Problem] = {}
        window.editor.register_page_kind(PAGE_KIND, self._make_page, tr("Devices"))
        window.editor.active_page_changed.connect(self._on_page_activated)
        session.gpus.notice_received.connect(self._on_notice)
        session.gpus.changed.connect(self._on_gpus_changed)
        session.gpus.readings_changed.connect(self._show_status)

    def show(self) -> None:
        """Open this machine's Devices tab, or bring it to the front."""
        self.show_host("")

    def show_host(self, host: str) -> None:
        """Open a host's Devices tab, or bring it to the front."""
        self._window.editor.open(f"{PAGE_ID}{host}")

    def dismiss(self) -> None:
        self._open_problems.clear()
        self._list_problems()

    def _make_page(self, page_id: str) -> Page:
        from rankdeck_app.views.devices.host_bar import HostBar
        from rankdeck_app.views.devices.page import DevicesPage  # imports pyqtgraph

        window, hosts, host = self._window, self._session.hosts, page_id.partition(":")[2]
        gpus = hosts.acquire(host)
        bar = HostBar(hosts, gpus.host, self.show_host)
        page = DevicesPage(gpus, window.theme, window.clock, self._memory_of, bar)
        page.destroyed.connect(partial(hosts.release, host))
        return page

    def _memory_of(self, gpu: GpuStatus) -> DeviceMemory | None:
        """Return the memory that the run on this GPU reports, if the run is open in a tab."""
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
        """Show a `message` about the GPU `uuid` in a toast that all failed GPUs share, unless the Devices tab
        is active."""
        toasts, active = self._window.toasts, self._window.editor.active_page()
        if active is not None and active.page_id == PAGE_ID:
            return
        # Once the toast is closed, the user knows about its GPUs.
        messages = self._toast_messages if toasts.find(_FAILED_TOAST_KEY) else {}
        self._toast_messages = messages = {**messages, uuid: messages.get(uuid, message)}
        if len(messages) > 1:
            names = ", ".join(gpu.label for gpu in self._session.gpus.physical_gpus if gpu.uuid in messages)
            message = tr(
                "{n} GPUs have failed: {gpus}.", "{n} GPU has failed: {gpus}.", len(messages), gpus=names
            )
        else:
            message = messages[uuid]
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
            message = tr("{gpu} is lost: it no longer responds.", gpu=lost[uuid].label)
            problem = Problem("lost", message, advice=tr("Check the kernel log (dmesg)."))
            # A notice of the sampler may have listed this problem already; its text stays.
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
            tooltip=tr("VRAM in use on this machine's GPUs. Click to open the Devices view."),
            command="devices.show",
            tone="error" if any(gpu.lost_at is not None for gpu in gpus) else "normal",
        )


# The Doctor tab: opened from the palette, Help, the Devices tab or a problem. Opening it starts a check if
# none has finished; a tab that is only restored starts none.  A check belongs to its page and ends with it. A
# launch ends it too, because the check's two ranks hold GPUs for some seconds, which the run may need.

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
        return [Command("doctor.show", phrase("Help: Check This Machine"), self.show, menu="Help/3_machine")]

    def show(self) -> None:
        self._window.editor.open(DOCTOR_ID)
        if self.doctor.done is None:
            self.doctor.start()

    def _make_page(self) -> Page:
        from rankdeck_app.views.doctor_page import DoctorPage

        self._num_pages += 1
        return DoctorPage(self._window.theme, self.doctor, self._on_page_closed)

    def _on_page_closed(self) -> None:
        """Stop the doctor when its last page is closed. While a page is being moved, two pages exist for a
        moment."""
        self._num_pages -= 1
        if not self._num_pages:
            self.doctor.stop()

    def _stop_for_launch(self) -> None:
        if self._launcher.num_pending:
            self.doctor.stop(tr("The doctor was stopped because a run is starting."))
