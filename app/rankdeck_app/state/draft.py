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
from rankdeck.base.files import LARGEST_TOML_BYTES, read_bytes, write_whole
from rankdeck.config import RunConfig, from_text, mesh_sizes
from rankdeck.config.checks import CARDS
from rankdeck.config.devices import parse_devices
from rankdeck.config.naming import title_of
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import in_words, tr
from rankdeck_app.state.kept_file import KeptFile
from rankdeck_app.state.toml_writing import Place, write_value

# Where the options of a chosen card stand: in a table of their own, or beside its `use`.
_ARGS_PLACES = {("model",), ("data",)}
FROM_RUN = "run "
"""Stands before what the run is called that a text came from."""
SETTLE_MS = 700
"""Half a line is no TOML, and half a number is none: so long nothing is said of it."""


@dataclass(frozen=True)
class Snapshot:
    """A draft as it was."""

    text: str
    folder: Path
    stem: str
    source: Path | None
    origin: str


class Draft(QObject):
    """`changed`: text, tables or problems are new, or it is time to tell them. `set_aside` brings the
    Snapshot of text that was no TOML and made way for the form.
    """

    changed = Signal()
    set_aside = Signal(object)

    def __init__(
        self,
        file: Path,
        folder: Path,
        parent: QObject | None = None,
        *,
        disk: IoThread | None = None,
        num_chosen: Callable[[RunConfig], int | None] = attrgetter("known_count"),
    ) -> None:
        """`num_chosen`: how many devices a configuration is for."""
        super().__init__(parent)
        self._disk = disk or IoThread(self)
        self._num_chosen = num_chosen
        self._kept = KeptFile(file, self._to_keep, self, disk=self._disk)
        self._settling = QTimer(self, interval=SETTLE_MS, singleShot=True)
        self._settling.timeout.connect(self.changed)
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
        self._named: RunConfig | None = None
        """The last one that there was of this text."""
        self.problems: list[Problem] = []
        self.is_restored = self.is_edited = self._restore()
        self._validate_anew(self._toml_text)

    # What it says

    @property
    def is_toml(self) -> bool:
        """Whether the text can be read; until it can, `tables` and `config` are of the last that could."""
        return self.text == self._toml_text

    @property
    def is_settling(self) -> bool:
        """Whether the text became wrong only now, half a word: what is told of problems may stay."""
        return self._settling.isActive()

    @property
    def run_title(self) -> str:
        """What its run would be called; empty where nobody can tell yet."""
        config = self._named
        return "" if config is None else title_of(config, self._num_chosen(config))

    @property
    def title(self) -> str:
        """Its preset's name or its file's; of what came from a run, what the next one would be called."""
        has_name = self.origin and not self.origin.startswith(FROM_RUN)
        return self.origin if has_name else self.run_title or self.origin_in_words

    def value(self, place: Place) -> Any:
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
    def origin_in_words(self) -> str:
        """`origin`, which is kept on the disk, as the window says it."""
        run = self.origin.removeprefix(FROM_RUN)
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
                self._settling.stop()
            elif is_new or self.is_settling:
                self._settling.start()
            self._after_change()

    def set_value(self, place: Place, value: Any, *, is_typed: bool = False) -> None:
        """Write one option into the text; None takes it out."""
        self.set_values({place: value}, is_typed=is_typed)

    def set_values(self, values: dict[Place, Any], *, is_typed: bool = False) -> None:
        """Write several options in one change."""
        document = tomlkit.parse(self._toml_text)
        for place, value in values.items():
            write_value(document, place, value)
        self._set_document(document, is_typed=is_typed)

    def apply_fix(self, changes: Mapping[str, Any]) -> None:
        """Make the changes that fix a problem."""
        settings = {tuple(dotted.split(".")): value for dotted, value in changes.items()}
        for place in [place for place in settings if place[-1] == "use" and place[:-1] in CARDS]:
            self.choose(place[:-1], settings.pop(place))
        if settings:
            self.set_values(settings)

    def _set_document(self, document: tomlkit.TOMLDocument, *, is_typed: bool = False) -> None:
        before = None if self.is_toml else self.snapshot()
        self.set_text(tomlkit.dumps(document), is_typed=is_typed)
        if before is not None:
            self.set_aside.emit(before)

    def choose(self, place: Place, use: str) -> None:
        """Choose a card (("strategy",), "ddp"): options that the new card has keep their values, the others
        go. A person's own "module:factory" keeps them all. A mesh begins with sizes for the chosen devices.
        """
        document = tomlkit.parse(self._toml_text)
        write_value(document, (*place, "use"), use)
        card = CARDS[place][1].get(use)
        holder = (*place, "args") if place in _ARGS_PLACES else place
        given = self.value(holder)
        if card is not None and isinstance(given, dict):
            for key in given:
                beside = holder == place and (key == "use" or place == ("loss",))
                if not beside and key not in card.options.model_fields:
                    write_value(document, (*holder, key), None)
        if use == "hybrid" and place == ("strategy",):
            for axis, size in mesh_sizes.usual_sizes(self._num_devices()).items():
                write_value(document, (*place, axis), size)
        self._set_document(document)

    def _num_devices(self) -> int:
        """How many devices are chosen; 1 where nobody knows or that cannot be read."""
        if self._named is not None:
            return self._num_chosen(self._named) or 1
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
        self._settling.stop()
        self._validate_anew()
        self._after_change()

    def snapshot(self) -> Snapshot:
        """All of it, for `bring_back`."""
        return Snapshot(self.text, self.folder, self.stem, self.source, self.origin)

    def bring_back(self, before: Snapshot) -> None:
        self.replace(
            before.text, folder=before.folder, stem=before.stem, source=before.source, origin=before.origin
        )
        self.is_edited = True

    def open_file(
        self, path: Path, opened: Callable[[], object], failed: Callable[[OSError], object]
    ) -> None:
        """Start over from a .toml file; where it cannot be read the draft stays as it was."""

        def take(read: tuple[str, Path]) -> None:
            text, folder = read
            self._saved_text = text
            self.replace(text, folder=folder, stem=path.stem, source=path, origin=path.name)
            opened()

        self._disk.do(lambda: (_read_text(path), path.resolve().parent), take, failed)

    def save_as(self, path: Path, failed: Callable[[OSError], object] | None = None) -> None:
        """Write the text to a .toml file, and make it the one that Save writes."""
        text = self.text

        def write() -> Path:
            write_whole(path, text)
            return path.resolve().parent

        def written(folder: Path) -> None:
            self._saved_text = text
            self.source, self.origin = path, path.name
            # Relative paths start at the file's folder from now on, as they will when the file is opened.
            self.folder, self.stem = folder, path.stem
            self._validate()
            self._after_change()

        self._disk.do(write, written, failed)

    @property
    def is_saved(self) -> bool:
        """Whether the source file holds this text, as it was read or written last."""
        return self.source is not None and self._saved_text == self.text

    # Keeping it

    def close(self) -> None:
        self._settling.stop()
        self._kept.close()

    def _to_keep(self) -> dict[str, Any]:
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
            kept = self._kept.read()
            self.text = str(kept["text"])
            self._toml_text = str(kept.get("toml_text", ""))
            self.folder, self.stem = Path(kept["folder"]), str(kept["stem"])
            self.source = None if kept["source"] is None else Path(kept["source"])
            self.origin = str(kept["origin"])
        except (KeyError, TypeError):
            return False
        if self.source is not None:
            self._disk.do(partial(_read_text, self.source), self._found_source)
        return True

    def _found_source(self, text: str) -> None:
        self._saved_text = text
        self.changed.emit()

    def _after_change(self) -> None:
        self._kept.save_soon()
        self.changed.emit()

    def _validate_anew(self, readable: str = "") -> None:
        """Of a whole new text; where it is no TOML, `readable` is shown."""
        for text in ("", readable, self.text):
            self.text = text
            self._validate()
        self._named = self.config

    def _validate(self) -> None:
        self.problems = []
        try:
            self.tables = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError:
            self.problems = self._problems_of(self.text)[1]
            return
        self._toml_text = self.text
        self.config, self.problems = self._problems_of(self.text)
        self.plan_config = self.config or self._problems_of(self.text, to_plan=True)[0]
        self._named = self.config or self._named

    def _problems_of(self, text: str, *, to_plan: bool = False) -> tuple[RunConfig | None, list[Problem]]:
        where: dict[str, Any] = {"folder": self.folder, "stem": self.stem, "resolve": Path.absolute}
        try:
            return from_text(text, to_plan=to_plan, **where), []
        except ConfigError as error:
            return None, [in_words(problem) for problem in error.problems]


def _read_text(path: Path) -> str:
    """Raises OSError: the file cannot be read, or is no UTF-8 text."""
    try:
        return read_bytes(path, LARGEST_TOML_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, tr("it is not UTF-8 text"), str(path)) from None
