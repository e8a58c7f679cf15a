"""The Doctor's page: whether this machine can train, check by check, the worst first.

Rows keep their places while a look goes on and fill in as its lines come; they are grouped anew once, at its
end. Of a look again each row shows what was found before until it is known anew. Read state/doctor.py before.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QGuiApplication, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QBoxLayout, QFrame, QWidget

from rankdeck.base.phrases import marked
from rankdeck.doctor.lines import VERDICT_WORDS, Verdict
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.doctor import WORST_FIRST, CheckWords, Doctor, in_window_words
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    TOP,
    Paragraph,
    WrappedText,
    column,
    push_button,
    row,
    scrolled,
    text_label,
)
from rankdeck_app.widgets.painting import Symbol, paint_progress

PAGE_KIND = "doctor"
MAX_WIDTH = 1100
_NAME_WIDTH = 150
_WIDE, _HEAD_WIDE, _BUTTONS_WIDE = 560, 640, 400
"""Widths from which names stand beside what is said of them, buttons beside the summary, and buttons beside
each other."""
_LOOKING, _UNTOLD = "looking", "untold"
_TITLES = {
    _LOOKING: marked("being looked at"),
    **{str(verdict): words for verdict, words in VERDICT_WORDS.items()},
    _UNTOLD: marked("not looked at"),
}
_SIGNS: dict[str, tuple[str, str]] = {
    Verdict.BROKEN: ("error", "errorForeground"),
    Verdict.LOOK: ("warning", "rankdeck.lead"),
    Verdict.GOOD: ("pass", "rankdeck.ok"),
    Verdict.NOT_TRIED: ("circle-slash", "descriptionForeground"),
    _LOOKING: ("loading", "rankdeck.rest"),
    _UNTOLD: ("circle", "descriptionForeground"),
}
_WHAT = marked(
    "Driver, torch, peer to peer, memory, disk, network, clock, and two ranks that really meet. It takes "
    "some seconds and changes nothing."
)


class _Sign(Symbol):
    """How a check went."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, *_SIGNS[_LOOKING], QSize(18, 18), 16)

    def show_state(self, state: str) -> None:
        self._icon, self._tone = _SIGNS[state]
        self.update()


class _Progress(QWidget):
    """A thin line; nothing where nothing goes on."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme, self._share = theme, 0.0
        self.setFixedHeight(2)

    def set_share(self, share: float) -> None:
        self._share = share
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._share > 0:
            painter = QPainter(self)
            line = QRect(0, 0, self.width(), self.height())
            paint_progress(painter, self._theme, line, self._share, self._theme.color("rankdeck.rest"))
            painter.end()


class CheckRow(QWidget):
    """A check: its sign, its name, what was found and how, and what to do, with a button for a command."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__()
        self.title, self.state, self.command = title, "", ""
        self._shown: CheckWords | None = None
        self.sign = _Sign(theme)
        self.name = text_label(title, selectable=True)
        self.name.setFont(theme.font(12, bold=True))
        self.words = WrappedText(theme, title)
        self.code = WrappedText(theme, tr("What to run"))
        self.copy_button = push_button(tr("Copy"), "", self._copy, height=24)
        self._act = QWidget()
        row(self.copy_button, (column(None, self.code, None), 1), on=self._act, spacing=10, align=MIDDLE)
        self._beside = row(self.name, (column(self.words, self._act, spacing=4), 1), spacing=10)
        self._beside.setAlignment(self.name, TOP)
        row(self.sign, (self._beside, 1), on=self, margins=(12, 6, 12, 7), spacing=8, align=TOP)

    def show_check(self, state: str, said: CheckWords | None) -> None:
        """`said` may be what an earlier look found."""
        if (state, said) == (self.state, self._shown):
            return
        self.state, self._shown = state, said
        self.sign.show_state(state)
        paragraphs = (
            _paragraphs(said) if said is not None else [(tr(_TITLES[state]).capitalize() + "…", "dim")]
        )
        if state == _UNTOLD:
            paragraphs = [(tr("It was not come to."), "dim")]
        self.words.set_paragraphs(paragraphs)
        self.command = said.command if said is not None else ""
        self.code.set_paragraphs([(self.command, "mono")])
        self.copy_button.setToolTip(tr("Copy {command}", command=self.command))
        self.copy_button.setAccessibleName(tr("Copy {command}", command=self.command))
        self._act.setVisible(bool(self.command))
        found = "" if said is None else said.finding
        self.setAccessibleName(
            tr("{title}, {verdict}: {found}", title=self.title, verdict=tr(_TITLES[state]), found=found)
        )
        self.setAccessibleDescription("" if said is None else "\n".join([*said.evidence, said.fix]).strip())

    def set_wide(self, is_wide: bool) -> None:
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._beside.setDirection(right if is_wide else down)
        self._beside.setSpacing(10 if is_wide else 1)
        self.name.setMinimumWidth(_NAME_WIDTH if is_wide else 0)
        self.name.setMaximumWidth(_NAME_WIDTH if is_wide else 16_777_215)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command)


def _paragraphs(said: CheckWords) -> list[Paragraph]:
    """What is good is told in few lines; of what is not, each piece of evidence has its own."""
    is_short = said.verdict in (Verdict.GOOD, Verdict.NOT_TRIED)
    evidence = [" · ".join(said.evidence)] if is_short and said.evidence else said.evidence
    return [
        (said.finding, ""),
        *((one, "dim") for one in evidence),
        *([(said.fix, "apart")] if said.fix else []),
    ]


class _Group(QFrame):
    """The checks that went alike, under a heading with their count."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self._title = tr(_TITLES[state])
        self.setProperty("kind", "card")
        self._heading = text_label("", "section", wrap=False)
        self._heading.setContentsMargins(12, 0, 12, 0)
        self._rows = column(spacing=0)
        column(self._heading, self._rows, on=self, margins=(0, 10, 0, 6), spacing=4)

    def show_rows(self, rows: list[CheckRow]) -> None:
        """Those that are there already stay as they are."""
        for at, check in enumerate(rows):
            if self._rows.indexOf(check) != at:
                self._rows.insertWidget(at, check)
                check.show()
        self._heading.setText(f"{self._title.upper()}  {len(rows)}")
        self.setAccessibleName(f"{self._title}: {len(rows)}")
        self.setVisible(bool(rows))


class DoctorPage(Page):
    """Follows a Doctor; `left` is called when the page is gone."""

    can_split = False

    def __init__(self, theme: Theme, doctor: Doctor, left: Callable[[], object]) -> None:
        super().__init__(f"{PAGE_KIND}:", title=tr("Doctor"), icon="checklist")
        self._theme, self._doctor = theme, doctor
        self.rows: dict[str, CheckRow] = {}
        self._state_of: dict[str, str] = {}
        self.headline = text_label("", "title", selectable=True)
        self.told = text_label("", "dim", selectable=True)
        self.problem = text_label("", "error", selectable=True)
        self.look_button = push_button(tr("Look Again"), "", doctor.look, kind="primary")
        self.stop_button = push_button(tr("Stop"), tr("End the look that is under way"), doctor.stop)
        told = tr("Copy all of it as text, for a bug report")
        self.copy_button = push_button(tr("Copy Report"), told, self._copy)
        words = column(self.headline, self.told, self.problem, spacing=4)
        self._buttons = row(self.copy_button, self.stop_button, self.look_button, spacing=8, align=TOP)
        self._head = row((words, 1), self._buttons, spacing=14)
        self._progress = _Progress(theme)
        self._groups = {state: _Group(state) for state in (_LOOKING, *WORST_FIRST, _UNTOLD)}
        inside = QWidget()
        column(*self._groups.values(), None, on=inside, margins=(24, 10, 24, 20), spacing=10)
        self._inside = inside
        inside.setMaximumWidth(MAX_WIDTH)
        self._scroll = scrolled(inside, tr("Checks, the worst first"))
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        top = QWidget()
        top.setMaximumWidth(MAX_WIDTH)
        column(self._head, self._progress, on=top, margins=(24, 18, 34, 0), spacing=10)
        column(top, (self._scroll, 1), on=self, spacing=0)
        self.setFocusProxy(self.look_button)
        doctor.changed.connect(self.refresh)
        self.destroyed.connect(lambda: left())
        self.refresh()

    def breadcrumbs(self) -> list[str]:
        return [tr("this machine"), self.title]

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._head.setDirection(right if self.width() >= _HEAD_WIDE else down)
        self._buttons.setDirection(right if self.width() >= _BUTTONS_WIDE else down)
        for check in self.rows.values():
            check.set_wide(self.width() >= _WIDE)

    def refresh(self) -> None:
        """Show what is known by now."""
        doctor, focused = self._doctor, QApplication.focusWidget()
        self._show_head()
        self._make_rows()
        for name, check in self.rows.items():
            line, before = doctor.lines.get(name), doctor.earlier.get(name)
            state = line.verdict if line is not None else _LOOKING if doctor.is_looking else _UNTOLD
            known = line or before
            check.show_check(state, in_window_words(known) if known is not None else None)
            if not doctor.is_looking:
                self._state_of[name] = state
            else:
                self._state_of.setdefault(name, _LOOKING)
        for state, group in self._groups.items():
            group.show_rows([self.rows[name] for name in self.rows if self._state_of[name] == state])
        if focused is not None and self.isAncestorOf(focused) and focused.isVisibleTo(self):
            focused.setFocus()

    def _make_rows(self) -> None:
        names = [announced.name for announced in self._doctor.rows]
        for gone in self.rows.keys() - set(names):
            self.rows.pop(gone).deleteLater()
            self._state_of.pop(gone, None)
        for announced in self._doctor.rows:
            if announced.name not in self.rows:
                made = self.rows[announced.name] = CheckRow(self._theme, tr(announced.title))
                made.set_wide(self.width() >= _WIDE)
        self.rows = {name: self.rows[name] for name in names}

    def _show_head(self) -> None:
        doctor = self._doctor
        self.headline.setText(self._headline())
        self.told.setText(self._told())
        self.told.setVisible(bool(self.told.text()))
        self.problem.setText(doctor.problem)
        self.problem.setVisible(bool(doctor.problem))
        num_told, num_rows = len(doctor.lines), len(doctor.rows)
        self._progress.set_share(
            max(num_told / num_rows if num_rows else 0.0, 0.01) if doctor.is_looking else 0.0
        )
        had_focus = self.stop_button.hasFocus() or self.look_button.hasFocus()
        self.look_button.setText(tr("Look Again") if doctor.was_asked else tr("Look"))
        self.look_button.setDisabled(doctor.is_looking)
        self.stop_button.setVisible(doctor.is_looking)
        self.copy_button.setVisible(bool(doctor.lines))
        if had_focus:
            (self.stop_button if doctor.is_looking else self.look_button).setFocus()

    def _headline(self) -> str:
        doctor = self._doctor
        if doctor.is_looking:
            return tr("Looking this machine over…")
        if not doctor.was_asked:
            return tr("This machine has not been looked over yet.")
        return self._counts() or tr("Nothing was looked at.")

    def _counts(self) -> str:
        """'18 good, 2 worth a look, 1 broken'."""
        doctor = self._doctor
        parts = (
            (Verdict.GOOD, marked("{n} good")),
            (Verdict.LOOK, marked("{n} worth a look")),
            (Verdict.BROKEN, marked("{n} broken")),
            (Verdict.NOT_TRIED, marked("{n} not tried")),
        )
        return ", ".join(tr(words, words, n) for verdict, words in parts if (n := doctor.count(verdict)))

    def _told(self) -> str:
        doctor = self._doctor
        if doctor.is_looking:
            so_far = self._counts()
            seen = tr("{told} of {n}", "{told} of {n}", len(doctor.rows), told=len(doctor.lines))
            return f"{seen} · {so_far}" if so_far else seen
        if not doctor.was_asked:
            return tr(_WHAT)
        at = time.strftime("%H:%M", time.localtime(doctor.began_at_s))
        told = [tr("Looked at {time}", time=at)]
        if doctor.done is not None:
            told.append(tr("took {took}", took=f"{doctor.done.seconds:.1f} s"))
        if doctor.python:
            told.append(tr("by {python}", python=doctor.python))
        return ", ".join(told)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._doctor.report())
