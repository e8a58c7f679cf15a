"""The run that is being configured: TOML text, what it says, and what is wrong with it.

The text is the truth: the form changes single values in it (comments and order stay), the editor replaces it,
a preset or a file brings a new one. Every change is validated at once by the engine's own rules, so a problem
has the path and the line that the command line would name. While text that is typed is no TOML, all that is
shown goes on from the last text that was; a change in the form begins there too, and what was typed since is
offered back. The draft is kept in one file and is there again at the next start.
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

# Where the options of a chosen card stand: in a table of their own, or beside its `use`.
_ARGS_PATHS = {("model",), ("data",)}
RUN_ORIGIN_PREFIX = "run "
"""Stands before what the run is called that a text came from."""
TYPING_DELAY_MS = 700
"""Half a line is no TOML, and half a number is none: so long nothing is said of it."""


@dataclass(frozen=True)
class DraftSnapshot:
    """A draft as it was."""

    text: str
    folder: Path
    stem: str
    source: Path | None
    origin: str


class Draft(QObject):
    """`changed`: text, tables or problems are new, or it is time to tell them. `text_discarded` brings the
    Snapshot of text that was no TOML and made way for the form.
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
        """`count_devices`: how many devices a configuration is for."""
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
        """What can be planned: also where only the chosen strategy does not go together with the rest."""
        self._last_config: RunConfig | None = None
        """The last one that there was of this text."""
        self.problems: list[Problem] = []
        self.is_restored = self.is_edited = self._restore()
        self._validate_new_text(self._toml_text)

    # What it says

    @property
    def is_toml(self) -> bool:
        """Whether the text can be read; until it can, `tables` and `config` are of the last that could."""
        return self.text == self._toml_text

    @property
    def is_typing(self) -> bool:
        """Whether the text became wrong only now, half a word: what is told of problems may stay."""
        return self._typing_timer.isActive()

    @property
    def run_title(self) -> str:
        """What its run would be called; empty where nobody can tell yet."""
        config = self._last_config
        return "" if config is None else title_of(config, self._count_devices(config))

    @property
    def title(self) -> str:
        """Its preset's name or its file's; of what came from a run, what the next one would be called."""
        has_name = self.origin and not self.origin.startswith(RUN_ORIGIN_PREFIX)
        return self.origin if has_name else self.run_title or self.origin_text

    def value(self, place: KeyPath) -> Any:
        """What the text says at a place, or None where it says nothing."""
        value: Any = self.tables
        for depth, key in enumerate(place):
            if isinstance(value, str) and depth == len(place) - 1 and key == "use":
                return value  # strategy = "dp" is short for strategy.use = "dp"
            if not isinstance(value, dict) or key not in value:
                return None
            value = value[key]
        return value

    @property
    def origin_text(self) -> str:
        """`origin`, which is kept on the disk, as the window says it."""
        run = self.origin.removeprefix(RUN_ORIGIN_PREFIX)
        return tr("run {run}", run=run) if run != self.origin else run

    # Changing it

    def set_text(self, text: str, *, is_typed: bool = False) -> None:
        """The editor's text; with `is_typed` somebody types in a field, and half a word is no news."""
        if text != self.text:
            was_toml, was_right = self.is_toml, not self.problems
            self.text = text
            self.is_edited = True
            self._validate()
            is_half = not self.is_toml or (is_typed and bool(self.problems))
            is_new = was_toml if not self.is_toml else was_right
            if not is_half:
                self._typing_timer.stop()
            elif is_new or self.is_typing:
                self._typing_timer.start()
            self._after_change()

    def set_value(self, place: KeyPath, value: Any, *, is_typed: bool = False) -> None:
        """Write one option into the text; None takes it out."""
        self.set_values({place: value}, is_typed=is_typed)

    def set_values(self, values: dict[KeyPath, Any], *, is_typed: bool = False) -> None:
        """Write several options in one change."""
        document = tomlkit.parse(self._toml_text)
        for place, value in values.items():
            write_value(document, place, value)
        self._set_document(document, is_typed=is_typed)

    def apply_fix(self, changes: Mapping[str, Any]) -> None:
        """Make the changes that fix a problem."""
        settings = {tuple(dotted.split(".")): value for dotted, value in changes.items()}
        for place in [place for place in settings if place[-1] == "use" and place[:-1] in CATALOGS]:
            self.choose(place[:-1], settings.pop(place))
        if settings:
            self.set_values(settings)

    def _set_document(self, document: tomlkit.TOMLDocument, *, is_typed: bool = False) -> None:
        before = None if self.is_toml else self.snapshot()
        self.set_text(tomlkit.dumps(document), is_typed=is_typed)
        if before is not None:
            self.text_discarded.emit(before)

    def choose(self, place: KeyPath, use: str) -> None:
        """Choose a card (("strategy",), "ddp"): options that the new card has keep their values, the others
        go. A person's own "module:factory" keeps them all. A mesh begins with sizes for the chosen devices.
        """
        document = tomlkit.parse(self._toml_text)
        write_value(document, (*place, "use"), use)
        card = CATALOGS[place][1].get(use)
        holder = (*place, "args") if place in _ARGS_PATHS else place
        given = self.value(holder)
        if card is not None and isinstance(given, dict):
            for key in given:
                beside = holder == place and (key == "use" or place == ("loss",))
                if not beside and key not in card.options.model_fields:
                    write_value(document, (*holder, key), None)
        if use == "hybrid" and place == ("strategy",):
            for axis, size in mesh_sizes.default_mesh_sizes(self._num_devices()).items():
                write_value(document, (*place, axis), size)
        self._set_document(document)

    def _num_devices(self) -> int:
        """How many devices are chosen; 1 where nobody knows or that cannot be read."""
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
        """Start over from another configuration. `source` is the file that Save writes, if there is one;
        `origin` says where the text came from: the name of a preset, a file, or FROM_RUN and that of a run.
        """
        self.text, self.folder, self.stem = text, folder, stem
        self.source, self.origin = source, origin
        self.is_edited = False
        self._typing_timer.stop()
        self._validate_new_text()
        self._after_change()

    def snapshot(self) -> DraftSnapshot:
        """All of it, for `restore_snapshot`."""
        return DraftSnapshot(self.text, self.folder, self.stem, self.source, self.origin)

    def restore_snapshot(self, before: DraftSnapshot) -> None:
        self.replace(
            before.text, folder=before.folder, stem=before.stem, source=before.source, origin=before.origin
        )
        self.is_edited = True

    def open_file(
        self, path: Path, on_opened: Callable[[], object], on_error: Callable[[OSError], object]
    ) -> None:
        """Start over from a .toml file; where it cannot be read the draft stays as it was."""

        def take(read: tuple[str, Path]) -> None:
            text, folder = read
            self._saved_text = text
            self.replace(text, folder=folder, stem=path.stem, source=path, origin=path.name)
            on_opened()

        self._io_thread.submit(lambda: (_read_text(path), path.resolve().parent), take, on_error)

    def save_as(self, path: Path, on_error: Callable[[OSError], object] | None = None) -> None:
        """Write the text to a .toml file, and make it the one that Save writes."""
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
        """Whether the source file holds this text, as it was read or written last."""
        return self.source is not None and self._saved_text == self.text

    # Keeping it

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
            kept = self._state_file.read()
            self.text = str(kept["text"])
            self._toml_text = str(kept.get("toml_text", ""))
            self.folder, self.stem = Path(kept["folder"]), str(kept["stem"])
            self.source = None if kept["source"] is None else Path(kept["source"])
            self.origin = str(kept["origin"])
        except (KeyError, TypeError):
            return False
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
        """Of a whole new text; where it is no TOML, `readable` is shown."""
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
        self._last_config = self.config or self._last_config

    def _find_problems(
        self, text: str, *, for_planning: bool = False
    ) -> tuple[RunConfig | None, list[Problem]]:
        where: dict[str, Any] = {"folder": self.folder, "stem": self.stem, "resolve": Path.absolute}
        try:
            return from_text(text, to_plan=for_planning, **where), []
        except ConfigError as error:
            return None, [translate_problem(problem) for problem in error.problems]


def _read_text(path: Path) -> str:
    """Raises OSError: the file cannot be read, or is no UTF-8 text."""
    try:
        return read_bytes(path, MAX_TOML_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, tr("it is not UTF-8 text"), str(path)) from None
