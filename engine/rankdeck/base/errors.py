"""Errors that a user can act on: what is wrong, where, and how to fix it.

    RankdeckError            code, message, advice; exit_code is the command's exit status
    |- ConfigError           a configuration, an option or an argument is wrong          exit 2
    |- DataError             data cannot be read, or a data factory is wrong             exit 2
    |- ModelError            a model cannot be built, or a model factory is wrong        exit 2
    |- DeviceError           an unknown, busy or mismatched device                       exit 2
    |- RunNotFoundError      no run, or more than one, has this name                     exit 2
    |- MachineError          the machine lacks something (a driver, a package, disk)     exit 3
    '- TrainingError         the run itself failed (a loss that is NaN, a lost rank)     exit 1

A `Problem` contains the same information as data, for events and `--json`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rankdeck.base.parsing import check_depth
from rankdeck.base.phrases import AND_TEMPLATE, Phrase, PhraseArgument, join_phrases, phrase


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """An observation in words, and its location: a file and a line.

    `path` is relative to the run directory for a run's own files; it is None if no file shows the
    observation.
    """

    text: str
    path: str | None = None
    line: int | None = None

    @property
    def location(self) -> str:
        """Location such as 'logs/rank-1.0.err:12'; empty if there is no file."""
        if self.path is None:
            return ""
        return self.path if self.line is None else f"{self.path}:{self.line}"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cause, where it was observed, and how to fix it.

    `host` is the rank's host in a run across several hosts; it is set when events are read, not when they are
    written. `path` is a file or a dotted path into the configuration (`train.steps`); `line` counts from 1.
    `last_lines` are the last lines that the rank itself wrote to stderr, with consecutive library frames of a
    traceback folded into one line. `cure` contains the configuration changes that fix the problem, if known:
    dotted keys and their values, where None removes the key. `advice` describes the fix in words. `evidence`
    contains the observations from which a rule found the cause.

    A message, advice or evidence that is a phrase can be translated. `templates` has its template with
    `{name}` fields, and `arguments` the values of these fields, under the key "message", "advice" or
    "evidence.0". If the value of the message's field `{name}` is a phrase too, its key is "message.name".
    """

    code: str
    message: str
    path: str | None = None
    line: int | None = None
    advice: str | None = None
    rank: int | None = None
    host: str = ""
    severity: str = "error"
    last_lines: tuple[str, ...] = ()
    cure: dict[str, object] = {}
    evidence: tuple[Evidence, ...] = ()
    templates: dict[str, str] = {}
    arguments: dict[str, dict[str, PhraseArgument]] = {}

    def __post_init__(self) -> None:
        # Problems are also decoded from files, where these values may be nested to any depth.
        check_depth(self.cure)
        for name in ("message", "advice"):
            text = getattr(self, name)
            if isinstance(text, Phrase):
                msgspec.structs.force_setattr(self, name, str(text))
                self._store_phrase(name, text)
        for index, item in enumerate(self.evidence):
            if isinstance(item.text, Phrase):
                self._store_phrase(f"evidence.{index}", item.text)
        plain = tuple(msgspec.structs.replace(item, text=str(item.text)) for item in self.evidence)
        msgspec.structs.force_setattr(self, "evidence", plain)

    def _store_phrase(self, name: str, text: Phrase) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "templates", {**self.templates, name: text.template})
        set_field(self, "arguments", {**self.arguments, name: text.plain_arguments()})
        for hole, value in text.arguments.items():
            if isinstance(value, Phrase):
                self._store_phrase(f"{name}.{hole}", value)

    def replace_fields(self, **changes: Any) -> Problem:
        """Return a copy with some fields replaced."""
        # A replaced text no longer matches its template.
        templates = {name: text for name, text in self.templates.items() if _field(name) not in changes}
        arguments = {name: values for name, values in self.arguments.items() if _field(name) not in changes}
        return msgspec.structs.replace(self, **{"templates": templates, "arguments": arguments, **changes})

    def as_warning(self) -> Problem:
        """Return the error as a warning, for a problem that ended an attempt but not the run."""
        return self.replace_fields(severity="warning") if self.severity == "error" else self

    def as_phrase(self, name: str) -> str:
        """Return the text of "message" or "advice" as a phrase, rebuilt from its template.

        Do not call this on a problem read from a run's files: its templates are not trusted.
        """
        return self._rebuild_phrase(name, getattr(self, name) or "")

    def _rebuild_phrase(self, name: str, text: str) -> str:
        if name not in self.templates:
            return text
        result = Phrase(text)
        result.template = self.templates[name]
        result.arguments = {
            hole: self._rebuild_phrase(f"{name}.{hole}", value) if isinstance(value, str) else value
            for hole, value in self.arguments.get(name, {}).items()
        }
        return result

    def __hash__(self) -> int:
        # msgspec would hash all fields, and dicts have no hash.
        return hash((self.code, self.message, self.path, self.line, self.rank))

    def headline(self, file: str | None = None) -> str:
        """Return the message with rank and location; `file` is the file that `line` refers to."""
        message: str = self.message
        if self.line is not None and f", line {self.line})" not in message:
            text, line = message.removesuffix("."), self.line
            if file:
                message = phrase("{message} ({file}, line {line}).", message=text, file=file, line=line)
            else:
                message = phrase("{message} (line {line}).", message=text, line=line)
        if self.rank is None or f"rank {self.rank}" in self.message.lower():
            return phrase("{host}: {message}", host=self.host, message=message) if self.host else message
        if self.host:
            return phrase("rank {rank} on {host}: {message}", rank=self.rank, host=self.host, message=message)
        return phrase("rank {rank}: {message}", rank=self.rank, message=message)

    @property
    def sentence(self) -> str:
        """The message, followed by the advice."""
        return " ".join(filter(None, (self.message, self.advice)))

    def text(self, file: str | None = None) -> str:
        """Return the text for a terminal: the headline, and the advice on its own line."""
        return "\n".join(filter(None, (self.headline(file), self.advice)))


class RankdeckError(Exception):
    """Base class of all errors that a user can act on.

    `problems` always has at least one problem; `file` is the file that the problems' line numbers refer to,
    or None.
    """

    code = "error"
    exit_code = 1
    path: str | None = None
    """Default `path` of the problem that an error of this class creates."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        advice: str | None = None,
        path: str | None = None,
        line: int | None = None,
        rank: int | None = None,
        changes: Mapping[str, Any] | None = None,
        problems: Sequence[Problem] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file: str | None = None
        self.advice = advice
        if code is not None:
            self.code = code
        default_problem = Problem(
            self.code, message, path or self.path, line, advice, rank, cure=dict(changes or {})
        )
        self.problems: list[Problem] = list(problems) if problems else [default_problem]

    @property
    def problem(self) -> Problem:
        return self.problems[0]


class ConfigError(RankdeckError):
    code = "config"
    exit_code = 2


class DataError(RankdeckError):
    code = "data"
    exit_code = 2


class ModelError(RankdeckError):
    code = "model"
    exit_code = 2


class DeviceError(RankdeckError):
    code = "device"
    path = "devices.use"
    exit_code = 2


class RunNotFoundError(RankdeckError):
    code = "run-not-found"
    exit_code = 2


class MachineError(RankdeckError):
    code = "machine"
    exit_code = 3


class TrainingError(RankdeckError):
    code = "training"
    exit_code = 1


def _field(name: str) -> str:
    """Return the field that a key of `templates` belongs to: "message" for "message.where"."""
    return name.partition(".")[0]


def did_you_mean(word: str, candidates: Iterable[str]) -> Phrase | None:
    """Return 'Did you mean "steps"?' for the candidate closest to `word`, or None if none is close."""
    close = closest(word, candidates)
    return None if close is None else phrase('Did you mean "{word}"?', word=close)


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate closest to a misspelled word; None if no candidate is close."""
    close = difflib.get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.6)
    return close[0] if close else None


def format_fix(changes: Mapping[str, Any]) -> str:
    """Format changes as 'Set train.clip_norm = 0', 'Leave train.compile out' or 'Set a.b = 2 and a.c = 4'."""
    settings, options = format_changes(changes)
    if settings and options:
        return phrase("Set {settings} and leave {options} out", settings=settings, options=options)
    if settings:
        return phrase("Set {settings}", settings=settings)
    return phrase("Leave {options} out", options=options) if options else ""


def format_changes(changes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the changes and the removals as text, such as ('a.b = 2 and a.c = 4', 'a.d'); each is "" if
    there are none."""
    values = {
        key: json.dumps(value, ensure_ascii=False) for key, value in changes.items() if value is not None
    }
    settings = join_phrases([f"{key} = {value}" for key, value in values.items()], AND_TEMPLATE)
    return settings, join_phrases([key for key, value in changes.items() if value is None], AND_TEMPLATE)


def format_choices(choices: Iterable[str]) -> str:
    """Format 'a, b or c', for messages that list valid values."""
    items = [str(word) for word in choices]
    if len(items) < 2:
        return "".join(items)
    return phrase("{words} or {last}", words=", ".join(items[:-1]), last=items[-1])
