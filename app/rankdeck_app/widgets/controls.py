"""Flat tool buttons, and check boxes, combo boxes, labels and sliders painted in the theme's style.

Qt's Fusion style draws bevels, which do not match flat fields.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QLabel,
    QSizePolicy,
    QSlider,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QToolButton,
    QToolTip,
    QWidget,
)

from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import elide_wrapped_text, paint_text

CHECK_BOX_SIZE = 16
_MIN_COMBO_WIDTH = 60
_ENTRY_MARGIN = 12


def paint_check(painter: QPainter, theme: Theme, box: QRectF, checked: bool, lit: bool = False) -> None:
    """Paint a check box: filled with a tick if `checked`, otherwise outlined; `lit` highlights its
    outline."""
    color = theme.color
    line = "contrastBorder" if color("contrastBorder").alpha() else "disabledForeground"
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if checked:
        painter.setPen(QPen(color("focusBorder"), 1) if lit else Qt.PenStyle.NoPen)
        painter.setBrush(color("button.background"))
        painter.drawRoundedRect(box, 4, 4)
        draw_icon(painter, "check", box.adjusted(1, 1, -1, -1), color("button.foreground"))
    else:
        painter.setPen(QPen(color("focusBorder" if lit else line), 1))
        painter.setBrush(color("checkbox.background"))
        painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), 4, 4)


class ToolButton(QToolButton):
    """A flat 22 px button with a 16 px icon, focusable with Tab."""

    def __init__(self, theme: Theme, icon: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "tool")
        self.setIcon(theme.icon(icon))
        self.setIconSize(QSize(16, 16))
        self.setFixedSize(22, 22)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        theme.changed.connect(self.update)


def tool_button(theme: Theme, icon: str, tooltip: str, on_click: Callable[[], object]) -> ToolButton:
    """Return a tool button that calls `on_click`; the tooltip is also its accessible name."""
    button = ToolButton(theme, icon)
    button.setToolTip(tooltip)
    button.setAccessibleName(tooltip)
    button.clicked.connect(lambda _checked=False: on_click())
    return button


class CheckBox(QCheckBox):
    """A check box with its text on the right."""

    def __init__(self, theme: Theme, text: str = "") -> None:
        super().__init__(text)
        self._theme = theme
        self.setMinimumHeight(CHECK_BOX_SIZE + 4)  # not squeezed by a form without enough room
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        theme.changed.connect(self.update)

    def sizeHint(self) -> QSize:
        text = self.fontMetrics().horizontalAdvance(self.text())
        return QSize(CHECK_BOX_SIZE + 2 + (text + 8 if text else 0), 26)

    # The whole widget toggles the box, its text included.
    def hitButton(self, pos: object) -> bool:
        return True

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        lit = self.hasFocus() or self.underMouse()
        box = QRectF(1, (self.height() - CHECK_BOX_SIZE) / 2, CHECK_BOX_SIZE, CHECK_BOX_SIZE)
        paint_check(painter, self._theme, box, self.isChecked(), lit)
        ink = self._theme.color("foreground" if self.isEnabled() else "disabledForeground")
        room, elide = self.rect().adjusted(CHECK_BOX_SIZE + 8, 0, 0, 0), Qt.TextElideMode.ElideRight
        paint_text(painter, room, self.text(), ink, 12, elide=elide, font=self.font())
        painter.end()


class ElidedLabel(QLabel):
    """One line of plain text. If it does not fit, it is elided and the tooltip shows the full text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setMinimumHeight(self.fontMetrics().height())

    def setText(self, text: str) -> None:
        super().setText(text)
        self._update_tooltip()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._update_tooltip()

    def _update_tooltip(self) -> None:
        fits = self.fontMetrics().horizontalAdvance(self.text()) <= self.width()
        self.setToolTip("" if fits else self.text())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        ink, elide = self.palette().color(self.foregroundRole()), Qt.TextElideMode.ElideRight
        paint_text(painter, self.rect(), self.text(), ink, 12, elide=elide, font=self.font())
        painter.end()


class ClampedLabel(QLabel):
    """Wrapped text that takes `min_lines` to `max_lines` lines. If it is cut, the tooltip shows the full
    text."""

    def __init__(self, max_lines: int, *, min_lines: int = 1) -> None:
        super().__init__()
        self._max_lines, self._min_lines = max_lines, min_lines
        self._full_text = ""
        self.setWordWrap(True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom)

    def show_text(self, text: str) -> None:
        self._full_text = text
        self._fit()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        # Only for a new width: _fit sets the height, which resizes the label again.
        if event.size().width() != event.oldSize().width():
            self._fit()

    def sizeHint(self) -> QSize:
        return QSize(100, self._lines_height(self._min_lines))

    def _lines_height(self, num_lines: int) -> int:
        return num_lines * self.fontMetrics().lineSpacing() + 2

    def _fit(self) -> None:
        """Cut the text after the last word that fits, and set the label's height to that of the text."""
        metrics, text, height = self.fontMetrics(), self._full_text, self._lines_height(self._min_lines)
        if self.width() > 20:
            text = elide_wrapped_text(metrics, text, self.width(), self._lines_height(self._max_lines))
            box, flags = QRect(0, 0, self.width(), 10_000), int(Qt.TextFlag.TextWordWrap)
            height = max(height, metrics.boundingRect(box, flags, text).height() + 2)
        self.setText(text)
        self.setToolTip(self._full_text if text != self._full_text else "")
        self.setAccessibleName(self._full_text)
        self.setFixedHeight(height)


class FitOrHideLabel(QLabel):
    """A short right-aligned text that is painted only if it fits completely."""

    def __init__(self) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def paintEvent(self, event: QPaintEvent) -> None:
        if self.fontMetrics().horizontalAdvance(self.text()) <= self.width():
            super().paintEvent(event)


class ComboBox(QComboBox):
    """A combo box with the theme's chevron. The mouse wheel scrolls the page and does not change the choice.

    Its width does not depend on its entries: text that does not fit is elided, and the tooltip shows the full
    text; the list is as wide as its longest entry. `popup_closed` is emitted when the list closes, with or
    without a choice.
    """

    popup_closed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        theme.changed.connect(self.update)

    def minimumSizeHint(self) -> QSize:
        return QSize(_MIN_COMBO_WIDTH, super().minimumSizeHint().height())

    def showPopup(self) -> None:
        view = self.view()
        view.setMinimumWidth(view.sizeHintForColumn(0) + 2 * _ENTRY_MARGIN)
        super().showPopup()

    def hidePopup(self) -> None:
        super().hidePopup()
        self.popup_closed.emit()

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip and self.is_elided:
            QToolTip.showText(event.globalPos(), f"{self._display_text}\n{self.toolTip()}".strip(), self)
            return True
        return super().event(event)

    @property
    def _display_text(self) -> str:
        return self.currentText() or self.placeholderText()

    @property
    def is_elided(self) -> bool:
        """Whether the text is too long for the box."""
        return self.fontMetrics().horizontalAdvance(self._display_text) > self._text_rect().width()

    def _text_rect(self) -> QRect:
        """Return the rectangle of the text, whose left edge is the same as in a line edit."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        edit_field = QStyle.SubControl.SC_ComboBoxEditField
        box = self.style().subControlRect(QStyle.ComplexControl.CC_ComboBox, option, edit_field, self)
        return box.adjusted(2, 0, 0, 0)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QStylePainter(self)
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        option.subControls = (
            QStyle.SubControl.SC_ComboBoxFrame
        )  # without the style's arrow: draw_icon paints the chevron, sharp at any scale
        painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
        ink = self._theme.color("dropdown.foreground" if self.isEnabled() else "disabledForeground")
        if not self.isEditable():
            box, right = self._text_rect(), Qt.TextElideMode.ElideRight
            is_text = self.currentIndex() >= 0
            tone = ink if is_text else self._theme.color("input.placeholderForeground")
            paint_text(painter, box, self._display_text, tone, 12, elide=right, font=self.font())
        draw_icon(painter, "chevron-down", QRectF(self.width() - 20, (self.height() - 14) / 2, 14, 14), ink)
        painter.end()


class Slider(QSlider):
    """A horizontal slider that ignores the mouse wheel."""

    def __init__(self, name: str) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setAccessibleName(name)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()
