"""The directory of a run: create, append, read back, list.

    <runs>/<YYYYMMDD-HHMMSS>-<slug>-<4 hex>/
      config.toml  environment.json         of attempt 0; one that was resumed has config.<attempt>.toml ...
      events/rank-<r>.<attempt>.jsonl   events/supervisor.<attempt>.jsonl   events/sampler.<attempt>.jsonl
      logs/rank-<r>.<attempt>.out .err  logs/supervisor.<attempt>.err
      checkpoints/<step>/  weights.safetensors
      guard.lock (flock = alive)  control.sock  end.json

Each writer owns its files, so nothing is ever locked to write. A reader keeps (file, offset, seq) and goes on
from there: it may be killed at any time and loses and doubles nothing. The app and the command line know a
run by this directory alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rankdeck import events
from rankdeck.errors import ConfigError, RunNotFoundError, one_of
from rankdeck.home import state_dir

if TYPE_CHECKING:
    from rankdeck.config import RunConfig

OUTCOMES = ("running", "completed", "failed", "stopped", "lost")
_HIDDEN = ".new-"
_CHUNK_BYTES = 1 << 20


def slug(name: str) -> str:
    """A run's name as part of a folder's name: lower case, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "run"


def default_runs_folder() -> Path:
    """RANKDECK_RUNS, else `runs` in the current folder. Nothing is created."""
    named = os.environ.get("RANKDECK_RUNS")
    return Path(named).expanduser().absolute() if named else Path.cwd() / "runs"


@dataclass(frozen=True)
class End:
    """What the guard wrote when nothing of the run was left."""

    outcome: str
    exit_code: int
    ended: float
    reason: str | None = None


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
        """What a person asked for in between (agreement.py); emptied when an attempt begins."""
        return self.path / "requests"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def config_file(self) -> Path:
        """The resolved configuration of the latest attempt."""
        return self._latest("config", "toml")

    @property
    def config_to_go_on_with(self) -> Path:
        """The resolved configuration of the latest attempt that was not refused as bad input: what a person
        mistyped for one attempt is none of the next one's business."""
        files = sorted(self.path.glob("config.*.toml"), key=lambda path: attempt_of(path.name), reverse=True)
        return next(
            (file for file in files if not self._was_refused(attempt_of(file.name))),
            self.path / "config.toml",
        )

    def _was_refused(self, attempt: int) -> bool:
        try:
            lines = (self.events_folder / f"supervisor.{attempt}.jsonl").read_bytes().splitlines()
        except OSError:
            return False
        ends = [event for line in lines if isinstance(event := _decode_or_none(line), events.RunEnded)]
        return bool(ends) and ends[-1].exit_code == 2

    def config(self) -> RunConfig:
        """The resolved configuration of the latest attempt.

        Raises:
            ConfigError: it is missing or damaged.
        """
        from rankdeck.config import load

        return load(self.config_file)

    def environment(self) -> dict[str, Any]:
        """Versions, devices, commit, command line of the latest attempt; empty when it cannot be read."""
        try:
            value = json.loads(self._latest("environment", "json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def _latest(self, stem: str, suffix: str) -> Path:
        """A file that an attempt that was resumed brought along, else the run's first one."""
        found = list(self.path.glob(f"{stem}.*.{suffix}"))
        return max(found, key=lambda path: attempt_of(path.name), default=self.path / f"{stem}.{suffix}")

    def next_attempt(self) -> int:
        """The number of an attempt that has left no file yet."""
        names = [path.name for path in self.events_folder.glob("supervisor.*.jsonl")]
        names += [path.name for path in self.path.glob("config.*.toml")]
        return 1 + max(map(attempt_of, names), default=0)

    def end(self) -> End | None:
        """The guard's last word, or None while there is none."""
        try:
            value = json.loads((self.path / "end.json").read_text(encoding="utf-8"))
            return End(value["outcome"], value["exit_code"], value["ended"], value.get("reason"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_alive(self) -> bool:
        """Whether a guard holds the run's lock."""
        try:
            handle = os.open(self.path / "guard.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def outcome(self) -> str:
        """running | completed | failed | stopped | lost (no last word and nobody holds the lock)."""
        end = self.end()
        if end is not None:
            return end.outcome
        if self.is_alive():
            return "running"
        end = self.end()  # it may have ended between the two looks
        return end.outcome if end is not None else "lost"

    def writer(self, name: str, attempt: int = 0) -> EventWriter:
        return EventWriter(self.events_folder / f"{name}.{attempt}.jsonl")


def attempt_of(file_name: str) -> int:
    """12 for "rank-0.12.jsonl"; 0 where the name tells none."""
    parts = file_name.rsplit(".", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else 0


def add_attempt(run: RunDir, config: RunConfig, environment: dict[str, Any]) -> tuple[int, list[Path]]:
    """The files of the next attempt: its number, and what to remove if it never begins.

    Raises:
        ConfigError: they cannot be written, or another command is just doing the same.
    """
    attempt = run.next_attempt()
    contents = {
        run.path / f"config.{attempt}.toml": config.to_toml(),
        run.path / f"environment.{attempt}.json": json.dumps(environment, indent=2) + "\n",
    }
    try:
        for path, text in contents.items():
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{run.name} is being resumed by another command.", code="running", advice="Wait for that one."
        ) from None
    except OSError as error:
        for path in contents:
            path.unlink(missing_ok=True)
        raise ConfigError(
            f"{run.path} cannot be written: {error.strerror}.",
            code="run-folder",
            advice="Free space on the disk, or mend the folder's permissions.",
        ) from None
    return attempt, list(contents)


def create(runs: Path, config: RunConfig, environment: dict[str, Any]) -> RunDir:
    """A new run's directory under a hidden name; the guard gives it its final one once its lock is held.

    Raises:
        ConfigError: the folder of runs cannot be written.
    """
    final = runs.absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{slug(config.name)}-{secrets.token_hex(2)}"
    hidden = final.with_name(_HIDDEN + final.name)
    try:
        for folder in (hidden / "events", hidden / "logs"):
            folder.mkdir(parents=True)
        (hidden / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        (hidden / "environment.json").write_text(json.dumps(environment, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{runs} cannot hold runs: {error.strerror}.",
            code="runs-folder",
            advice="Name another folder with --runs.",
        ) from None
    return RunDir(hidden)


def final_path(hidden: RunDir) -> Path:
    return hidden.path.with_name(hidden.path.name.removeprefix(_HIDDEN))


class EventWriter:
    """Appends events to one file: one line per event, one write per line, `seq` without gaps. Of a file that
    is there already, it goes on where that ends.

    A full disk never raises: the line is dropped, counted, and said as soon as there is room again. `dropped`
    counts them.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = _next_seq(self._handle)
        self._unsaid = 0
        self._reason = ""
        self.dropped = 0

    def write(self, event: events.Event, *, sync: bool = False) -> bool:
        """Whether the event is in the file.

        `sync` also waits for the disk (life-cycle events only: 150 us).
        """
        if self._unsaid and not self._put(events.Dropped(lines=self._unsaid, reason=self._reason)):
            return self._drop(None)
        self._unsaid = 0
        if not self._put(event):
            return self._drop(None)
        if sync:
            try:
                os.fdatasync(self._handle)
            except OSError as error:
                self._reason = error.strerror or str(error)
        return True

    def _put(self, event: events.Event) -> bool:
        event.seq = self._seq
        event.t = time.time()
        line = events.encode(event)
        try:
            written = os.write(self._handle, line)
        except OSError as error:
            self._reason = error.strerror or str(error)
            return False
        if written < len(line):
            # The disk filled up in the middle of the line: take the torn part back, so that no reader sees
            # half a fact.
            self._reason = "no space left on the disk"
            try:
                os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            except OSError:
                pass
            return False
        self._seq += 1
        return True

    def _drop(self, _: None) -> bool:
        # A dropped line leaves a gap in seq: a reader sees that something is missing even if this is never
        # said.
        self._seq += 1
        self._unsaid += 1
        self.dropped += 1
        return False

    @property
    def drop_reason(self) -> str:
        return self._reason

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _next_seq(handle: int) -> int:
    """The number after that of the last line; a line that its writer did not end is ended here."""
    size = os.fstat(handle).st_size
    if not size:
        return 0
    tail = os.pread(handle, _CHUNK_BYTES, max(0, size - _CHUNK_BYTES))
    if not tail.endswith(b"\n"):
        os.write(handle, b"\n")
    for lines_after, line in enumerate(reversed(tail.splitlines())):
        event = _decode_or_none(line)
        if event is not None:
            return event.seq + 1 + lines_after
    return 0


class Cursor(msgspec.Struct):
    """Where a reader is in one file: the byte to go on from and the `seq` expected there."""

    offset: int = 0
    seq: int = 0


@dataclass
class EventReader:
    """Reads a run's events as they come; `cursors` (file name -> Cursor) is all that has to be kept to go on
    later.

    `missing` counts the lines that gaps in `seq` reveal, per file.
    """

    run: RunDir
    cursors: dict[str, Cursor] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def read(self, max_bytes: int = 16 << 20) -> list[tuple[str, events.AnyEvent]]:
        """New events as (writer, event), every file in its own order; writer is "rank-0", "supervisor" or
        "sampler".

        At most about `max_bytes` are read; call again until the list is empty. An unterminated last line
        waits.
        """
        return [(name.rsplit(".", 2)[0], event) for name, batch in self.batches(max_bytes) for event in batch]

    def batches(
        self, max_bytes: int = 16 << 20, chunk_bytes: int = _CHUNK_BYTES
    ) -> Iterator[tuple[str, list[events.AnyEvent]]]:
        """The same as `read`, a list per chunk with the name of its file; the cursor moves chunk by chunk.

        An attempt is read to its end before the next one, which began after it. Files of an attempt take
        turns, the supervisor's first, so that no rank is read to its end while another waits.
        """
        by_attempt: dict[int, list[str]] = {}
        for name in sorted(self._files(), key=lambda name: not name.startswith("supervisor")):
            by_attempt.setdefault(attempt_of(name), []).append(name)
        for attempt in sorted(by_attempt):
            waiting = by_attempt[attempt]
            while waiting and max_bytes > 0:
                for name in list(waiting):
                    cursor = self.cursors.setdefault(name, Cursor())
                    chunk = self._chunk(name, cursor, chunk_bytes)
                    max_bytes -= len(chunk)
                    if chunk:
                        yield name, self._decode(name, cursor, chunk)
                    else:
                        waiting.remove(name)

    def _files(self) -> list[str]:
        try:
            return sorted(path.name for path in self.run.events_folder.glob("*.jsonl"))
        except OSError:
            return []

    def _chunk(self, name: str, cursor: Cursor, num_bytes: int) -> bytes:
        """Whole lines from the cursor on; empty when there is none yet."""
        try:
            handle = os.open(self.run.events_folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            while True:
                data = os.pread(handle, num_bytes, cursor.offset)
                end = data.rfind(b"\n") + 1
                if end or len(data) < num_bytes:
                    return data[:end]
                num_bytes *= 4  # one line longer than a chunk
        finally:
            os.close(handle)

    def _decode(self, name: str, cursor: Cursor, chunk: bytes) -> list[events.AnyEvent]:
        cursor.offset += len(chunk)
        try:
            decoded = events.decode_lines(chunk)
        except msgspec.DecodeError:
            decoded = [_decode_or_none(line) for line in chunk.splitlines()]
        known = [event for event in decoded if event is not None]
        # The usual chunk is whole, and its two ends tell so: a million events are read in a second.
        if (
            known
            and len(known) == len(decoded) == known[-1].seq - cursor.seq + 1
            and known[0].seq == cursor.seq
        ):
            cursor.seq += len(known)
            return known
        for event in decoded:
            if event is None:
                cursor.seq += 1
                continue
            if event.seq > cursor.seq:
                self.missing[name] = self.missing.get(name, 0) + event.seq - cursor.seq
            cursor.seq = event.seq + 1
        return known


def _decode_or_none(line: bytes) -> events.AnyEvent | None:
    try:
        return events.decode(line)
    except msgspec.DecodeError:
        return None


def _index_file() -> Path:
    return state_dir() / "runs.index"


def enter_in_index(run: RunDir) -> None:
    """Remember a run wherever it is, so that it is found from everywhere. A failure costs only that."""
    try:
        _index_file().parent.mkdir(parents=True, exist_ok=True)
        with open(_index_file(), "a", encoding="utf-8") as index:
            index.write(f"{run.path}\n")
    except OSError:
        pass


def list_runs(folder: Path | None = None) -> list[RunDir]:
    """Every run of the folder and of the index that still exists, newest first by name."""
    paths: dict[Path, None] = {}
    if folder is not None and folder.is_dir():
        paths |= dict.fromkeys(folder.absolute().iterdir())
    try:
        paths |= dict.fromkeys(
            Path(line) for line in _index_file().read_text(encoding="utf-8").splitlines() if line
        )
    except OSError:
        pass
    runs = [RunDir(path) for path in paths if is_run(path)]
    return sorted(runs, key=lambda run: run.name, reverse=True)


def is_run(path: Path) -> bool:
    return (
        not path.name.startswith(_HIDDEN) and (path / "config.toml").is_file() and (path / "events").is_dir()
    )


def find_run(text: str, folder: Path | None = None) -> RunDir:
    """The run that `text` names: a directory, `last`, a folder's name or the name in its configuration.

    Raises:
        RunNotFoundError: no run, or several, are called so; the message lists them.
    """
    if (path := _as_directory(text)) is not None:
        return RunDir(path)
    runs = list_runs(folder)
    if text == "last":
        if runs:
            return runs[0]
        raise RunNotFoundError("There is no run yet.", advice="Start one with: rankdeck train digits-mlp")
    for called in (_is_folder, _is_named, _has_in_name):
        matching = [run for run in runs if called(run, text)]
        if matching:
            break
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise RunNotFoundError(
            f'"{text}" names {len(matching)} runs.',
            code="ambiguous-run",
            advice=f"Use {one_of(run.name for run in matching[:10])}."
            + (" All of them: rankdeck runs." if len(matching) > 10 else ""),
        )
    known = ", ".join(run.name for run in runs[:5])
    raise RunNotFoundError(
        f'There is no run called "{text if len(text) < 200 else text[:200] + "..."}".',
        advice=f"The latest: {known}." if known else "There is no run yet.",
    )


def _as_directory(text: str) -> Path | None:
    """The run's directory that the text spells out; None for a name, and for what can be no path at all."""
    try:
        path = Path(text).expanduser()
        return path if path.is_dir() and is_run(path.absolute()) else None
    except (OSError, RuntimeError, ValueError):  # too long, a home that nobody has, a null byte
        return None


def _is_folder(run: RunDir, text: str) -> bool:
    return run.name == text


def _is_named(run: RunDir, text: str) -> bool:
    if text and slug(text) == run.name[16:-5]:
        return True
    try:
        return run.config().name == text
    except ConfigError:
        return False


def _has_in_name(run: RunDir, text: str) -> bool:
    return bool(text) and text in run.name
