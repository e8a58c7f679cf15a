"""Read a run from its directory: configuration, events, outcome.

    <runs>/<YYYYMMDD-HHMMSS>-<slug>-<4 hex>/
      config.toml  environment.json         of attempt 0; a resumed attempt has config.<attempt>.toml ...
      private.config.toml                   config.toml with its secrets, if any; readable by the owner only
      events/rank-<r>.<attempt>.jsonl   events/supervisor.<attempt>.jsonl   events/sampler.<attempt>.jsonl
      logs/rank-<r>.<attempt>.out .err  logs/supervisor.<attempt>.err
      plan.json             the prediction for attempt 0; plan.<attempt>.json for a resumed attempt
      checkpoints/<step>/  weights.safetensors
      labels.json           name, tags and note that a user gave the run (labels.py)
      clocks.jsonl          clock offsets of the hosts of a multi-host run (event_reader.py)
      guard.lock (flock = alive)  control.sock  end.json

The app and the command line identify a run by this directory alone. Read event_files.py and event_reader.py
next.
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
"""The exit record's file name until the run has ended (launch/exit_record.py)."""
PRIVATE_PREFIX = "private."


def slug(name: str) -> str:
    """Return a run's name in the form used in folder names: letters, digits (of any writing system) and
    hyphens, at most 40 characters."""
    signs = unicodedata.normalize("NFC", name.lower())
    # In some scripts, vowels are combining marks (category M).
    characters = (sign if sign.isalnum() or unicodedata.category(sign)[0] == "M" else "-" for sign in signs)
    text = re.sub("-+", "-", "".join(characters))
    return text.strip("-")[:40].strip("-") or "run"


@dataclass(frozen=True)
class ExitRecord:
    """The guard's record of how the run ended, written when no process of the run is left."""

    outcome: str
    exit_code: int
    ended: events.UnixTime
    reason: str | None = None


@dataclass(frozen=True)
class RunOrigin:
    """The remote run of which a directory is a copy.

    `host` is the ssh name of the run's host and `path` the run's directory on that host. `is_lost` means that
    the run ended on the host without an exit record. The host's clock is `ahead_s` ahead of the local one.
    The copied files keep the host's times, and readers correct them.
    """

    host: str
    path: str
    is_lost: bool = False
    ahead_s: float = 0.0


def clamp_time(t: float) -> float:
    """Limit a corrected time to the range of `events.UnixTime`."""
    return min(max(events.EARLIEST, t), events.LATEST)


ORIGIN_FILE = "copy.json"
"""Name of the file in which the copying process stores the run's origin; a file of this name is never copied.
"""
_exit_record_decoder, _origin_decoder = msgspec.json.Decoder(ExitRecord), msgspec.json.Decoder(RunOrigin)


class RunDir:
    """A run, read from its directory. Every access reads from disk; nothing is cached."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def __repr__(self) -> str:
        return f"RunDir({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def title(self) -> str:
        """The name from labels.json, otherwise the title of the latest attempt, otherwise the folder's
        name."""
        return read_labels(self.path).name or self.attempt_title

    @property
    def title_slug(self) -> str:
        """The slug of the run's first title, as it appears in the folder's name."""
        return self.name[16:-5]

    @property
    def attempt_title(self) -> str:
        """The title set at the start of the latest attempt, whose strategy may differ from that of earlier
        attempts."""
        for file, read, key in (
            (self.attempt_file("environment", "json"), files.read_json, "title"),
            (self.path / "environment.json", files.read_json, "title"),
            (self.path / "config.toml", files.read_toml, "name"),  # a run older than titles
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
        """Folder of requests to the running ranks (rank_consensus.py); emptied when an attempt starts."""
        return self.path / "requests"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def config_file(self) -> Path:
        """The file with the latest attempt's resolved configuration."""
        return self.attempt_file("config", "toml")

    @property
    def config_to_resume(self) -> Path:
        """The configuration file of the latest attempt that was not refused as bad input.

        A typo in one attempt's configuration must not reach the next attempt.

        Raises:
            ConfigError: the file is not a regular file (a pipe, for example).
        """
        paths = sorted(
            self.path.glob("config.*.toml"), key=lambda path: parse_attempt(path.name), reverse=True
        )
        taken = (file for file in paths if not self._was_refused(parse_attempt(file.name)))
        return _check_regular(_private_file(next(taken, self.path / "config.toml")))

    def _was_refused(self, attempt: int) -> bool:
        last = events_from_end(self.events_folder / f"supervisor.{attempt}.jsonl")
        end = next((event for event in last if isinstance(event, events.RunEnded)), None)
        return end is not None and end.exit_code == 2

    def config(self) -> RunConfig:
        """Load the latest attempt's resolved configuration.

        Raises:
            ConfigError: the file is missing or damaged, or the run executes a user's script.
        """
        from rankdeck.config import load

        file = _check_regular(_private_file(self.config_file))
        script = self.script()
        if script is not None:
            raise ConfigError(
                phrase(
                    "{run} is a run of your own script, {script}, and has no configuration.",
                    run=self.name,
                    script=script.script.run,
                ),
                code="script",
                path=str(self.config_file),
                advice=phrase("To see what Rankdeck observed: rankdeck show {run}", run=self.name),
            )
        return load(file)

    def script(self) -> ScriptConfig | None:
        """Load the script configuration of the latest attempt; None if the run has a training configuration.

        Raises:
            ConfigError: the file is missing or damaged.
        """
        from rankdeck.config import script

        return script.load_script(_private_file(self.config_file))

    def environment(self) -> JsonObject:
        """Return versions, devices, commit and command line of the latest attempt; empty if unreadable."""
        try:
            facts = files.read_json(self.attempt_file("environment", "json"))
        except (OSError, ValueError):
            return {}
        try:
            started = msgspec.convert(facts.get("started"), events.UnixTime)
        except msgspec.ValidationError:
            facts.pop("started", None)
        else:
            facts["started"] = self.to_local_time(started)
        return facts

    def devices(self) -> list[events.DeviceInfo]:
        """Return this host's devices in the latest attempt.

        Raises:
            msgspec.ValidationError: environment.json lists invalid devices.
        """
        return msgspec.convert(self.environment().get("devices", []), list[events.DeviceInfo])

    def attempt_file(self, stem: str, suffix: str, attempt: int | None = None) -> Path:
        """Return the path of the file `stem.suffix` of `attempt`, by default the latest attempt.

        If the attempt has no such file, return the path of the nearest earlier attempt's file; if there is
        none, return attempt 0's path, even if the file does not exist.
        """
        resumed = [path for path in self.path.glob(f"{stem}.*.{suffix}") if parse_attempt(path.name)]
        by_then = [path for path in resumed if attempt is None or parse_attempt(path.name) <= attempt]
        return max(by_then, key=lambda path: parse_attempt(path.name), default=self.path / f"{stem}.{suffix}")

    def next_attempt(self) -> int:
        """Return the number of the next attempt, which has no files yet."""
        names = [path.name for path in self.events_folder.glob("supervisor.*.jsonl")]
        names += [path.name for path in self.path.glob("config.*.toml")]
        return 1 + max(map(parse_attempt, names), default=0)

    def exit_record(self) -> ExitRecord | None:
        """Return the guard's exit record; None if it does not exist yet or is invalid.

        The guard writes the record to `PARTIAL_EXIT_RECORD` and renames that file to end.json. As long as the
        partial file exists, any end.json is ignored, because the guard did not write it.
        """
        if files.is_regular(self.path / PARTIAL_EXIT_RECORD):
            return None
        try:
            record = decode_document(_exit_record_decoder.decode, files.read_bytes(self.path / "end.json"))
        except (OSError, msgspec.DecodeError):
            return None
        return replace(record, ended=self.to_local_time(record.ended)) if record.outcome in OUTCOMES else None

    def to_local_time(self, t: float) -> float:
        """Convert a time (Unix seconds) from the clock of the run's host to this machine's clock."""
        origin = self.origin
        return t if origin is None else clamp_time(t - origin.ahead_s)

    @property
    def origin(self) -> RunOrigin | None:
        """The remote run that this directory is a copy of; None for a local run.

        An origin is trusted only in the folder of copies; elsewhere it could name any host to connect to.
        """
        if not self.path.absolute().is_relative_to(copies_dir()):
            return None
        try:
            return decode_document(_origin_decoder.decode, files.read_bytes(self.path / ORIGIN_FILE))
        except (OSError, msgspec.DecodeError):
            return None

    def is_alive(self) -> bool:
        """Check whether a guard holds the run's lock."""
        return files.is_locked(self.path / "guard.lock")

    def outcome(self) -> str:
        """Return running | completed | failed | stopped | lost.

        A run is lost if it has no exit record and no process holds its lock. A copy without an exit record is
        "running" unless its origin's `is_lost` is true.
        """
        end = self.exit_record()
        if end is not None:
            return end.outcome
        if self.is_alive():
            return "running"
        end = self.exit_record()  # it may have ended between the two checks
        if end is not None:
            return end.outcome
        origin = self.origin
        return "lost" if origin is None or origin.is_lost else "running"

    def writer(self, name: str, attempt: int = 0) -> EventWriter:
        return EventWriter(self.events_folder / f"{name}.{attempt}.jsonl")


def _private_file(file: Path) -> Path:
    """Return the private configuration file (with secrets) next to the public `file`, or `file` itself if
    there is no private file."""
    private = file.with_name(PRIVATE_PREFIX + file.name)
    return private if files.is_regular(private) else file


def _check_regular(file: Path) -> Path:
    """Return `file` if it is a regular file: reading a pipe could block forever.

    Raises:
        ConfigError: the file is not a regular file.
    """
    if files.is_regular(file):
        return file
    message = phrase("{path} is not a regular file.", path=file)
    raise ConfigError(message, code="unreadable", path=str(file))


def final_path(hidden: RunDir) -> Path:
    return hidden.path.with_name(hidden.path.name.removeprefix(HIDDEN_PREFIX))
