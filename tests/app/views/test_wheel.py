"""The wheel scrolls the page, and changes neither a value nor what a chart shows, in every view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from PySide6.QtWidgets import (
    QAbstractSlider,
    QAbstractSpinBox,
    QComboBox,
    QLineEdit,
    QScrollArea,
    QScrollBar,
    QWidget,
)

from rankdeck_app.composition import App
from rankdeck_app.widgets.zoom_plot import ZoomPlot
from tests.helpers.app_window import settle
from tests.helpers.every_view import EveryView, told
from tests.helpers.wheel import is_under_pointer, takes_wheel, wheel_over

CHARTS = ("CurvePlot", "BandChart", "LossOverlay", "Scrubber")
VALUED = (QComboBox, QAbstractSpinBox, QAbstractSlider, ZoomPlot)


def valued(root: QWidget) -> Iterator[QWidget]:
    """Whatever a wheel could change."""
    for widget in [root, *root.findChildren(QWidget)]:
        if isinstance(widget, VALUED) and not isinstance(widget, QScrollBar):
            yield widget


def value(widget: QWidget) -> object:
    if isinstance(widget, ZoomPlot):
        return widget.follows
    if isinstance(widget, QAbstractSlider):
        return widget.value()
    return widget.currentText() if isinstance(widget, QComboBox) else widget.text()  # type: ignore[attr-defined]


def page_of(widget: QWidget) -> QScrollArea | None:
    """The nearest page around it that has more than it shows."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QScrollArea) and parent.verticalScrollBar().maximum() > 0:
            return parent
        parent = parent.parentWidget()
    return None


def parts(widget: QWidget) -> list[QWidget]:
    """Where the pointer can be over it."""
    if isinstance(widget, ZoomPlot):
        return [widget.viewport()]
    return [widget, *widget.findChildren(QLineEdit)]


def scrolls(page: QScrollArea, widget: QWidget) -> bool:
    """Whether a wheel over it moves the page, there and back."""
    bar = page.verticalScrollBar()
    if bar.value() == bar.maximum():
        bar.setValue(bar.maximum() - 1)
    before = bar.value()
    wheel_over(widget, -1)
    after = bar.value()
    bar.setValue(before)
    return after > before


def wrong_with(widget: QWidget, drawn: list[QWidget]) -> str:
    """What a wheel does to it that it must not, before it has the keyboard and while it has it."""
    before, page = value(widget), page_of(widget)
    for with_keyboard in (False, True):
        if with_keyboard:
            widget.setFocus()
        for part in parts(widget):
            if page is not None and widget.isVisible():
                page.ensureWidgetVisible(widget)
                settle()
                if is_under_pointer(part):
                    drawn.append(part)
                    if not scrolls(page, part):
                        return "is a place where the page does not scroll"
            if takes_wheel(part, -1) or takes_wheel(part, 1):
                return "keeps the wheel"
            if value(widget) != before:
                return f"changes from {before} to {value(widget)}"
            if not with_keyboard and widget.hasFocus():
                return "takes the keyboard"
    widget.clearFocus()
    return ""


def test_the_wheel_scrolls_the_page_and_changes_nothing(app: App, every: EveryView) -> None:
    app.window.resize(1000, 520)
    wrong, kinds, drawn = list[str](), Counter[str](), list[QWidget]()
    for view, root in every.walk(app):
        settle()
        for widget in valued(root) if view != "frame" else ():
            kinds[type(widget).__name__] += 1
            if found := wrong_with(widget, drawn):
                wrong.append(f"{view}: {found}: {told(widget)}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert kinds["ComboBox"] > 20 and all(kinds[name] for name in CHARTS), kinds
    assert len(drawn) > 40, (len(drawn), kinds)
