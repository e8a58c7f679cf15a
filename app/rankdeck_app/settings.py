"""Declares every setting of the app once, as data, and stores the values that the user changed.

A `Setting` is a row: key, default, text, and allowed values. The settings page uses these rows, and so does
the code that validates values and reads and writes settings.toml. The file contains only values that differ
from the default; its comments and unknown keys are preserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from PySide6.QtCore import QObject, Signal

from rankdeck.base.files import read_bytes, read_toml, write_atomic
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck_app.io_thread import IoThread
from rankdeck_app.language import QM_SUFFIX, SYSTEM, language_names, tr, translate

Value = bool | int | float | str
V = TypeVar("V", bool, int, float, str)


PLAN_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Setting:
    """One setting. Its type is the type of its default.

    `choices`, `minimum` and `maximum` limit the value; besides the choices, a path that ends with one of
    `suffixes` is accepted. `text` describes the setting in a sentence. If `needs_restart` is True, the app
    reads the value only at start.
    """

    key: str
    default: Value
    text: str
    choices: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    needs_restart: bool = False

    @property
    def kind(self) -> type[Value]:
        return type(self.default)

    @property
    def description(self) -> str:
        """The setting's `text`, followed by the bounds of its value and whether a change needs a restart."""
        low, high = self.minimum, self.maximum
        has_bounds = low is not None and high is not None
        bounds = tr("{low:g} to {high:g}.", low=low, high=high) if has_bounds else ""
        later = tr("Takes effect after a restart.") if self.needs_restart else ""
        return " ".join(filter(None, (tr(self.text), bounds, later)))

    def problem_with(self, value: object) -> Phrase | None:
        """Return why the value is not allowed, or None. The reason is a phrase, because the file is read
        before the language is known."""
        if type(value) is not self.kind and not (self.kind is float and type(value) is int):
            return phrase(_TYPE_MESSAGES[self.kind], key=self.key, value=repr(value))
        if (
            self.choices
            and value not in self.choices
            and not (self.suffixes and str(value).endswith(self.suffixes))
        ):
            return self._choices_message(repr(value))
        if isinstance(value, int | float) and not isinstance(value, bool):
            low = self.minimum is not None and not value >= self.minimum  # true for nan
            high = self.maximum is not None and not value <= self.maximum
            if low or high:
                return phrase(
                    "{key} must be between {low:g} and {high:g}, not {value:g}.",
                    key=self.key,
                    low=self.minimum,
                    high=self.maximum,
                    value=value,
                )
        return None

    def _choices_message(self, value: str) -> Phrase:
        if self.suffixes:
            return phrase(
                "{key} must be {choices} or the path of a {ending} file, not {value}.",
                key=self.key,
                choices=", ".join(self.choices),
                ending=self.suffixes[0],
                value=value,
            )
        return phrase(
            "{key} must be {choices} or {last}, not {value}.",
            key=self.key,
            choices=", ".join(self.choices[:-1]),
            last=self.choices[-1],
            value=value,
        )


_TYPE_MESSAGES: dict[type, str] = {
    bool: tr_noop("{key} must be true or false, not {value}."),
    int: tr_noop("{key} must be a whole number, not {value}."),
    float: tr_noop("{key} must be a number, not {value}."),
    str: tr_noop("{key} must be text, not {value}."),
}

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "theme.name",
        "Dark Modern",
        tr_noop(
            "Colour theme. System follows the desktop's dark, light and high-contrast setting. "
            "Also accepts the path of a VS Code colour theme (JSON)."
        ),
        choices=("Dark Modern", "Light Modern", "Dark High Contrast", "Light High Contrast", "System"),
        suffixes=(".json", ".jsonc"),
    ),
    Setting(
        "window.zoom",
        1.0,
        tr_noop("Zoom level of the window: 1.25 is 125 %. Ctrl+= and Ctrl+- change it."),
        minimum=0.5,
        maximum=3,
    ),
    Setting(
        "window.density",
        "comfortable",
        tr_noop("Spacing around fields, buttons and menus."),
        choices=(tr_noop("comfortable"), tr_noop("compact")),
    ),
    Setting(
        "window.reduced_motion",
        False,
        tr_noop("Turn off sliding, fading and blinking, and draw live views only twice a second."),
    ),
    Setting(
        "window.language",
        SYSTEM,
        tr_noop(
            "Language of the window. System follows the desktop; Pseudo is a test language "
            "that exposes hard-coded text. Also accepts the path of a translation (.qm)."
        ),
        choices=language_names(),
        suffixes=(QM_SUFFIX,),
        needs_restart=True,
    ),
    Setting(
        "window.font",
        "",
        tr_noop("Font of the window, such as Inter. Empty: the default font."),
        needs_restart=True,
    ),
    Setting(
        "editor.font",
        "",
        tr_noop("Font for code, output and numbers, such as JetBrains Mono. Empty: the default font."),
        needs_restart=True,
    ),
    Setting("runs.dir", "", tr_noop('Folder for new runs. Empty: the folder "runs" in the workspace.')),
    Setting(
        "engine.python",
        "",
        tr_noop(
            "Python interpreter that runs the engine and has rankdeck installed. Empty: the "
            "app's interpreter."
        ),
    ),
    Setting(
        "editor.command",
        "",
        tr_noop(
            'Command that opens a file at a line, such as "code -g {file}:{line}". Empty: the '
            "app shows the file."
        ),
    ),
    Setting(
        "plan.automatic",
        True,
        tr_noop(
            "Predict the configured run's memory whenever the configuration changes, in a "
            "low-priority process."
        ),
    ),
    Setting(
        "plan.timeout_s",
        PLAN_TIMEOUT_S,
        tr_noop("Time limit for planning one strategy, in seconds."),
        minimum=1,
        maximum=86_400,
    ),
    Setting(
        "plan.fit_bars", False, tr_noop("Scale the plan's bars to the largest bar instead of the capacity.")
    ),
    Setting("window.restore_tabs", True, tr_noop("Reopen the last session's tabs at startup.")),
    Setting("window.frame_rate", 30, tr_noop("Frames per second of live views."), minimum=5, maximum=60),
    Setting(
        "window.show_frame_time",
        True,
        tr_noop("Show frame rate and frame time in the status bar while live views are updating."),
    ),
    Setting(
        "notifications.desktop",
        True,
        tr_noop("Show a desktop notification when a run ends while the window is not active."),
    ),
    Setting(
        "notifications.seconds",
        8.0,
        tr_noop(
            "Seconds for which a notification without buttons stays visible; longer while the "
            "pointer is over it."
        ),
        minimum=2,
        maximum=120,
    ),
)


class Settings(QObject):
    """The values of all settings, by key.

    `changed` carries the key of the changed setting. `failed` carries the reason why the file could not be
    written (the change then lasts until the app ends). `problems` lists phrases that explain why values in
    the file were refused and replaced by defaults.
    """

    changed = Signal(str)
    failed = Signal(str)

    def __init__(self, path: Path, options: tuple[Setting, ...] = SETTINGS) -> None:
        super().__init__()
        self.path = path
        self.io_thread = IoThread(self)
        self.definitions: dict[str, Setting] = {option.key: option for option in options}
        self.problems: list[str] = []
        self._values: dict[str, Value] = {}
        self._load()

    def _load(self) -> None:
        try:
            table = read_toml(self.path)
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self.problems.append(
                phrase(
                    "{path}: {error}. Defaults are used until the file is corrected.",
                    path=self.path,
                    error=error,
                )
            )
            return
        for key, value in _flatten(table):
            option = self.definitions.get(key)
            if option is None:
                continue  # an option of another version: kept in the file, not checked
            problem = option.problem_with(value)
            if problem:
                self.problems.append(
                    phrase(
                        "{path}, line {line}: {problem} The default {default} is used.",
                        path=self.path,
                        line=self._find_line(key),
                        problem=problem,
                        default=repr(option.default),
                    )
                )
            else:
                # A whole number is accepted for a float.
                self._values[key] = option.kind(value)

    def _find_line(self, key: str) -> int | None:
        """Return the number of the line that sets the key in the file, or None."""
        from rankdeck.base.parsing import find_line, key_lines  # imported only if there is a problem

        text = read_bytes(self.path).decode("utf-8-sig")
        return find_line(key_lines(text), tuple(key.split(".")))

    def get(self, key: str, kind: type[V]) -> V:
        """Return the value of the setting `key`, or its default. `kind` is the setting's type."""
        value = self.value(key)
        assert isinstance(value, kind), f"{key} is not of type {kind.__name__}"
        return value

    def value(self, key: str) -> Value:
        return self._values.get(key, self.definitions[key].default)

    def set(self, key: str, value: Value) -> None:
        """Change a value, write the file and emit `changed`.

        Raises:
            ValueError: the value is not allowed; the message says why.
        """
        option = self.definitions[key]
        problem = option.problem_with(value)
        if problem:
            raise ValueError(translate(problem))
        value = option.kind(value)
        if value == self.value(key):
            return
        self._values[key] = value
        self.io_thread.submit(partial(self._write, key, value), on_error=self.report_write_error)
        self.changed.emit(key)

    def report_write_error(self, error: OSError) -> None:
        """Emit `failed` for a settings file that could not be written."""
        text = tr(
            "{path} cannot be written: {error}. The change applies only until the app closes.",
            path=error.filename or self.path,
            error=error.strerror,
        )
        self.failed.emit(text)

    def _write(self, key: str, value: Value) -> None:
        import tomlkit  # 11 ms: imported only for a change
        from tomlkit.exceptions import TOMLKitError

        try:
            document = tomlkit.parse(self.path.read_text("utf-8"))
        except FileNotFoundError:
            document = tomlkit.document()
        except (TOMLKitError, UnicodeDecodeError):
            self.path.replace(self.path.with_name(self.path.name + ".broken"))  # not ours to throw away
            document = tomlkit.document()
        *path, leaf = key.split(".")
        table: Any = document
        for name in path:
            if not isinstance(table.get(name), dict):
                table.pop(name, None)
                table[name] = tomlkit.table()
            table = table[name]
        if value == self.definitions[key].default:
            table.pop(leaf, None)
        else:
            table[leaf] = value
        write_atomic(self.path, tomlkit.dumps(document))


def _flatten(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    values: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            values += _flatten(value, f"{prefix}{key}.")
        else:
            values.append((prefix + key, value))
    return values
