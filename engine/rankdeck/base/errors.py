"""What can go wrong, said so that a person can act on it: what, where, what next.

    RankdeckError            code, message, advice; exit_code says how a command ends
    |- ConfigError           a configuration, an option or an argument is wrong          exit 2
    |- DataError             data cannot be read, or a data factory is wrong             exit 2
    |- ModelError            a model cannot be built, or a model factory is wrong        exit 2
    |- DeviceError           an unknown, busy or mismatched device                       exit 2
    |- RunNotFoundError      no run, or several, under a name                        exit 2
    |- MachineError          the machine lacks something (a driver, a package, disk)     exit 3
    '- TrainingError         the run itself failed (a loss that is NaN, a lost rank)     exit 1

A `Problem` is the same thing as data: it travels in events and in `--json`.
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
    """What was seen, in words, and where to look: a file (of a run relative to its folder) and its line, or
    None where no file shows it.
    """

    text: str
    path: str | None = None
    line: int | None = None

    @property
    def location(self) -> str:
        """'logs/rank-1.0.err:12'; '' where there is none."""
        if self.path is None:
            return ""
        return self.path if self.line is None else f"{self.path}:{self.line}"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cause, where it was seen and what to do next.

    `host` is where the rank is, in a run of several hosts; readers know it, not who writes.
    `path` is a dotted path into the configuration (`train.steps`) or a file; `line` counts from 1;
    `last_lines` are the last lines that the rank itself wrote to stderr, with the frames of others folded.
    `cure` are the changes of a configuration that fix it, where they are known: dotted keys and their values,
    None to leave a key out; `advice` says the same in words.
    `evidence` is what a rule saw that names the cause.
    `templates` and `arguments` are by "message", "advice" and "evidence.0", where these were made of a
    phrase: the sentence with `{name}` in it, and what is filled in. What a phrase among these was made of is
    by "message.name".
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
        check_depth(self.cure)
        for name in ("message", "advice"):
            said = getattr(self, name)
            if isinstance(said, Phrase):
                msgspec.structs.force_setattr(self, name, str(said))
                self._store_phrase(name, said)
        for place, seen in enumerate(self.evidence):
            if isinstance(seen.text, Phrase):
                self._store_phrase(f"evidence.{place}", seen.text)
        plain = tuple(msgspec.structs.replace(seen, text=str(seen.text)) for seen in self.evidence)
        msgspec.structs.force_setattr(self, "evidence", plain)

    def _store_phrase(self, name: str, said: Phrase) -> None:
        set_field = msgspec.structs.force_setattr
        set_field(self, "templates", {**self.templates, name: said.template})
        set_field(self, "arguments", {**self.arguments, name: said.plain_arguments()})
        for hole, value in said.arguments.items():
            if isinstance(value, Phrase):
                self._store_phrase(f"{name}.{hole}", value)

    def replace_fields(self, **changes: Any) -> Problem:
        """The same, with some of it said otherwise."""
        templates = {name: text for name, text in self.templates.items() if _field(name) not in changes}
        arguments = {name: values for name, values in self.arguments.items() if _field(name) not in changes}
        return msgspec.structs.replace(self, **{"templates": templates, "arguments": arguments, **changes})

    def as_warning(self) -> Problem:
        """What an attempt ended with that was not the last one."""
        return self.replace_fields(severity="warning") if self.severity == "error" else self

    def as_phrase(self, name: str) -> str:
        """The "message" or the "advice" as the phrase that it was made of. Never of a problem in a file of a
        run: its templates may be anything.
        """
        return self._rebuild_phrase(name, getattr(self, name) or "")

    def _rebuild_phrase(self, name: str, text: str) -> str:
        if name not in self.templates:
            return text
        made = Phrase(text)
        made.template = self.templates[name]
        made.arguments = {
            hole: self._rebuild_phrase(f"{name}.{hole}", value) if isinstance(value, str) else value
            for hole, value in self.arguments.get(name, {}).items()
        }
        return made

    def __hash__(self) -> int:
        return hash((self.code, self.message, self.path, self.line, self.rank))

    def headline(self, file: str | None = None) -> str:
        """The message with its rank and its place; `file` is where `line` counts."""
        said: str = self.message
        if self.line is not None and f", line {self.line})" not in said:
            text, line = said.removesuffix("."), self.line
            if file:
                said = phrase("{message} ({file}, line {line}).", message=text, file=file, line=line)
            else:
                said = phrase("{message} (line {line}).", message=text, line=line)
        if self.rank is None or f"rank {self.rank}" in self.message.lower():
            return phrase("{host}: {message}", host=self.host, message=said) if self.host else said
        if self.host:
            return phrase("rank {rank} on {host}: {message}", rank=self.rank, host=self.host, message=said)
        return phrase("rank {rank}: {message}", rank=self.rank, message=said)

    @property
    def sentence(self) -> str:
        """The message and what to do next, one after the other."""
        return " ".join(filter(None, (self.message, self.advice)))

    def text(self, file: str | None = None) -> str:
        """What a person reads on a terminal: the headline, then the advice on a line of its own."""
        return "\n".join(filter(None, (self.headline(file), self.advice)))


class RankdeckError(Exception):
    """The root of the tree above. `problems` always holds at least one problem; `file` is where their lines
    count, or None.
    """

    code = "error"
    exit_code = 1
    path: str | None = None
    """The place that is blamed where nothing else is said."""

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
        own = Problem(self.code, message, path or self.path, line, advice, rank, cure=dict(changes or {}))
        self.problems: list[Problem] = list(problems) if problems else [own]

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
    """Of a name in `templates`: "message.where" is of "message"."""
    return name.partition(".")[0]


def did_you_mean(word: str, known: Iterable[str]) -> Phrase | None:
    """'Did you mean "steps"?' for the closest known word, or None when nothing is close."""
    close = closest(word, known)
    return None if close is None else phrase('Did you mean "{word}"?', word=close)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one most likely means."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def format_fix(changes: Mapping[str, Any]) -> str:
    """'Set train.clip_norm = 0', 'Leave train.compile out', 'Set a.b = 2 and a.c = 4'."""
    settings, options = format_changes(changes)
    if settings and options:
        return phrase("Set {settings} and leave {options} out", settings=settings, options=options)
    if settings:
        return phrase("Set {settings}", settings=settings)
    return phrase("Leave {options} out", options=options) if options else ""


def format_changes(changes: Mapping[str, Any]) -> tuple[str, str]:
    """What is set and what is left out: ('a.b = 2 and a.c = 4', 'a.d'); "" where nothing is."""
    values = {
        key: json.dumps(value, ensure_ascii=False) for key, value in changes.items() if value is not None
    }
    settings = join_phrases([f"{key} = {value}" for key, value in values.items()], AND_TEMPLATE)
    return settings, join_phrases([key for key, value in changes.items() if value is None], AND_TEMPLATE)


def format_choices(words: Iterable[str]) -> str:
    """'a, b or c', for messages that list what is allowed."""
    items = [str(word) for word in words]
    if len(items) < 2:
        return "".join(items)
    return phrase("{words} or {last}", words=", ".join(items[:-1]), last=items[-1])
