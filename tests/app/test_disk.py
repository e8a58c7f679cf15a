"""The thread for what the window wants of the disk keeps nothing of what was done."""

from __future__ import annotations

import gc
import weakref

from PySide6.QtWidgets import QApplication

from rankdeck_app.disk import Disk


class Page:
    told = 0

    def tell(self, answer: int) -> None:
        Page.told = answer


def test_whoever_asked_is_let_go_of_once_it_is_told(qapp: QApplication) -> None:
    disk, page = Disk(), Page()
    disk.start()
    disk.do(lambda: 3, page.tell, key=page)
    assert disk.settle() and Page.told == 3
    asked = weakref.ref(page)
    del page
    gc.collect()
    assert asked() is None
    disk.close()
