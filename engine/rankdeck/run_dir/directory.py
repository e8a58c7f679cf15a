"""The directory of a run: create, append, read back, list.

    <runs>/<YYYYMMDD-HHMMSS>-<slug>-<4 hex>/
      config.toml  environment.json         of attempt 0; one that was resumed has config.<attempt>.toml ...
      private.config.toml                   the same with its secrets, where it has some; for the owner alone
      events/rank-<r>.<attempt>.jsonl   events/supervisor.<attempt>.jsonl   events/sampler.<attempt>.jsonl
      logs/rank-<r>.<attempt>.out .err  logs/supervisor.<attempt>.err
      plan.json             what was predicted for attempt 0; of a resumed one plan.<attempt>.json
      checkpoints/<step>/  weights.safetensors
      labels.json           what a person says of it afterwards (labels.py)
      clocks.jsonl          of a run of several hosts: how far their clocks are ahead (event_reader.py)
      guard.lock (flock = alive)  control.sock  end.json

The app and the command line know a run by this directory alone. Read event_files.py and event_reader.py next.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rankdeck import events
from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.home import copies_dir
from rankdeck.base.parsing import JsonObject, decode_document
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.run_dir.event_files import EventWriter, events_from_end, parse_attempt
from rankdeck.run_dir.labels import read_labels
from rankdeck.run_dir.pending_run import HIDDEN_PREFIX

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.config.script import ScriptConfig

OUTCOMES = (
    tr_noop("running"),
    tr_noop("completed"),
    tr_noop("failed"),
    tr_noop("stopped"),
    tr_noop("lost"),
)
PARTIAL_EXIT_RECORD = "end.json.part"
"""Of a run that has not ended (launch/exit_record.py)."""
PRIVATE_PREFIX = "private."


def slug(name: str) -> str:
    """A run's name as part of a folder's name: letters and digits of any script, at most 40 characters."""
    signs = unicodedata.normalize("NFC", name.lower())
    # Vowels of some scripts are marks on a letter.
    kept = (sign if sign.isalnum() or unicodedata.category(sign)[0] == "M" else "-" for sign in signs)
    words = re.sub("-+", "-", "".join(kept))
    return words.strip("-")[:40].strip("-") or "run"


@dataclass(frozen=True)
class ExitRecord:
    """What the guard wrote when nothing of the run was left."""

    outcome: str
    exit_code: int
    ended: events.UnixTime
    reason: str | None = None


@dataclass(frozen=True)
class RunOrigin:
    """The run of another host that a directory is the copy of: the host as ssh calls it, the path there.
    `is_lost`: there it ended without a last word. `ahead_s`: by so much that host's clock is ahead of this
    one's; what the run's files say of times stays as it is, and readers put it right.
    """

    host: str
    path: str
    is_lost: bool = False
    ahead_s: float = 0.0


def clamp_time(t: float) -> float:
    """A time that was put right is a time still (events.UnixTime)."""
    return min(max(events.EARLIEST, t), events.LATEST)


ORIGIN_FILE = "copy.json"
"""Written by whoever copies; no file of this name travels."""
_exit_record_decoder, _origin_decoder = msgspec.json.Decoder(ExitRecord), msgspec.json.Decoder(RunOrigin)


class RunDir:
    """A run by its directory. Everything is read when asked for; nothing is cached."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def title(self) -> str:
        """What it is called: as a person says now, else after what it trains; else the folder's name."""
        return read_labels(self.path).name or self.attempt_title

    @property
    def title_slug(self) -> str:
        """Of what it was called when it began, as the folder's name has it."""
        return self.name[16:-5]

    @property
    def attempt_title(self) -> str:
        """What it was called when its latest attempt began, which may have another strategy."""
        for file, read, key in (
            (self.attempt_file("environment", "json"), files.read_json, "title"),
            (self.path / "environment.json", files.read_json, "title"),
            (self.path / "config.toml", files.read_toml, "name"),  # a run of before titles were kept
        ):
            try:
                title = read(file).get(key)
            except (OSError, ValueError):
                continue
            if isinstance(title, str) and title:
                return title
        return self.name

    @property
    def events_folder(self) -> Path:
        return self.path / "events"

    @property
    def logs_folder(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / "checkpoints"

    @property
    def requests_folder(self) -> Path:
        """What a person asked for in between (rank_consensus.py); emptied when an attempt begins."""
        return self.path / "requests"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def config_file(self) -> Path:
        """The resolved configuration of the latest attempt."""
        return self.attempt_file("config", "toml")

    @property
    def config_to_resume(self) -> Path:
        """The resolved configuration of the latest attempt that was not refused as bad input: what a person
        mistyped for one attempt is none of the next one's business.

        Raises:
            ConfigError: it is a pipe or the like.
        """
        found = sorted(
            self.path.glob("config.*.toml"), key=lambda path: parse_attempt(path.name), reverse=True
        )
        taken = (file for file in found if not self._was_refused(parse_attempt(file.name)))
        return _check_regular(_private_file(next(taken, self.path / "config.toml")))

    def _was_refused(self, attempt: int) -> bool:
        last = events_from_end(self.events_folder / f"supervisor.{attempt}.jsonl")
        end = next((event for event in last if isinstance(event, events.RunEnded)), None)
        return end is not None and end.exit_code == 2

    def config(self) -> RunConfig:
        """The resolved configuration of the latest attempt.

        Raises:
            ConfigError: it is missing or damaged, or the run is of a person's own script.
        """
        from rankdeck.config import load

        file = _check_regular(_private_file(self.config_file))
        script = self.script()
        if script is not None:
            raise ConfigError(
                phrase(
                    "{run} is a run of a person's own script, {script}: it has no configuration.",
                    run=self.name,
                    script=script.script.run,
                ),
                code="script",
                path=str(self.config_file),
                advice=phrase("What was seen of it: rankdeck show {run}", run=self.name),
            )
        return load(file)

    def script(self) -> ScriptConfig | None:
        """The person's own script that the latest attempt runs; None for a run of a configuration.

        Raises:
            ConfigError: the file is missing or damaged.
        """
        from rankdeck.config import script

        return script.load_script(_private_file(self.config_file))

    def environment(self) -> JsonObject:
        """Versions, devices, commit, command line of the latest attempt; empty when it cannot be read."""
        try:
            told = files.read_json(self.attempt_file("environment", "json"))
        except (OSError, ValueError):
            return {}
        try:
            started = msgspec.convert(told.get("started"), events.UnixTime)
        except msgspec.ValidationError:
            told.pop("started", None)
        else:
            told["started"] = self.to_local_time(started)
        return told

    def devices(self) -> list[events.DeviceInfo]:
        """Those that the latest attempt was started on, of this host. Raises: msgspec.ValidationError."""
        return msgspec.convert(self.environment().get("devices", []), list[events.DeviceInfo])

    def attempt_file(self, stem: str, suffix: str, attempt: int | None = None) -> Path:
        """What the latest attempt, or this one, was started with: a file that a resumed attempt brought
        along, else the run's first one."""
        resumed = [path for path in self.path.glob(f"{stem}.*.{suffix}") if parse_attempt(path.name)]
        by_then = [path for path in resumed if attempt is None or parse_attempt(path.name) <= attempt]
        return max(by_then, key=lambda path: parse_attempt(path.name), default=self.path / f"{stem}.{suffix}")

    def next_attempt(self) -> int:
        """The number of an attempt that has left no file yet."""
        names = [path.name for path in self.events_folder.glob("supervisor.*.jsonl")]
        names += [path.name for path in self.path.glob("config.*.toml")]
        return 1 + max(map(parse_attempt, names), default=0)

    def exit_record(self) -> ExitRecord | None:
        """The guard's last word, or None while there is none: it is written into `PARTIAL_EXIT_RECORD`, which
        becomes end.json. One beside it is not the guard's."""
        if files.is_regular(self.path / PARTIAL_EXIT_RECORD):
            return None
        try:
            told = decode_document(_exit_record_decoder.decode, files.read_bytes(self.path / "end.json"))
        except (OSError, msgspec.DecodeError):
            return None
        return replace(told, ended=self.to_local_time(told.ended)) if told.outcome in OUTCOMES else None

    def to_local_time(self, t: float) -> float:
        """A time (Unix seconds) by the clock of the run's host, by that of this machine."""
        origin = self.origin
        return t if origin is None else clamp_time(t - origin.ahead_s)

    @property
    def origin(self) -> RunOrigin | None:
        """Where this is the copy of a run of another host, None for a run of this one; whoever gives away a
        run's directory names no host with it.
        """
        if not self.path.absolute().is_relative_to(copies_dir()):
            return None
        try:
            return decode_document(_origin_decoder.decode, files.read_bytes(self.path / ORIGIN_FILE))
        except (OSError, msgspec.DecodeError):
            return None

    def is_alive(self) -> bool:
        """Whether a guard holds the run's lock."""
        return files.is_locked(self.path / "guard.lock")

    def outcome(self) -> str:
        """running | completed | failed | stopped | lost (no last word and nobody holds the lock; of a copy
        nobody can tell, and it is what it was)."""
        end = self.exit_record()
        if end is not None:
            return end.outcome
        if self.is_alive():
            return "running"
        end = self.exit_record()  # it may have ended between the two looks
        if end is not None:
            return end.outcome
        origin = self.origin
        return "lost" if origin is None or origin.is_lost else "running"

    def writer(self, name: str, attempt: int = 0) -> EventWriter:
        return EventWriter(self.events_folder / f"{name}.{attempt}.jsonl")


def _private_file(file: Path) -> Path:
    """The configuration to execute, of one that may be shown."""
    private = file.with_name(PRIVATE_PREFIX + file.name)
    return private if files.is_regular(private) else file


def _check_regular(file: Path) -> Path:
    """Raises ConfigError: it is no regular file, and whoever reads it may wait for ever."""
    if files.is_regular(file):
        return file
    message = phrase("{path} is no regular file.", path=file)
    raise ConfigError(message, code="unreadable", path=str(file))


def final_path(hidden: RunDir) -> Path:
    return hidden.path.with_name(hidden.path.name.removeprefix(HIDDEN_PREFIX))
