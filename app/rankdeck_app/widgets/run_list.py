"""Rows of a list of runs: outcome, title and loss on one line; strategy, state, age and steps on the next.

The table of runs (run_columns.py) uses the same texts. Most functions whose names end in `_text`, and
`format_time_ago`, return translatable phrases, so that rows are sorted and grouped alike in every language.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from pathlib import Path

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter
from PySide6.QtWidgets import QStyle, QWidget

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.base.units import format_count, format_duration, format_loss
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.row import EVENTS_LOST_TEXT, RunInfo
from rankdeck.run.run_intervals import total_duration_s
from rankdeck_app.language import tr, translate
from rankdeck_app.state.runs import RunsModel
from rankdeck_app.theme import Theme, draw_icon
from rankdeck_app.widgets.painting import (
    RIGHT,
    Index,
    ListRowDelegate,
    paint_progress,
    paint_text,
    text_width,
)

ROW_HEIGHT = 42
INDENT = 16
"""Indent in pixels of a race, which makes space for the fold icon, and of an entry relative to its race."""

# outcome -> icon, colour id, label
OUTCOME_STYLES: dict[str, tuple[str, str, str]] = {
    "running": ("pulse", "rankdeck.rest", tr_noop("running")),
    "completed": ("pass", "rankdeck.ok", tr_noop("completed")),
    EVENTS_LOST_TEXT: ("warning", "editorWarning.foreground", EVENTS_LOST_TEXT),
    "failed": ("error", "errorForeground", tr_noop("failed")),
    "stopped": ("stop-circle", "descriptionForeground", tr_noop("stopped")),
    "lost": ("question", "rankdeck.leadText", tr_noop("lost: ended without an exit record")),
    "waiting": ("circle", "descriptionForeground", tr_noop("waiting")),
}
# verdict on the losses of a race -> label
LOSS_VERDICT_TEXTS = {
    "agrees": phrase("agree"),
    "expected": phrase("as expected"),
    "differs": phrase("differ"),
}
_MONTHS = (
    tr_noop("Jan"), tr_noop("Feb"), tr_noop("Mar"), tr_noop("Apr"), tr_noop("May"), tr_noop("Jun"),
    tr_noop("Jul"), tr_noop("Aug"), tr_noop("Sep"), tr_noop("Oct"), tr_noop("Nov"), tr_noop("Dec"),
)  # fmt: skip


# outcome -> colour id of its tab's icon
OUTCOME_TONES = {
    "running": "rankdeck.rest",
    "completed": "rankdeck.ok",
    "failed": "errorForeground",
    "lost": "errorForeground",
}


# wrapper class in a user script -> short label
WRAPPER_LABELS = {
    "DataParallel": "DP",
    "DistributedDataParallel": "DDP",
    "FullyShardedDataParallel": "FSDP",
    "fully_shard": "FSDP2",
}


def fold_icon(*, is_open: bool) -> str:
    return "chevron-down" if is_open else "chevron-right"


def outcome_style(outcome: str) -> tuple[str, str, str]:
    """Return the icon, the colour id and the translated text of an outcome."""
    icon, tone, label = OUTCOME_STYLES.get(outcome, ("circle", "descriptionForeground", outcome))
    return icon, tone, tr(label)


def outcome_text(outcome: str) -> str:
    """Return the name of an outcome as a phrase that can be translated."""
    return phrase(outcome) if outcome in OUTCOME_STYLES else outcome


def strategy_title(name: str) -> str:
    """Return the translated title of a strategy, or of the wrapper that a script uses."""
    return translate(_strategy_phrase(name))


def _strategy_phrase(strategy: str) -> str:
    card = STRATEGIES.get(strategy)
    return phrase(card.title) if card is not None else WRAPPER_LABELS.get(strategy, strategy)


def format_time_ago(then_s: float, now_s: float | None = None) -> str:
    """Format a time in the past; the result is like one of 'now', '5 min ago', '14:02', 'yesterday 14:02',
    '3 Jan 14:02' and '3 Jan 2024'."""
    now_s = time.time() if now_s is None else now_s
    if now_s - then_s < 60:
        return phrase("now")
    if now_s - then_s < 3600:
        return phrase("{count} min ago", count=int((now_s - then_s) // 60))
    then, now = time.localtime(then_s), time.localtime(now_s)
    clock = time.strftime("%H:%M", then)
    if then[:3] == now[:3]:
        return clock
    if time.localtime(now_s - 86400)[:3] == then[:3]:
        return phrase("yesterday {clock}", clock=clock)
    month = phrase(_MONTHS[then.tm_mon - 1])
    if then.tm_year == now.tm_year:
        return phrase("{day} {month} {clock}", day=then.tm_mday, month=month, clock=clock)
    return phrase("{day} {month} {year}", day=then.tm_mday, month=month, year=then.tm_year)


def devices_text(info: RunInfo) -> str:
    """Return the number and kind of devices, such as '4 virtual' or '2 GPUs'; empty if unknown."""
    count = info.num_devices
    if count is None:
        return ""
    if info.device_kind == "gpu":
        return phrase("{count} GPUs", count=count) if count > 1 else phrase("{count} GPU", count=count)
    if info.is_script:
        return phrase("{count} on CPU", count=count)
    return phrase("{count} virtual", count=count)


def steps_text(info: RunInfo) -> str:
    """Return a text such as '103 / 150', or '103' if the total is unknown; for a race, return how many
    entries are done, such as '2 of 5' or '5 raced'."""
    if info.race is not None:
        done, count = info.race.num_done, info.race.num_entries
        if done < count:
            return phrase("{done} of {count}", done=done, count=count)
        return phrase("{count} raced", count=count)
    if info.steps is None:
        return format_count(info.step) if info.step else ""
    return f"{format_count(info.step)} / {format_count(info.steps)}"


def step_progress(info: RunInfo) -> float | None:
    if info.race is not None:
        return info.race.num_done / info.race.num_entries if info.race.num_entries else None
    return info.step / info.steps if info.steps else None


def strategy_text(info: RunInfo) -> str:
    """Return a name such as 'DDP'; for a race, return 'DDP so far', 'DDP fastest' or 'inconclusive', or an
    empty text until two entries are done."""
    if info.race is None:
        return _strategy_phrase(info.strategy)
    if info.race.is_inconclusive:
        return phrase("inconclusive")
    if info.race.fastest is None or info.race.num_done < 2:
        return ""
    strategy = _strategy_phrase(_strategy_name(info.race.fastest))
    if info.is_alive:
        return phrase("{strategy} so far", strategy=strategy)
    return phrase("{strategy} fastest", strategy=strategy)


def _strategy_name(label: str) -> str:
    """Return the name of the strategy in the label of a plan line."""
    return label.partition(",")[0]


def title_text(info: RunInfo) -> str:
    """Return the title of a run; for a race's entry, its strategy with options."""
    if info.entry_of is None:
        return info.title
    rest = info.title.removeprefix(info.strategy)
    return phrase("{strategy}{options}", strategy=_strategy_phrase(info.strategy), options=rest)


def folder_breadcrumbs(name: str) -> list[str]:
    """Return the date and the rest of a run directory's name, without the time, such as ['2026-11-24',
    'gpt-dp-3f2a']; return a name without a date as the only part."""
    stamp, _, rest = name.partition("-")
    if len(stamp) != 8 or not stamp.isdigit():
        return [name]
    return [f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:]}", rest.partition("-")[2] or rest]


def loss_text(info: RunInfo) -> str:
    if info.race is not None:
        return LOSS_VERDICT_TEXTS.get(info.race.losses or "", "")
    loss = None if info.metrics is None else info.metrics.loss
    return "" if loss is None else format_loss(loss)


def details_text(info: RunInfo) -> str:
    """Return the details of a run on one line: start, devices, steps and duration."""
    steps = steps_text(info)
    steps_label = steps if info.race is not None or not steps else phrase("step {steps}", steps=steps)
    texts = ["" if info.started is None else format_time_ago(info.started), devices_text(info), steps_label]
    if not info.is_alive and (lasted := total_duration_s(info.intervals, time.time())) is not None:
        texts.append(format_duration(lasted))
    return " · ".join(translate(text) for text in texts if text)


def state_and_age_text(info: RunInfo) -> str:
    """Return a text such as 'DDP · stopped · 5 min ago', or 'DDP fastest · 14:02' for a race; 'completed' is
    omitted."""
    state = "" if info.state == "completed" else outcome_text(info.state)
    age = "" if info.started is None else format_time_ago(info.started)
    use = strategy_text(info) if info.entry_of is None else devices_text(info)
    return " · ".join(translate(text) for text in (use, state, age) if text)


class RunDelegate(ListRowDelegate):
    """Delegate that paints the RunInfo stored in RunsModel.InfoRole.

    Entries are indented below their race. The race's fold icon shows whether the race is in `unfolded`.
    """

    def __init__(self, theme: Theme, parent: QWidget, unfolded: Container[Path]) -> None:
        super().__init__(theme, parent, ROW_HEIGHT)
        self._expanded = unfolded

    def selected_background(self, state: QStyle.StateFlag) -> str:
        active = "active" if state & QStyle.StateFlag.State_Active else "inactive"
        return f"list.{active}SelectionBackground"

    def paint_row(self, painter: QPainter, rect: QRect, index: Index, ink: Callable[[str], QColor]) -> None:
        info: RunInfo = index.data(RunsModel.InfoRole)
        if info.race is not None:
            sign = fold_icon(is_open=info.path in self._expanded)
            draw_icon(painter, sign, QRectF(rect.x() + 9, rect.y() + 6, 13, 13), ink("icon.foreground"))
            rect = rect.adjusted(INDENT, 0, 0, 0)
        elif info.entry_of is not None:
            rect = rect.adjusted(2 * INDENT, 0, 0, 0)
        icon, tone, _ = outcome_style(info.state)
        draw_icon(painter, icon, QRectF(rect.x() + 12, rect.y() + 5, 16, 16), ink(tone))
        room = QRect(rect.x() + 36, rect.y() + 3, rect.width() - 49, 20)
        title, loss = translate(title_text(info)), translate(loss_text(info))
        self._paint_line(painter, room, title, loss, ink, ink("foreground"), 12)
        below = QRect(room.x(), rect.y() + 21, room.width(), 17)
        dim = ink("descriptionForeground")
        self._paint_line(painter, below, state_and_age_text(info), translate(steps_text(info)), ink, dim, 11)
        share = step_progress(info)
        if info.is_alive and share is not None:
            line = QRect(room.x(), rect.bottom() - 2, room.width(), 2)
            paint_progress(painter, self._theme, line, share, ink("rankdeck.rest"))

    @staticmethod
    def _paint_line(
        painter: QPainter,
        room: QRect,
        left: str,
        right: str,
        ink: Callable[[str], QColor],
        tone: QColor,
        px: int,
    ) -> None:
        """Paint the text `right` at the right end and, before it, `left` elided to the remaining width."""
        paint_text(painter, room, right, ink("descriptionForeground"), 11, RIGHT, mono=True)
        used = text_width(painter, right) + 10 if right else 0
        box = room.adjusted(0, 0, -round(used), 0)
        paint_text(
            painter, box, left, tone, px, elide=Qt.TextElideMode.ElideMiddle
        )  # names differ at their end
