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
from tests.helpers.app_window import process_events
from tests.helpers.every_view import EveryView, widget_facts
from tests.helpers.wheel import consumes_wheel, is_under_pointer, wheel_over

CHARTS = ("CurvePlot", "BandChart", "LossOverlay", "Scrubber")
VALUE_WIDGETS = (QComboBox, QAbstractSpinBox, QAbstractSlider, ZoomPlot)


def value_widgets(root: QWidget) -> Iterator[QWidget]:
    """Whatever a wheel could change."""
    for widget in [root, *root.findChildren(QWidget)]:
        if isinstance(widget, VALUE_WIDGETS) and not isinstance(widget, QScrollBar):
            yield widget


def widget_value(widget: QWidget) -> object:
    if isinstance(widget, ZoomPlot):
        return widget.is_following
    if isinstance(widget, QAbstractSlider):
        return widget.value()
    return widget.currentText() if isinstance(widget, QComboBox) else widget.text()  # type: ignore[attr-defined]


def scrollable_parent(widget: QWidget) -> QScrollArea | None:
    """The nearest page around it that has more than it shows."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QScrollArea) and parent.verticalScrollBar().maximum() > 0:
            return parent
        parent = parent.parentWidget()
    return None


def hover_targets(widget: QWidget) -> list[QWidget]:
    """Where the pointer can be over it."""
    if isinstance(widget, ZoomPlot):
        return [widget.viewport()]
    return [widget, *widget.findChildren(QLineEdit)]


def wheel_scrolls(page: QScrollArea, widget: QWidget) -> bool:
    """Whether a wheel over it moves the page, there and back."""
    bar = page.verticalScrollBar()
    if bar.value() == bar.maximum():
        bar.setValue(bar.maximum() - 1)
    before = bar.value()
    wheel_over(widget, -1)
    after = bar.value()
    bar.setValue(before)
    return after > before


def find_wheel_mistake(widget: QWidget, drawn: list[QWidget]) -> str:
    """What a wheel does to it that it must not, before it has the keyboard and while it has it."""
    before, page = widget_value(widget), scrollable_parent(widget)
    for with_keyboard in (False, True):
        if with_keyboard:
            widget.setFocus()
        for target in hover_targets(widget):
            if page is not None and widget.isVisible():
                page.ensureWidgetVisible(widget)
                process_events()
                if is_under_pointer(target):
                    drawn.append(target)
                    if not wheel_scrolls(page, target):
                        return "is a place where the page does not scroll"
            if consumes_wheel(target, -1) or consumes_wheel(target, 1):
                return "keeps the wheel"
            if widget_value(widget) != before:
                return f"changes from {before} to {widget_value(widget)}"
            if not with_keyboard and widget.hasFocus():
                return "takes the keyboard"
    widget.clearFocus()
    return ""


def test_the_wheel_scrolls_the_page_and_changes_no_value(app: App, every: EveryView) -> None:
    app.window.resize(1000, 520)
    wrong, kinds, drawn = list[str](), Counter[str](), list[QWidget]()
    for view, root in every.walk(app):
        process_events()
        for widget in value_widgets(root) if view != "frame" else ():
            kinds[type(widget).__name__] += 1
            if mistake := find_wheel_mistake(widget, drawn):
                wrong.append(f"{view}: {mistake}: {widget_facts(widget)}")
    assert not wrong, "\n".join(dict.fromkeys(wrong))
    assert kinds["ComboBox"] > 20 and all(kinds[name] for name in CHARTS), kinds
    assert len(drawn) > 40, (len(drawn), kinds)
