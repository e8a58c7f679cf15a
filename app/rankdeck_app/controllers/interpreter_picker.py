"""Which Python runs the folder's scripts: an item of the status bar, and the list that it opens.

Choosing executes nothing; an interpreter runs when a script is launched with it, and then its folder is
trusted first.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QObject

from rankdeck.base.phrases import marked, phrase
from rankdeck.config.environments import Interpreter
from rankdeck_app.commands.table import Command
from rankdeck_app.controllers.session import Session
from rankdeck_app.language import error_in_words, tr
from rankdeck_app.shell.palette import QuickItem
from rankdeck_app.shell.window import MainWindow
from rankdeck_app.state.script_folder import place_of, short_words

COMMAND = "python.select"
_QUESTION = marked("Select the interpreter for this folder's scripts")


class InterpreterPicker(QObject):
    """Follows the session's folder."""

    def __init__(self, window: MainWindow, session: Session) -> None:
        super().__init__(window)
        self._window, self._session = window, session
        self._is_asking = False
        session.scripts.changed.connect(self._changed)
        session.scripts.failed.connect(window.toasts.warn)
        self._changed()

    def rows(self) -> list[Command]:
        return [Command(COMMAND, phrase("Python: Select Interpreter"), self.pick, menu="Run/2_configure")]

    def pick(self) -> None:
        """What is known now, and once it has been looked up, what is new."""
        self._is_asking = True
        self._window.palette_box.pick(self.items(), tr(_QUESTION))
        self._session.scripts.look()

    def items(self) -> list[QuickItem]:
        scripts = self._session.scripts
        usual = scripts.facts.usual if scripts.is_chosen else None
        items = [QuickItem(tr("Enter interpreter path…"), "", self._ask_path, icon="add")]
        if usual is not None:
            tell = f"{short_words(usual)}, {place_of(usual.python)}"
            back = partial(self._choose, None)
            items.append(QuickItem(tr("Use the usual one"), tell, back, icon="debug-rerun"))
        now = scripts.interpreter
        known = list(scripts.facts.known)
        if now is not None and all(one.python != now.python for one in known):
            known.insert(0, now)
        known.sort(key=lambda one: now is None or one.python != now.python)
        items += [self._item(one, one is known[0] and now is not None) for one in known]
        if not scripts.is_known:
            items.append(QuickItem(tr("Looking for environments…"), icon="loading"))
        return items

    def _item(self, one: Interpreter, is_now: bool) -> QuickItem:
        torch = f"torch {one.torch_version}" if one.torch_version else tr("no torch")
        act = partial(self._choose, one.python)
        return QuickItem(short_words(one), place_of(one.python), act, torch, "check" if is_now else "python")

    def _ask_path(self) -> None:
        question = tr("Path of an interpreter, or of an environment's folder")
        self._window.palette_box.ask(question, self._enter)

    def _enter(self, text: str) -> None:
        def failed(error: Exception) -> None:
            self._window.toasts.error(error_in_words(error))

        if text.strip():
            self._session.scripts.find(text.strip(), self._choose, failed)

    def _choose(self, python: Path | None) -> None:
        """For this folder, from now on; an interpreter that an entry named gives way to it."""
        self._session.script.set(python="")
        self._session.scripts.choose(python)

    def _changed(self) -> None:
        scripts, palette = self._session.scripts, self._window.palette_box
        now, item = scripts.interpreter, self._window.status.item("python", "left", 100)
        if now is None:
            item.show_text("")
        else:
            torch = f"torch {now.torch_version}" if now.torch_version else tr("no torch was found beside it")
            told = (
                f"{place_of(now.python)} ({scripts.source})",
                torch,
                tr("Select the interpreter for scripts"),
            )
            item.show_text(short_words(now), tooltip="\n".join(told), command=COMMAND)
        # The list is still open under the question: put in what was found meanwhile.
        if self._is_asking and palette.isVisible() and palette.input.placeholderText() == tr(_QUESTION):
            typed = palette.input.text()
            palette.pick(self.items(), tr(_QUESTION))
            palette.input.setText(typed)
        else:
            self._is_asking = False
