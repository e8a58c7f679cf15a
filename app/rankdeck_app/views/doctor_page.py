"""Shows, check by check, whether this machine is ready for training; the worst results come first.

While the checks run, rows keep their positions and fill in as results arrive; the rows are regrouped once,
after the last check. When the checks run again, each row shows its previous result until the new one arrives.
Read state/doctor.py first.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QGuiApplication, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QApplication, QBoxLayout, QFrame, QWidget

from rankdeck.base.phrases import tr_noop
from rankdeck.doctor.lines import VERDICT_TEXTS, Verdict
from rankdeck_app.language import tr
from rankdeck_app.shell.page import Page
from rankdeck_app.state.doctor import SEVERITY_ORDER, CheckTexts, Doctor, translate_check
from rankdeck_app.theme import Theme
from rankdeck_app.widgets.layouts import (
    MIDDLE,
    TOP,
    Paragraph,
    WrappedText,
    column,
    make_scroll_area,
    push_button,
    row,
    text_label,
)
from rankdeck_app.widgets.painting import IconWidget, paint_progress

PAGE_KIND = "doctor"
MAX_WIDTH = 1100
_NAME_WIDTH = 150
_WIDE_ROW_WIDTH, _WIDE_HEADER_WIDTH, _WIDE_BUTTONS_WIDTH = 560, 640, 400
"""Minimum widths in pixels for placing names beside their details, buttons beside the summary, and buttons
side by side."""
_CHECKING, _NOT_CHECKED = "looking", "untold"
_TITLES = {
    _CHECKING: tr_noop("checking"),
    **{str(verdict): text for verdict, text in VERDICT_TEXTS.items()},
    _NOT_CHECKED: tr_noop("not checked"),
}
_STATE_ICONS: dict[str, tuple[str, str]] = {
    Verdict.FAILED: ("error", "errorForeground"),
    Verdict.WARNING: ("warning", "rankdeck.lead"),
    Verdict.OK: ("pass", "rankdeck.ok"),
    Verdict.SKIPPED: ("circle-slash", "descriptionForeground"),
    _CHECKING: ("loading", "rankdeck.rest"),
    _NOT_CHECKED: ("circle", "descriptionForeground"),
}
_DESCRIPTION = tr_noop(
    "Checks driver, torch, peer-to-peer access, memory, disk, network, clock and a rendezvous "
    "of two real ranks. Takes a few seconds and changes nothing."
)


class _StateIcon(IconWidget):
    """Icon of a check's state."""

    def __init__(self, theme: Theme) -> None:
        super().__init__(theme, *_STATE_ICONS[_CHECKING], QSize(18, 18), 16)

    def show_state(self, state: str) -> None:
        self._icon, self._tone = _STATE_ICONS[state]
        self.update()


class _ProgressLine(QWidget):
    """A thin progress bar; empty while no checks are running."""

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
    """One check: icon, name, result, evidence and fix, with a button that copies the fix's command."""

    def __init__(self, theme: Theme, title: str) -> None:
        super().__init__()
        self.title, self.state, self.command = title, "", ""
        self._shown_result: CheckTexts | None = None
        self.icon = _StateIcon(theme)
        self.name = text_label(title, selectable=True)
        self.name.setFont(theme.font(12, bold=True))
        self.details = WrappedText(theme, title)
        self.command_text = WrappedText(theme, tr("Command to run"))
        self.copy_button = push_button(tr("Copy"), "", self._copy, height=24)
        self._command_row = QWidget()
        row(
            self.copy_button,
            (column(None, self.command_text, None), 1),
            on=self._command_row,
            spacing=10,
            align=MIDDLE,
        )
        self._columns = row(self.name, (column(self.details, self._command_row, spacing=4), 1), spacing=10)
        self._columns.setAlignment(self.name, TOP)
        row(self.icon, (self._columns, 1), on=self, margins=(12, 6, 12, 7), spacing=8, align=TOP)

    def show_check(self, state: str, result: CheckTexts | None) -> None:
        """Show the state and `result`, which can be from an earlier run of the check."""
        if (state, result) == (self.state, self._shown_result):
            return
        self.state, self._shown_result = state, result
        self.icon.show_state(state)
        paragraphs = (
            _make_paragraphs(result)
            if result is not None
            else [(tr(_TITLES[state]).capitalize() + "…", "dim")]
        )
        if state == _NOT_CHECKED:
            paragraphs = [(tr("This check was skipped."), "dim")]
        self.details.set_paragraphs(paragraphs)
        self.command = result.command if result is not None else ""
        self.command_text.set_paragraphs([(self.command, "mono")])
        self.copy_button.setToolTip(tr("Copy {command}", command=self.command))
        self.copy_button.setAccessibleName(tr("Copy {command}", command=self.command))
        self._command_row.setVisible(bool(self.command))
        finding = "" if result is None else result.finding
        self.setAccessibleName(
            tr("{title}, {verdict}: {found}", title=self.title, verdict=tr(_TITLES[state]), found=finding)
        )
        self.setAccessibleDescription(
            "" if result is None else "\n".join([*result.evidence, result.fix]).strip()
        )

    def set_wide(self, is_wide: bool) -> None:
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._columns.setDirection(right if is_wide else down)
        self._columns.setSpacing(10 if is_wide else 1)
        self.name.setMinimumWidth(_NAME_WIDTH if is_wide else 0)
        # The number is Qt's QWIDGETSIZE_MAX, which means no limit.
        self.name.setMaximumWidth(_NAME_WIDTH if is_wide else 16_777_215)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.command)


def _make_paragraphs(texts: CheckTexts) -> list[Paragraph]:
    """Return the paragraphs of a result. The evidence of a good or skipped check shares one line; otherwise
    each piece of evidence has its own line."""
    is_short = texts.verdict in (Verdict.OK, Verdict.SKIPPED)
    evidence = [" · ".join(texts.evidence)] if is_short and texts.evidence else texts.evidence
    return [
        (texts.finding, ""),
        *((item, "dim") for item in evidence),
        *([(texts.fix, "apart")] if texts.fix else []),
    ]


class _CheckGroup(QFrame):
    """The checks with the same state, under a heading with their count."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self._title = tr(_TITLES[state])
        self.setProperty("kind", "card")
        self._heading = text_label("", "section", wrap=False)
        self._heading.setContentsMargins(12, 0, 12, 0)
        self._rows = column(spacing=0)
        column(self._heading, self._rows, on=self, margins=(0, 10, 0, 6), spacing=4)

    def show_rows(self, rows: list[CheckRow]) -> None:
        """Show `rows` in this order; rows that are already in position are not touched."""
        for at, check in enumerate(rows):
            if self._rows.indexOf(check) != at:
                self._rows.insertWidget(at, check)
                # Qt would show a moved row only with the next event.
                check.show()
        self._heading.setText(f"{self._title.upper()}  {len(rows)}")
        self.setAccessibleName(f"{self._title}: {len(rows)}")
        self.setVisible(bool(rows))


class DoctorPage(Page):
    """Page with the results of `doctor`; `left` is called when the page is destroyed."""

    can_split = False

    def __init__(self, theme: Theme, doctor: Doctor, left: Callable[[], object]) -> None:
        super().__init__(f"{PAGE_KIND}:", title=tr("Doctor"), icon="checklist")
        self._theme, self._doctor = theme, doctor
        self.rows: dict[str, CheckRow] = {}
        self._states: dict[str, str] = {}
        self.headline_label = text_label("", "title", selectable=True)
        self.status_label = text_label("", "dim", selectable=True)
        self.problem_label = text_label("", "error", selectable=True)
        self.check_button = push_button(tr("Check Again"), "", doctor.start, kind="primary")
        self.stop_button = push_button(tr("Stop"), tr("Stop the running checks"), doctor.stop)
        tooltip = tr("Copy the full report as text for a bug report")
        self.copy_button = push_button(tr("Copy Report"), tooltip, self._copy)
        labels = column(self.headline_label, self.status_label, self.problem_label, spacing=4)
        self._buttons = row(self.copy_button, self.stop_button, self.check_button, spacing=8, align=TOP)
        self._header = row((labels, 1), self._buttons, spacing=14)
        self._progress = _ProgressLine(theme)
        self._groups = {state: _CheckGroup(state) for state in (_CHECKING, *SEVERITY_ORDER, _NOT_CHECKED)}
        inside = QWidget()
        column(*self._groups.values(), None, on=inside, margins=(24, 10, 24, 20), spacing=10)
        self._inside = inside
        inside.setMaximumWidth(MAX_WIDTH)
        self._scroll = make_scroll_area(inside, tr("Checks, most severe first"))
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        top = QWidget()
        top.setMaximumWidth(MAX_WIDTH)
        column(self._header, self._progress, on=top, margins=(24, 18, 34, 0), spacing=10)
        column(top, (self._scroll, 1), on=self, spacing=0)
        self.setFocusProxy(self.check_button)
        doctor.changed.connect(self.refresh)
        self.destroyed.connect(lambda: left())
        self.refresh()

    def breadcrumbs(self) -> list[str]:
        return [tr("this machine"), self.title]

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        down, right = QBoxLayout.Direction.TopToBottom, QBoxLayout.Direction.LeftToRight
        self._header.setDirection(right if self.width() >= _WIDE_HEADER_WIDTH else down)
        self._buttons.setDirection(right if self.width() >= _WIDE_BUTTONS_WIDTH else down)
        for check in self.rows.values():
            check.set_wide(self.width() >= _WIDE_ROW_WIDTH)

    def refresh(self) -> None:
        """Show the current results."""
        doctor, focused = self._doctor, QApplication.focusWidget()
        self._show_header()
        self._make_rows()
        for name, check in self.rows.items():
            line, before = doctor.lines.get(name), doctor.previous_lines.get(name)
            state = line.verdict if line is not None else _CHECKING if doctor.is_running else _NOT_CHECKED
            latest = line or before
            check.show_check(state, translate_check(latest) if latest is not None else None)
            if not doctor.is_running:
                # Rows move to their group only when nothing runs, so that they keep their position during a
                # check.
                self._states[name] = state
            else:
                self._states.setdefault(name, _CHECKING)
        for state, group in self._groups.items():
            group.show_rows([self.rows[name] for name in self.rows if self._states[name] == state])
        # Moving a row to another group takes the focus away from it.
        if focused is not None and self.isAncestorOf(focused) and focused.isVisibleTo(self):
            focused.setFocus()

    def _make_rows(self) -> None:
        names = [announced.name for announced in self._doctor.rows]
        for removed in self.rows.keys() - set(names):
            self.rows.pop(removed).deleteLater()
            self._states.pop(removed, None)
        for announced in self._doctor.rows:
            if announced.name not in self.rows:
                check_row = self.rows[announced.name] = CheckRow(self._theme, tr(announced.title))
                check_row.set_wide(self.width() >= _WIDE_ROW_WIDTH)
        # Rows of an earlier check run may have been announced in another order.
        self.rows = {name: self.rows[name] for name in names}

    def _show_header(self) -> None:
        doctor = self._doctor
        self.headline_label.setText(self._headline_text())
        self.status_label.setText(self._status_text())
        self.status_label.setVisible(bool(self.status_label.text()))
        self.problem_label.setText(doctor.problem)
        self.problem_label.setVisible(bool(doctor.problem))
        num_told, num_rows = len(doctor.lines), len(doctor.rows)
        self._progress.set_share(
            # A running check always shows some progress.
            max(num_told / num_rows if num_rows else 0.0, 0.01) if doctor.is_running else 0.0
        )
        # Qt moves the focus away from a button that is disabled or hidden.
        had_focus = self.stop_button.hasFocus() or self.check_button.hasFocus()
        self.check_button.setText(tr("Check Again") if doctor.has_results else tr("Check"))
        self.check_button.setDisabled(doctor.is_running)
        self.stop_button.setVisible(doctor.is_running)
        self.copy_button.setVisible(bool(doctor.lines))
        if had_focus:
            (self.stop_button if doctor.is_running else self.check_button).setFocus()

    def _headline_text(self) -> str:
        doctor = self._doctor
        if doctor.is_running:
            return tr("Checking this machine…")
        if not doctor.has_results:
            return tr("This machine has not been checked yet.")
        return self._counts_text() or tr("No checks were run.")

    def _counts_text(self) -> str:
        """Return a text such as '18 good, 2 worth a look, 1 broken'."""
        doctor = self._doctor
        templates = (
            (Verdict.OK, tr_noop("{n} good")),
            (Verdict.WARNING, tr_noop("{n} worth a look")),
            (Verdict.FAILED, tr_noop("{n} broken")),
            (Verdict.SKIPPED, tr_noop("{n} skipped")),
        )
        return ", ".join(
            tr(template, template, n) for verdict, template in templates if (n := doctor.count(verdict))
        )

    def _status_text(self) -> str:
        doctor = self._doctor
        if doctor.is_running:
            so_far = self._counts_text()
            progress = tr("{told} of {n}", "{told} of {n}", len(doctor.rows), told=len(doctor.lines))
            return f"{progress} · {so_far}" if so_far else progress
        if not doctor.has_results:
            return tr(_DESCRIPTION)
        at = time.strftime("%H:%M", time.localtime(doctor.started_at))
        texts = [tr("Checked at {time}", time=at)]
        if doctor.done is not None:
            texts.append(tr("took {took}", took=f"{doctor.done.seconds:.1f} s"))
        if doctor.python:
            texts.append(tr("with {python}", python=doctor.python))
        return ", ".join(texts)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self._doctor.report())
