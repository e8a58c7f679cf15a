"""Draft of a script run: the script, its arguments, environment variables and devices, and their problems.

Launch starts either this draft, if `is_chosen` is True, or the draft of a configuration (draft.py). The
fields are saved for each folder exactly as typed, even while they are invalid. Each problem names its field.
Nothing is executed to find problems.
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
from rankdeck.base.home import expand_home
from rankdeck.config.devices import MAX_VIRTUAL_DEVICES, parse_devices
from rankdeck.config.folder_file import ScriptEntry
from rankdeck.config.script import OBSERVE_LEVELS, ScriptConfig
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import tr, translate_problem
from rankdeck_app.state.state_file import StateFile

NO_GPU_DEVICES = "cpu:1"
NO_DEVICES_CHOSEN = "gpu:"
MODULE_PREFIX = "-m "
_MAX_FOLDERS = 50
# Options of the engine whose field in the form has another name.
_FIELD_NAMES = {"args": "arguments", "use": "devices", "folder": "run"}
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ScriptForm:
    """Fields of the form, as typed.

    `run` is a file, relative to the folder or absolute, or "-m module". `python` is the interpreter that a
    rankdeck.toml entry names, or "" for the folder's interpreter. `entry` names the rankdeck.toml entry that
    filled the form.
    """

    run: str = ""
    arguments: str = ""
    environment: str = ""
    devices: str = NO_GPU_DEVICES
    ranks: int = 1
    plain: bool = False
    observe: str = "light"
    python: str = ""
    entry: str = ""


class ScriptDraft(QObject):
    """A draft of a script run.

    `changed` is emitted when the form or the folder changes, and when the user switches between the script
    and the configuration.
    """

    changed = Signal()

    def __init__(
        self, file: Path, folder: Path, parent: QObject | None = None, *, io_thread: IoThread | None = None
    ) -> None:
        super().__init__(parent)
        self._io_thread = io_thread or IoThread(self)
        self._state_file = StateFile(file, self._make_state, self, io_thread=self._io_thread)
        self._checked_file: tuple[Path, str] | None = None
        """The script path that was checked last, and its kind: file, folder or nothing ("")."""
        self._is_validating = False
        self.folder = folder
        self.is_chosen = False
        self._default_devices = NO_GPU_DEVICES
        self._forms: dict[str, ScriptForm] = {}
        self.problems: list[Problem] = []
        self._engine_problems: list[Problem] = []
        self._restore()
        self._validate()

    @property
    def form(self) -> ScriptForm:
        return self._forms.get(str(self.folder), ScriptForm(devices=self._default_devices))

    @property
    def name(self) -> str:
        """The script's file name, or the module."""
        if self.is_module:
            return self.form.run.removeprefix(MODULE_PREFIX).strip()
        return Path(self.form.run).name or tr("script")

    @property
    def is_module(self) -> bool:
        return self.form.run.startswith(MODULE_PREFIX)

    @property
    def path(self) -> Path | None:
        """The script's path; None if no script is chosen or a module is run."""
        text = self.form.run.strip()
        return None if not text or self.is_module else self.folder / expand_home(text)

    @property
    def is_cpu_only(self) -> bool:
        return self.form.devices.startswith("cpu")

    @property
    def ranks(self) -> int:
        """The number of ranks; if no GPUs are used, the number of requested CPU devices."""
        if not self.is_cpu_only:
            return self.form.ranks
        try:
            return parse_devices(self.form.devices).count or 1
        except DeviceError:
            return 1

    def find_problem(self, field: str) -> Problem | None:
        """Return the problem of a form field, whether this draft or the engine found it."""
        problems = [*self.problems, *self._engine_problems]
        return next((problem for problem in problems if _field_name(problem) == field), None)

    # Changes

    def set_chosen(self, is_chosen: bool) -> None:
        """Set whether Launch starts the script instead of the configuration."""
        if is_chosen != self.is_chosen:
            self.is_chosen = is_chosen
            self._after_change()

    def set_fields(self, **values: Any) -> None:
        """Change fields of the form."""
        self.set_form(replace(self.form, **values))

    def set_form(self, form: ScriptForm) -> None:
        if form != self.form:
            # Insert at the end: only the folders changed last are saved.
            self._forms.pop(str(self.folder), None)
            self._forms[str(self.folder)] = form
            self._after_change()

    def set_file(self, path: Path) -> None:
        """Choose another script file and keep the other fields. If the file is inside the folder, the form
        shows a relative path."""
        inside = path.is_relative_to(self.folder)
        self.set_fields(run=str(path.relative_to(self.folder) if inside else path), entry="")

    def set_default_devices(self, use: str) -> None:
        """Set the devices that the form starts with in a folder that has no saved form."""
        if use != self._default_devices:
            self._default_devices = use
            self._after_change()

    def set_folder(self, folder: Path) -> None:
        """Switch to another folder and restore the form last used in it."""
        if folder != self.folder:
            self.folder = folder
            self._after_change()

    def set_engine_problems(self, problems: list[Problem]) -> None:
        """Set the problems that the engine found in the form; they are shown until the form changes."""
        self._engine_problems = [translate_problem(problem) for problem in problems]
        self.changed.emit()

    # Entries of rankdeck.toml

    def load_entry(self, name: str, entry: ScriptEntry) -> None:
        """Fill the whole form from an entry."""
        self.set_form(self._make_form(name, entry))

    def is_changed(self, entry: ScriptEntry) -> bool:
        """Check whether the form differs from the entry that filled it."""
        return self._make_form(self.form.entry, entry) != self.form

    def _make_form(self, name: str, entry: ScriptEntry) -> ScriptForm:
        ranks = entry.ranks or 1
        default_devices = f"cpu:{ranks}" if self.is_cpu_only else self.form.devices
        return ScriptForm(
            run=f"{MODULE_PREFIX}{entry.run}" if entry.kind == "module" else entry.run,
            arguments=shlex.join(entry.args),
            environment="\n".join(f"{key}={value}" for key, value in entry.environment.items()),
            devices=entry.devices or default_devices,
            ranks=ranks,
            plain=entry.plain,
            observe=entry.observe or "light",
            python=entry.python or "",
            entry=name,
        )

    def use_config(self, config: ScriptConfig) -> None:
        """Fill the form from the configuration that a run was started with."""
        table = config.script
        file = config.script_file
        run = f"{MODULE_PREFIX}{table.run}" if table.kind == "module" else table.run
        # The run's relative path starts at its own folder, not at the opened one.
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
        """Return the form as an entry. Arguments and variables must be valid."""
        form = self.form
        return ScriptEntry(
            run=self.name if self.is_module else form.run.strip(),
            kind="module" if self.is_module else "file",
            args=self.split_arguments(),
            devices=form.devices,
            ranks=None if self.is_cpu_only or form.ranks == 1 else form.ranks,
            environment=self.parse_variables(),
            python=form.python or None,
            plain=form.plain and self.ranks == 1,
            observe=None if form.observe == "light" else form.observe,
        )

    # Parsed values

    def split_arguments(self) -> list[str]:
        """Return the arguments, split into words as a shell would.

        Raises:
            ValueError: a quotation mark is not closed.
        """
        return shlex.split(self.form.arguments)

    def parse_variables(self) -> dict[str, str]:
        """Return the environment variables.

        Raises:
            ValueError: a line is not NAME=value; the message quotes the line, in the window's language.
        """
        variables: dict[str, str] = {}
        for number, line in enumerate(self.form.environment.splitlines(), 1):
            if not line.strip():
                continue
            name, equals, value = line.strip().partition("=")
            if not equals or not _VARIABLE_NAME.fullmatch(name.strip()):
                refusal = tr(
                    'Line {number} of the environment variables, "{line}", is not in the form NAME=value.',
                    number=number,
                    line=line.strip()[:60],
                )
                raise ValueError(refusal)
            variables[name.strip()] = value
        return variables

    def build_command(self, python: str, runs: Path) -> list[str]:
        """Return the `rankdeck run` command for the form, which must have no problem."""
        form = self.form
        options = ["--devices", form.devices, "--nproc-per-node", str(self.ranks), "--observe", form.observe]
        if form.plain and self.ranks == 1:
            options.append("--plain")
        for name, value in self.parse_variables().items():
            options += ["--env", f"{name}={value}"]
        # After "--", a file name that starts with a dash is not taken for an option.
        what = ["-m", self.name] if self.is_module else ["--", form.run.strip()]
        started = ["run", "--detach", "--json", "--runs", str(runs), "--python", python, *options]
        return [*started, *what, *self.split_arguments()]

    def _validate(self) -> None:
        self._is_validating = True
        self.problems = [
            problem
            for check in (
                self._file_problem,
                self._argument_problem,
                self._variable_problem,
                self._device_problem,
            )
            if (problem := check()) is not None
        ]
        self._is_validating = False

    def recheck(self) -> None:
        """Check the script's file again, because it may have appeared or disappeared."""
        if self.path is not None:
            self._check_file(self.path)

    def _check_file(self, path: Path) -> None:
        self._io_thread.submit(partial(_file_kind, path), partial(self._on_file_checked, path), key="script")

    def _on_file_checked(self, path: Path, kind: str) -> None:
        is_news, self._checked_file = self._checked_file != (path, kind), (path, kind)
        # An io thread that is not started runs jobs at once: the check then answers within `_validate`.
        if is_news and not self._is_validating:
            self._validate()
            self.changed.emit()

    def _file_problem(self) -> Problem | None:
        advice = tr('Choose a script from this folder, or use "Browse…".')
        if not self.form.run.removeprefix(MODULE_PREFIX).strip():
            return Problem("no-script", tr("No script is chosen."), path="script.run", advice=advice)
        path = self.path
        if path is None:
            return None
        if self._checked_file is None or self._checked_file[0] != path:
            self._check_file(path)
        if self._checked_file is None or self._checked_file[0] != path or self._checked_file[1] == "file":
            return None
        message = tr("{path} does not exist.", path=path)
        if self._checked_file[1] == "folder":
            message = tr("{path} is a folder, not a script.", path=path)
        return Problem("no-script", message, path="script.run", advice=advice)

    def _argument_problem(self) -> Problem | None:
        try:
            self.split_arguments()
        except ValueError:
            message = tr("The arguments cannot be parsed: a quotation mark is not closed.")
            advice = tr("Add the missing quotation mark, or escape the unmatched one with a backslash.")
            return Problem("arguments", message, path="script.arguments", advice=advice)
        return None

    def _variable_problem(self) -> Problem | None:
        try:
            self.parse_variables()
        except ValueError as error:
            advice = tr("Write one variable per line, such as WANDB_MODE=offline.")
            return Problem("environment", str(error), path="script.environment", advice=advice)
        return None

    def _device_problem(self) -> Problem | None:
        form = self.form
        if form.devices == NO_DEVICES_CHOSEN:
            advice = tr('Choose at least one GPU, or choose "No GPUs".')
            return Problem("no-device", tr("No GPU is chosen."), path="script.devices", advice=advice)
        try:
            parse_devices(form.devices)
        except DeviceError as error:
            return translate_problem(
                Problem("devices", error.message, path="script.devices", advice=error.advice)
            )
        if form.observe not in OBSERVE_LEVELS or not 1 <= form.ranks <= MAX_VIRTUAL_DEVICES:
            message = tr("The number of ranks or the observe level is not an allowed value.")
            advice = tr(
                "Use 1 to {most} ranks, and the observe level none, light, full or check.",
                most=MAX_VIRTUAL_DEVICES,
            )
            return Problem("script", message, path="script.ranks", advice=advice)
        return None

    # Persistence

    def close(self) -> None:
        self._state_file.close()

    def _make_state(self) -> dict[str, Any]:
        newest = list(self._forms.items())[-_MAX_FOLDERS:]
        return {"is_chosen": self.is_chosen, "folders": {folder: asdict(form) for folder, form in newest}}

    def _restore(self) -> None:
        field_types = {field.name: type(field.default) for field in fields(ScriptForm)}
        try:
            saved = self._state_file.read()
            for folder, values in saved["folders"].items():
                # Exact types, because `isinstance` accepts True as a number of ranks.
                fitting = {
                    key: values[key] for key, kind in field_types.items() if type(values.get(key)) is kind
                }
                self._forms[folder] = ScriptForm(**fitting)
            self.is_chosen = saved["is_chosen"] is True
        except (KeyError, TypeError, AttributeError):
            self._forms = {}

    def _after_change(self) -> None:
        self._engine_problems = []
        self._validate()
        self._state_file.save_soon()
        self.changed.emit()


def _field_name(problem: Problem) -> str:
    """Return the form field that a problem's path refers to."""
    last = (problem.path or "").rpartition(".")[2]
    return _FIELD_NAMES.get(last, last)


def _file_kind(path: Path) -> str:
    return "file" if path.is_file() else "folder" if path.is_dir() else ""
