"""A real window for tests with a virtual X server: two tabs, and on stdout the geometry and then the groups
as they change.

Run as a process; ends when its stdin is closed.
"""

from __future__ import annotations

import json
import os
import sys

from PySide6.QtCore import QPoint, QSocketNotifier
from PySide6.QtWidgets import QApplication, QWidget

from rankdeck_app.application import make_app
from rankdeck_app.shell.frame import open_window
from rankdeck_app.shell.services import make_services
from tests.app.shell.pages import NotePage


def tell(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def on_screen(widget: QWidget, at: QPoint) -> list[int]:
    point = widget.mapToGlobal(at)
    return [point.x(), point.y()]


def main() -> int:
    app = make_app()
    window = open_window(make_services())
    window.editor.register_page_kind("note", NotePage)

    def start() -> None:
        window.start()
        window.editor.open("note:a")
        window.editor.open("note:b")
        group = window.editor.active_group
        QApplication.processEvents()
        tell(
            tab=on_screen(group.bar, group.bar.tabRect(1).center()),
            right=on_screen(group, QPoint(group.width() - 30, group.height() // 2)),
        )
        window.editor.layout_changed.connect(
            lambda: tell(groups=[[tab.page_id for tab in group.tabs] for group in window.editor.groups()])
        )

    window.first_painted.connect(start)
    stdin = QSocketNotifier(sys.stdin.fileno(), QSocketNotifier.Type.Read, window)
    stdin.activated.connect(lambda: os.read(sys.stdin.fileno(), 1) or app.quit())
    window.setGeometry(0, 0, 1200, 700)
    window.show()
    return app.exec()


if __name__ == "__main__":
    raise SystemExit(main())
