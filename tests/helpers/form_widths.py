"""The Launch form as it comes back after a restart, in side bars of many widths: what is wider than its room.

Run as a program it says so for one scale of the screen (QT_SCALE_FACTOR), which Qt reads once per process.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QPoint
from PySide6.QtWidgets import QApplication, QComboBox, QLabel, QWidget

from rankdeck.config import presets
from rankdeck.config.catalog import MODELS, STRATEGIES
from rankdeck_app.application import make_app
from rankdeck_app.state.draft import Draft
from rankdeck_app.state.engine_process import Engine
from rankdeck_app.state.gpus import Gpus
from rankdeck_app.theme import Theme
from rankdeck_app.views.launch.side_bar import LaunchView
from tests.helpers.device_lines import feed_machine
from tests.helpers.own_scripts import launch_view

WIDTHS = (240, 270, 300, 360, 420, 500)
ORIGIN = "run 20261123-101010-a-very-long-name-that-somebody-gave-to-a-run-once-1a2b"
_TEXT = """\
[model]
use = "a/very/long/path/to/somebodys/own/models/of_transformers.py:build_the_largest_one"
[data]
use = "text"
[train]
optimizer = { use = "torch.optim:Adafactor" }
[devices]
use = "cpu:16"
"""


def restored_draft(folder: Path) -> Draft:
    """A draft that was a run's configuration when the app was closed."""
    before = Draft(folder / "draft.json", folder)
    before.replace(_TEXT, folder=folder, stem="run", origin=ORIGIN)
    before.close()
    return Draft(folder / "draft.json", folder)


def resize(view: LaunchView, width: int) -> None:
    view.resize(width, 900)
    for _ in range(3):
        QApplication.sendPostedEvents(None, QEvent.Type.LayoutRequest)
        QApplication.processEvents()


def find_too_wide(view: LaunchView, width: int) -> Iterator[str]:
    """Widgets that reach out of a side bar of this width, and labels that are cut."""
    resize(view, width)
    inside = view.scroll_area.widget()
    room = view.scroll_area.viewport().width()
    for widget in inside.findChildren(QWidget):
        if not widget.isVisible() or widget.width() == 0:
            continue
        name = f"{type(widget).__name__} {widget.accessibleName()}"
        if widget.mapTo(inside, QPoint(widget.width(), 0)).x() > room:
            yield f"{name} at {width}"
        if type(widget) is QLabel and not widget.wordWrap() and widget.sizeHint().width() > widget.width():
            yield f"label {widget.text()} at {width}"


def find_all_too_wide(folder: Path) -> list[str]:
    """Over all strategies, models, widths, and both kinds of devices."""
    parent, draft = QObject(), restored_draft(folder)
    gpus = Gpus(Engine(folder / "launch", parent), parent)
    theme = Theme()
    theme.apply()
    view = launch_view(theme, draft, gpus, presets.list_presets(), str)
    view.model.more_button.setChecked(True)
    view.show()
    mistakes: list[str] = []
    for has_gpus in (False, True):
        if has_gpus:
            feed_machine(gpus, 16)
            draft.set_value(("devices", "use"), "gpu:all")
        mistakes += [text for width in WIDTHS for text in find_too_wide(view, width)]
        for key, cards in ((("strategy",), STRATEGIES), (("model",), MODELS)):
            for card in cards.values():
                draft.choose(key, card.name)
                mistakes += [f"{card.name}: {text}" for text in find_too_wide(view, WIDTHS[0])]
    mistakes += [] if all(map(_has_width, view.findChildren(QComboBox))) else ["a combo box without room"]
    resize(view, 300)  # from the narrowest, where each field had a line of its own
    if len(edges := _left_edges(view)) > 2:
        mistakes.append(f"fields begin at {sorted(edges)}")
    view.deleteLater()
    draft.close()
    gpus.close()
    return mistakes


def _left_edges(view: LaunchView) -> set[int]:
    """Where fields with a label begin."""
    fields = [*view.model.main_form.fields.values(), *view.model.more_form.fields.values()]
    return {field.mapTo(view, QPoint()).x() for field in fields if not field.row.is_check}


def _has_width(combo: QComboBox) -> bool:
    return not combo.isVisible() or combo.width() >= combo.minimumSizeHint().width()


if __name__ == "__main__":
    make_app([])
    with tempfile.TemporaryDirectory() as name:
        print("\n".join(find_all_too_wide(Path(name))))
    sys.exit(0)
