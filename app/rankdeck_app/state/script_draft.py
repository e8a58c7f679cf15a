"""The person's own script that is about to be run: which, with what, on what; and what is wrong with it.

Beside the draft of a configuration (draft.py) this is the other thing that Launch can start: `is_chosen`
says which of the two it is. Fields are kept as typed, for each opened folder, so that text which cannot be
read yet stays as it is and its problem names its field. Nothing is executed to find out what is wrong.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, Signal

from rankdeck.base.errors import DeviceError, Problem
from rankdeck.base.home import expanded
from rankdeck.config.devices import MAX_VIRTUAL_DEVICES, parse_devices
from rankdeck.config.folder_file import ScriptEntry
from rankdeck.config.script import OBSERVE, ScriptConfig
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import in_words, tr
from rankdeck_app.state.kept_file import KeptFile

NO_GPUS = "cpu:1"
NONE_CHOSEN = "gpu:"
MODULE = "-m "
_FOLDERS_KEPT = 50
# Where the engine blames an option under a name of its own.
_FIELDS = {"args": "arguments", "use": "devices", "folder": "run"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ScriptForm:
    """What the form says, as typed.

    `run` is a file, relative to the folder or absolute, or "-m module"; `python` an interpreter that an entry
    names itself ("": the folder's). `entry` is the entry of rankdeck.toml that the form was filled from.
    """

    run: str = ""
    arguments: str = ""
    environment: str = ""
    devices: str = NO_GPUS
    ranks: int = 1
    plain: bool = False
    observe: str = "light"
    python: str = ""
    entry: str = ""


class ScriptDraft(QObject):
    """`changed`: the form, the folder or the choice between script and configuration is new."""

    changed = Signal()

    def __init__(
        self, file: Path, folder: Path, parent: QObject | None = None, *, disk: IoThread | None = None
    ) -> None:
        super().__init__(parent)
        self._disk = disk or IoThread(self)
        self._kept = KeptFile(file, self._to_keep, self, disk=self._disk)
        self._seen: tuple[Path, str] | None = None
        """The script that was looked at last, and whether it is a file, a folder or nothing ("")."""
        self._is_validating = False
        self.folder = folder
        self.is_chosen = False
        self._usual_devices = NO_GPUS
        self._forms: dict[str, ScriptForm] = {}
        self.problems: list[Problem] = []
        self._refused: list[Problem] = []
        self._restore()
        self._validate()

    @property
    def form(self) -> ScriptForm:
        return self._forms.get(str(self.folder), ScriptForm(devices=self._usual_devices))

    @property
    def name(self) -> str:
        """What a person calls it: the file's name, or the module."""
        if self.is_module:
            return self.form.run.removeprefix(MODULE).strip()
        return Path(self.form.run).name or tr("script")

    @property
    def is_module(self) -> bool:
        return self.form.run.startswith(MODULE)

    @property
    def path(self) -> Path | None:
        """The file; None where there is none, or a module is run."""
        text = self.form.run.strip()
        return None if not text or self.is_module else self.folder / expanded(text)

    @property
    def is_without_gpus(self) -> bool:
        return self.form.devices.startswith("cpu")

    @property
    def ranks(self) -> int:
        """Without GPUs, as many as devices are asked for."""
        if not self.is_without_gpus:
            return self.form.ranks
        try:
            return parse_devices(self.form.devices).count or 1
        except DeviceError:
            return 1

    def problem_at(self, field: str) -> Problem | None:
        """The problem of a field of the form, or what the engine refused it for."""
        known = [*self.problems, *self._refused]
        return next((problem for problem in known if _field_of(problem) == field), None)

    # Changing it

    def choose(self, is_chosen: bool) -> None:
        """Whether Launch starts the script, or the configuration."""
        if is_chosen != self.is_chosen:
            self.is_chosen = is_chosen
            self._after_change()

    def set(self, **values: Any) -> None:
        """Change fields of the form."""
        self.set_form(replace(self.form, **values))

    def set_form(self, form: ScriptForm) -> None:
        if form != self.form:
            self._forms.pop(str(self.folder), None)
            self._forms[str(self.folder)] = form
            self._after_change()

    def set_file(self, path: Path) -> None:
        """Another file, shown as it is seen from the folder; the rest of the form stays."""
        inside = path.is_relative_to(self.folder)
        self.set(run=str(path.relative_to(self.folder) if inside else path), entry="")

    def set_usual_devices(self, use: str) -> None:
        """What a folder's first script runs on."""
        if use != self._usual_devices:
            self._usual_devices = use
            self._after_change()

    def set_folder(self, folder: Path) -> None:
        """Another folder was opened: what was last run there."""
        if folder != self.folder:
            self.folder = folder
            self._after_change()

    def refuse(self, problems: list[Problem]) -> None:
        """What the engine said to the form as it is; it stands until the form changes."""
        self._refused = [in_words(problem) for problem in problems]
        self.changed.emit()

    # Entries of rankdeck.toml

    def fill(self, name: str, entry: ScriptEntry) -> None:
        """Take an entry over, whole."""
        self.set_form(self._form_of(name, entry))

    def is_changed(self, entry: ScriptEntry) -> bool:
        """Whether the form says something else than the entry that it was filled from."""
        return self._form_of(self.form.entry, entry) != self.form

    def _form_of(self, name: str, entry: ScriptEntry) -> ScriptForm:
        ranks = entry.ranks or 1
        usual = f"cpu:{ranks}" if self.is_without_gpus else self.form.devices
        return ScriptForm(
            run=f"{MODULE}{entry.run}" if entry.kind == "module" else entry.run,
            arguments=shlex.join(entry.args),
            environment="\n".join(f"{key}={value}" for key, value in entry.environment.items()),
            devices=entry.devices or usual,
            ranks=ranks,
            plain=entry.plain,
            observe=entry.observe or "light",
            python=entry.python or "",
            entry=name,
        )

    def use(self, config: ScriptConfig) -> None:
        """Take over what a run was started with."""
        table = config.script
        file = config.script_file
        run = f"{MODULE}{table.run}" if table.kind == "module" else table.run
        if file is not None and Path(table.folder) != self.folder:
            run = str(file)
        form = ScriptForm(
            run=run,
            arguments=shlex.join(table.args),
            environment="\n".join(f"{key}={value}" for key, value in table.environment.items()),
            devices=config.devices or self.form.devices,
            ranks=table.ranks,
            plain=table.plain,
            observe=table.observe,
            python=table.python,
        )
        self.set_form(form)

    def to_entry(self) -> ScriptEntry:
        """The form as an entry; only where arguments and variables can be read."""
        form = self.form
        return ScriptEntry(
            run=self.name if self.is_module else form.run.strip(),
            kind="module" if self.is_module else "file",
            args=self.split_arguments(),
            devices=form.devices,
            ranks=None if self.is_without_gpus or form.ranks == 1 else form.ranks,
            environment=self.variables(),
            python=form.python or None,
            plain=form.plain and self.ranks == 1,
            observe=None if form.observe == "light" else form.observe,
        )

    # What it means

    def split_arguments(self) -> list[str]:
        """Raises ValueError: a quotation is not closed."""
        return shlex.split(self.form.arguments)

    def variables(self) -> dict[str, str]:
        """Raises ValueError: a line is not NAME=value; the message says which, in the window's language."""
        found: dict[str, str] = {}
        for number, line in enumerate(self.form.environment.splitlines(), 1):
            if not line.strip():
                continue
            name, equals, value = line.strip().partition("=")
            if not equals or not _NAME.fullmatch(name.strip()):
                refusal = tr(
                    'The environment cannot be read: line {number}, "{line}", is not NAME=value.',
                    number=number,
                    line=line.strip()[:60],
                )
                raise ValueError(refusal)
            found[name.strip()] = value
        return found

    def command(self, python: str, runs: Path) -> list[str]:
        """`rankdeck run` with everything that the form says; only where there is no problem."""
        form = self.form
        options = ["--devices", form.devices, "--nproc-per-node", str(self.ranks), "--observe", form.observe]
        if form.plain and self.ranks == 1:
            options.append("--plain")
        for name, value in self.variables().items():
            options += ["--env", f"{name}={value}"]
        what = ["-m", self.name] if self.is_module else ["--", form.run.strip()]
        started = ["run", "--detach", "--json", "--runs", str(runs), "--python", python, *options]
        return [*started, *what, *self.split_arguments()]

    def _validate(self) -> None:
        self._is_validating = True
        self.problems = [
            problem
            for check in (self._file_problem, self._argument_problem, self._variable_problem, self._rest)
            if (problem := check()) is not None
        ]
        self._is_validating = False

    def recheck(self) -> None:
        """Look again: files come and go."""
        if self.path is not None:
            self._look_at(self.path)

    def _look_at(self, path: Path) -> None:
        self._disk.do(partial(_kind_of, path), partial(self._looked_at, path), key="script")

    def _looked_at(self, path: Path, kind: str) -> None:
        is_news, self._seen = self._seen != (path, kind), (path, kind)
        if is_news and not self._is_validating:
            self._validate()
            self.changed.emit()

    def _file_problem(self) -> Problem | None:
        advice = tr("Choose one of the folder's scripts, or Browse…")
        if not self.form.run.removeprefix(MODULE).strip():
            return Problem("no-script", tr("No script is chosen."), path="script.run", advice=advice)
        path = self.path
        if path is None:
            return None
        if self._seen is None or self._seen[0] != path:
            self._look_at(path)
        if self._seen is None or self._seen[0] != path or self._seen[1] == "file":
            return None
        message = tr("{path} is not there.", path=path)
        if self._seen[1] == "folder":
            message = tr("{path} is a folder, not a script.", path=path)
        return Problem("no-script", message, path="script.run", advice=advice)

    def _argument_problem(self) -> Problem | None:
        try:
            self.split_arguments()
        except ValueError:
            message = tr("The arguments cannot be split: a quotation is not closed.")
            advice = tr("Close it, or write a backslash before the mark.")
            return Problem("arguments", message, path="script.arguments", advice=advice)
        return None

    def _variable_problem(self) -> Problem | None:
        try:
            self.variables()
        except ValueError as error:
            advice = tr("Write one variable a line, as WANDB_MODE=offline.")
            return Problem("environment", str(error), path="script.environment", advice=advice)
        return None

    def _rest(self) -> Problem | None:
        form = self.form
        if form.devices == NONE_CHOSEN:
            advice = tr("Choose at least one, or Without GPUs.")
            return Problem("no-device", tr("No GPU is chosen."), path="script.devices", advice=advice)
        try:
            parse_devices(form.devices)
        except DeviceError as error:
            return in_words(Problem("devices", error.message, path="script.devices", advice=error.advice))
        if form.observe not in OBSERVE or not 1 <= form.ranks <= MAX_VIRTUAL_DEVICES:
            message = tr("Ranks and observing are not as they can be.")
            advice = tr("Use 1 to {most}.", most=MAX_VIRTUAL_DEVICES)
            return Problem("script", message, path="script.ranks", advice=advice)
        return None

    # Keeping it

    def close(self) -> None:
        self._kept.close()

    def _to_keep(self) -> dict[str, Any]:
        newest = list(self._forms.items())[-_FOLDERS_KEPT:]
        return {"is_chosen": self.is_chosen, "folders": {folder: asdict(form) for folder, form in newest}}

    def _restore(self) -> None:
        known = {field.name: type(field.default) for field in fields(ScriptForm)}
        try:
            kept = self._kept.read()
            for folder, values in kept["folders"].items():
                fitting = {key: values[key] for key, kind in known.items() if type(values.get(key)) is kind}
                self._forms[folder] = ScriptForm(**fitting)
            self.is_chosen = kept["is_chosen"] is True
        except (KeyError, TypeError, AttributeError):
            self._forms = {}

    def _after_change(self) -> None:
        self._refused = []
        self._validate()
        self._kept.save_soon()
        self.changed.emit()


def _field_of(problem: Problem) -> str:
    """The field of the form that a problem's path speaks of."""
    last = (problem.path or "").rpartition(".")[2]
    return _FIELDS.get(last, last)


def _kind_of(path: Path) -> str:
    return "file" if path.is_file() else "folder" if path.is_dir() else ""
