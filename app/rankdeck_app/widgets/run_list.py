"""How a run looks in a list: outcome, title and strategy on one line; when, devices and steps on the next."""

from __future__ import annotations

import time

from PySide6.QtCore import QModelIndex, QObject, QPersistentModelIndex, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem

from rankdeck.base.units import format_count, format_duration
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.row import RunInfo
from rankdeck_app.state.runs import RunsModel
from rankdeck_app.theme import Theme, draw_icon

ROW_HEIGHT = 42

# outcome -> icon, colour id, word
OUTCOMES: dict[str, tuple[str, str, str]] = {
    "running": ("pulse", "rankdeck.rest", "running"),
    "completed": ("pass", "rankdeck.ok", "completed"),
    "failed": ("error", "errorForeground", "failed"),
    "stopped": ("stop-circle", "descriptionForeground", "stopped"),
    "lost": ("question", "rankdeck.leadText", "lost: it ended without a last word"),
}


def outcome_look(outcome: str) -> tuple[str, str, str]:
    return OUTCOMES.get(outcome, ("circle", "descriptionForeground", outcome))


def strategy_title(name: str) -> str:
    card = STRATEGIES.get(name)
    return card.title if card is not None else name


def ago(then_s: float, now_s: float | None = None) -> str:
    """'now', '5 min ago', '14:02', 'yesterday 14:02', '3 Jan 14:02', '3 Jan 2024'."""
    now_s = time.time() if now_s is None else now_s
    if now_s - then_s < 60:
        return "now"
    if now_s - then_s < 3600:
        return f"{int((now_s - then_s) // 60)} min ago"
    then, now = time.localtime(then_s), time.localtime(now_s)
    clock = time.strftime("%H:%M", then)
    if then[:3] == now[:3]:
        return clock
    if time.localtime(now_s - 86400)[:3] == then[:3]:
        return f"yesterday {clock}"
    day = f"{then.tm_mday} {time.strftime('%b', then)}"
    return f"{day} {clock}" if then.tm_year == now.tm_year else f"{day} {then.tm_year}"


def devices_text(info: RunInfo) -> str:
    """'4 virtual', '2 GPUs'; empty when it is not known."""
    if info.num_devices is None:
        return ""
    if info.device_kind == "gpu":
        return f"{info.num_devices} GPU{'s' if info.num_devices > 1 else ''}"
    return f"{info.num_devices} virtual"


def details(info: RunInfo) -> str:
    """The second line."""
    parts = ["" if info.started is None else ago(info.started), devices_text(info)]
    if info.steps is not None:
        parts.append(f"{format_count(info.steps)} steps")
    if info.started is not None and info.ended is not None:
        parts.append(format_duration(info.ended - info.started))
    return " · ".join(part for part in parts if part)


class RunDelegate(QStyledItemDelegate):
    """Paints a RunInfo under RunsModel.InfoRole."""

    def __init__(self, theme: Theme, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._theme = theme

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        return QSize(180, ROW_HEIGHT)

    def paint(
        self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex
    ) -> None:
        info: RunInfo = index.data(RunsModel.InfoRole)
        color = self._theme.color
        rect: QRect = option.rect
        state: QStyle.StateFlag = option.state
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        if chosen or state & QStyle.StateFlag.State_MouseOver:
            active = bool(state & QStyle.StateFlag.State_Active)
            fill = "list.activeSelectionBackground" if active else "list.inactiveSelectionBackground"
            painter.fillRect(rect, color(fill if chosen else "list.hoverBackground"))
        ink = color("list.activeSelectionForeground" if chosen else "foreground")
        dim = ink if chosen else color("descriptionForeground")
        icon, tone, _ = outcome_look(info.outcome)
        draw_icon(painter, icon, QRectF(rect.x() + 12, rect.y() + 5, 16, 16), ink if chosen else color(tone))
        left, right = rect.x() + 36, rect.right() - 12
        middle = Qt.AlignmentFlag.AlignVCenter
        painter.setFont(self._theme.font(11))
        painter.setPen(dim)
        strategy = strategy_title(info.strategy)
        painter.drawText(
            QRect(left, rect.y() + 3, right - left, 20), middle | Qt.AlignmentFlag.AlignRight, strategy
        )
        room = right - left - painter.fontMetrics().horizontalAdvance(strategy) - 8
        line = painter.fontMetrics().elidedText(details(info), Qt.TextElideMode.ElideRight, right - left)
        painter.drawText(QRect(left, rect.y() + 21, right - left, 17), middle, line)
        painter.setFont(self._theme.font(12))
        painter.setPen(ink)
        title = painter.fontMetrics().elidedText(info.title, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRect(left, rect.y() + 3, room, 20), middle, title)
        if state & QStyle.StateFlag.State_HasFocus:
            painter.setPen(color("focusBorder"))
            painter.drawRect(rect.adjusted(0, 0, -1, -1))
