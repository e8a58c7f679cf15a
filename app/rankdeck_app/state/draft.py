"""Draft of the next run's configuration: its TOML text, the parsed tables, and their problems.

The text is authoritative: the form changes single values in it (comments and order stay), the editor replaces
it, and a preset or file provides a new one. Every change is validated at once by the engine's rules, so
problems have the same path and line as on the command line. While the typed text is not valid TOML,
everything shown comes from the last valid text. A change in the form is then made in the last valid text, and
the app offers to restore the invalid one. The draft is saved to a file and restored at the next start.
"""

from __future__ import annotations

import errno
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import tomlkit
from PySide6.QtCore import QObject, QTimer, Signal

from rankdeck.base.errors import ConfigError, DeviceError, Problem
from rankdeck.base.files import MAX_TOML_BYTES, read_bytes, write_atomic
from rankdeck.config import RunConfig, from_text, mesh_sizes
from rankdeck.config.checks import CATALOGS
from rankdeck.config.devices import parse_devices
from rankdeck.config.naming import title_of
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.state_file import StateFile
from rankdeck_app.state.toml_writer import KeyPath, write_value

# Choices whose options are in an `args` table; those of all other choices are next to `use`.
_ARGS_PATHS = {("model",), ("data",)}
RUN_ORIGIN_PREFIX = "run "
"""Prefix of `origin` if the draft's text came from a run; the run's name follows the prefix."""
TYPING_DELAY_MS = 700
"""Delay before problems are reported, because a half-typed line or number is not valid yet."""


@dataclass(frozen=True)
class DraftSnapshot:
    """A saved state of a draft."""

    text: str
    folder: Path
    stem: str
    source: Path | None
    origin: str


class Draft(QObject):
    """A draft configuration.

    `changed` is emitted when the text, the tables or the problems have changed, or when the typing delay is
    over. `text_discarded` carries the DraftSnapshot of invalid text that a change in the form replaced.
    """

    changed = Signal()
    text_discarded = Signal(object)

    def __init__(
        self,
        file: Path,
        folder: Path,
        parent: QObject | None = None,
        *,
        io_thread: IoThread | None = None,
        count_devices: Callable[[RunConfig], int | None] = attrgetter("known_count"),
    ) -> None:
        """Create the draft and restore its last state from `file`; `count_devices` returns how many devices
        a configuration uses, or None if unknown."""
        super().__init__(parent)
        self._io_thread = io_thread or IoThread(self)
        self._count_devices = count_devices
        self._state_file = StateFile(file, self._make_state, self, io_thread=self._io_thread)
        self._typing_timer = QTimer(self, interval=TYPING_DELAY_MS, singleShot=True)
        self._typing_timer.timeout.connect(self.changed)
        self.text = self._toml_text = ""
        self.folder = folder
        self.stem = ""
        self.source: Path | None = None
        self._saved_text: str | None = None
        self.origin = ""
        self.is_edited = False
        self.tables: dict[str, Any] = {}
        self.config: RunConfig | None = None
        self.plan_config: RunConfig | None = None
        """The configuration to plan; available even if the chosen strategy conflicts with other options."""
        self._last_config: RunConfig | None = None
        """The most recent valid configuration since the draft was replaced."""
        self.problems: list[Problem] = []
        self.is_restored = self.is_edited = self._restore()
        self._validate_new_text(self._toml_text)

    # Contents

    @property
    def is_toml(self) -> bool:
        """Whether the text is valid TOML; if not, `tables` and `config` come from the last valid text."""
        return self.text == self._toml_text

    @property
    def is_typing(self) -> bool:
        """Whether the text has just become invalid while the user is typing; the problems are updated after a
        delay."""
        return self._typing_timer.isActive()

    @property
    def run_title(self) -> str:
        """The title of the draft's run; empty until the draft has had a valid configuration."""
        config = self._last_config
        return "" if config is None else title_of(config, self._count_devices(config))

    @property
    def title(self) -> str:
        """The name of the draft's preset or file; for a draft made from a run, the title of the next run."""
        has_name = self.origin and not self.origin.startswith(RUN_ORIGIN_PREFIX)
        return self.origin if has_name else self.run_title or self.origin_text

    def value(self, key_path: KeyPath) -> Any:
        """Return the value at a key path, or None if the text does not set it."""
        value: Any = self.tables
        for depth, key in enumerate(key_path):
            if isinstance(value, str) and depth == len(key_path) - 1 and key == "use":
                return value  # strategy = "dp" is short for strategy.use = "dp"
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return value

    @property
    def origin_text(self) -> str:
        """`origin` in the window's language."""
        run = self.origin.removeprefix(RUN_ORIGIN_PREFIX)
        return tr("run {run}", run=run) if run != self.origin else run

    # Changes

    def set_text(self, text: str, *, is_typed: bool = False) -> None:
        """Replace the text.

        If `is_typed` is True, the text was typed into a field, and problems are reported after a delay.
        """
        if text != self.text:
            was_toml, was_right = self.is_toml, not self.problems
            self.text = text
            self.is_edited = True
            self._validate()
            is_half = not self.is_toml or (is_typed and bool(self.problems))
            # A text that has been invalid for longer shows its problem already, and more typing must not hide
            # that again.
            is_new = was_toml if not self.is_toml else was_right
            if not is_half:
                self._typing_timer.stop()
            elif is_new or self.is_typing:
                self._typing_timer.start()
            self._after_change()

    def set_value(self, key_path: KeyPath, value: Any, *, is_typed: bool = False) -> None:
        """Write an option into the text, or remove it if `value` is None; for `is_typed`, see `set_text`."""
        self.set_values({key_path: value}, is_typed=is_typed)

    def set_values(self, values: dict[KeyPath, Any], *, is_typed: bool = False) -> None:
        """Write several options into the text in one change; the parameters are those of `set_value`."""
        document = tomlkit.parse(self._toml_text)
        for key_path, value in values.items():
            write_value(document, key_path, value)
        self._set_document(document, is_typed=is_typed)

    def apply_fix(self, changes: Mapping[str, Any]) -> None:
        """Apply the changes of a fix."""
        settings = {tuple(dotted.split(".")): value for dotted, value in changes.items()}
        # Choices come first: a choice removes the options that the new card lacks, and the other changes may
        # set options of the new card.
        for key_path in [
            key_path for key_path in settings if key_path[-1] == "use" and key_path[:-1] in CATALOGS
        ]:
            self.choose(key_path[:-1], settings.pop(key_path))
        if settings:
            self.set_values(settings)

    def _set_document(self, document: tomlkit.TOMLDocument, *, is_typed: bool = False) -> None:
        # The document was parsed from the last valid text, so anything typed since is lost. The snapshot
        # allows an undo.
        before = None if self.is_toml else self.snapshot()
        self.set_text(tomlkit.dumps(document), is_typed=is_typed)
        if before is not None:
            self.text_discarded.emit(before)

    def choose(self, key_path: KeyPath, use: str) -> None:
        """Choose the entry `use` of the catalogue at a key path, such as "ddp" at ("strategy",).

        Options that the new entry supports keep their values, and all others are removed. If `use` is the
        user's own "module:factory", no options are removed. A mesh gets default sizes for the chosen devices.
        """
        document = tomlkit.parse(self._toml_text)
        write_value(document, (*key_path, "use"), use)
        card = CATALOGS[key_path][1].get(use)
        holder = (*key_path, "args") if key_path in _ARGS_PATHS else key_path
        options = self.value(holder)
        if card is not None and isinstance(options, dict):
            for key in options:
                is_table_key = holder == key_path and (key == "use" or key_path == ("loss",))
                if not is_table_key and key not in card.options.model_fields:
                    write_value(document, (*holder, key), None)
        if use == "hybrid" and key_path == ("strategy",):
            for axis, size in mesh_sizes.default_mesh_sizes(self._num_devices()).items():
                write_value(document, (*key_path, axis), size)
        self._set_document(document)

    def _num_devices(self) -> int:
        """Return the number of chosen devices; 1 if the number is unknown or the choice is invalid."""
        if self._last_config is not None:
            return self._count_devices(self._last_config) or 1
        chosen = self.value(("devices", "use"))
        try:
            return parse_devices(str(chosen)).known_count or 1
        except DeviceError:
            return 1

    def replace(
        self, text: str, *, folder: Path, stem: str, source: Path | None = None, origin: str = ""
    ) -> None:
        """Replace the draft with another configuration.

        `source` is the file that Save writes, if any. `origin` states where the text came from: a preset's
        name, a file name, or RUN_ORIGIN_PREFIX and a run's name.
        """
        self.text, self.folder, self.stem = text, folder, stem
        self.source, self.origin = source, origin
        self.is_edited = False
        self._typing_timer.stop()
        self._validate_new_text()
        self._after_change()

    def snapshot(self) -> DraftSnapshot:
        """Return the draft's state, for `restore_snapshot`."""
        return DraftSnapshot(self.text, self.folder, self.stem, self.source, self.origin)

    def restore_snapshot(self, before: DraftSnapshot) -> None:
        self.replace(
            before.text, folder=before.folder, stem=before.stem, source=before.source, origin=before.origin
        )
        self.is_edited = True

    def open_file(
        self, path: Path, on_opened: Callable[[], object], on_error: Callable[[OSError], object]
    ) -> None:
        """Replace the draft with a .toml file; if the file cannot be read, the draft stays unchanged."""

        def take(read: tuple[str, Path]) -> None:
            text, folder = read
            self._saved_text = text
            self.replace(text, folder=folder, stem=path.stem, source=path, origin=path.name)
            on_opened()

        self._io_thread.submit(lambda: (_read_text(path), path.resolve().parent), take, on_error)

    def save_as(self, path: Path, on_error: Callable[[OSError], object] | None = None) -> None:
        """Write the text to a .toml file, which becomes the file that Save writes."""
        text = self.text

        def write() -> Path:
            write_atomic(path, text)
            return path.resolve().parent

        def written(folder: Path) -> None:
            self._saved_text = text
            self.source, self.origin = path, path.name
            # Relative paths start at the file's folder from now on, as they will when the file is opened.
            self.folder, self.stem = folder, path.stem
            self._validate()
            self._after_change()

        self._io_thread.submit(write, written, on_error)

    @property
    def is_saved(self) -> bool:
        """Whether the source file, as last read or written, has the same text as the draft."""
        return self.source is not None and self._saved_text == self.text

    # Persistence

    def close(self) -> None:
        self._typing_timer.stop()
        self._state_file.close()

    def _make_state(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "toml_text": self._toml_text,
            "folder": str(self.folder),
            "stem": self.stem,
            "source": None if self.source is None else str(self.source),
            "origin": self.origin,
        }

    def _restore(self) -> bool:
        try:
            saved = self._state_file.read()
            self.text = str(saved["text"])
            self._toml_text = str(saved.get("toml_text", ""))
            self.folder, self.stem = Path(saved["folder"]), str(saved["stem"])
            self.source = None if saved["source"] is None else Path(saved["source"])
            self.origin = str(saved["origin"])
        except (KeyError, TypeError):
            return False
        # The file may have changed while the app was closed, so `is_saved` is known only once it is read
        # again.
        if self.source is not None:
            self._io_thread.submit(partial(_read_text, self.source), self._on_source_read)
        return True

    def _on_source_read(self, text: str) -> None:
        self._saved_text = text
        self.changed.emit()

    def _after_change(self) -> None:
        self._state_file.save_soon()
        self.changed.emit()

    def _validate_new_text(self, readable: str = "") -> None:
        """Validate the draft's text after it was replaced. If the new text is not valid TOML, the draft shows
        the values of `readable`, an earlier text."""
        # The empty text is validated first, to drop the previous text's values. If the new text is not TOML,
        # the values of `readable` remain.
        for text in ("", readable, self.text):
            self.text = text
            self._validate()
        self._last_config = self.config

    def _validate(self) -> None:
        self.problems = []
        try:
            self.tables = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError:
            self.problems = self._find_problems(self.text)[1]
            return
        self._toml_text = self.text
        self.config, self.problems = self._find_problems(self.text)
        self.plan_config = self.config or self._find_problems(self.text, for_planning=True)[0]
        # Kept while the text is invalid, so that the run's title does not vanish at every half-typed option.
        self._last_config = self.config or self._last_config

    def _find_problems(
        self, text: str, *, for_planning: bool = False
    ) -> tuple[RunConfig | None, list[Problem]]:
        # Path.resolve would read the disk, on the UI thread at every keystroke.
        where: dict[str, Any] = {"folder": self.folder, "stem": self.stem, "resolve": Path.absolute}
        try:
            return from_text(text, to_plan=for_planning, **where), []
        except ConfigError as error:
            return None, [translate_problem(problem) for problem in error.problems]


def _read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        OSError: the file cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path, MAX_TOML_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, tr("it is not UTF-8 text"), str(path)) from None
