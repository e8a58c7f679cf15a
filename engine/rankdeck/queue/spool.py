"""The folder of entries. Every change reads an entry, changes it and writes it back under one lock.

<state>/queue/
  lock                    (flock) held for milliseconds by a process that changes the folder
  dispatcher.lock         (flock = the dispatcher is alive) with its process id
  paused                  exists while the queue is paused
  last_number             the number of the newest entry
  entries/12.json         an entry (entry.py)
  entries/12.toml         its configuration
  entries/12.env.json     its environment
  entries/12.start.lock   (flock) held by a start that is under way
  entries/12.start.log    output of the command that carries out the start
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import ConfigError, RankdeckError, format_choices
from rankdeck.base.home import state_dir
from rankdeck.base.parsing import parse_json_object
from rankdeck.base.phrases import phrase
from rankdeck.queue.entry import Entry

_SESSION_VARIABLES = {
    "_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "TERM",
    "TMUX", "TMUX_PANE", "WINDOWID", "XDG_SESSION_ID",
}  # fmt: skip
"""Environment variables that describe a terminal or a login session, which a later run does not have."""
_MAX_LISTED = 10
_LOCK_TIMEOUT_S = 0.2

_decoder = msgspec.json.Decoder(Entry)


def try_lock(path: Path) -> int | None:
    """Lock a file exclusively and return its descriptor; None if another process holds the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            # A process that checks whether the lock is held shares it for a moment.
            if time.monotonic() > end_s:
                os.close(handle)
                return None
            time.sleep(0.01)


class NoEntryError(RankdeckError):
    """Raised when the queue has no entry of this number or name."""

    code = "no-entry"
    exit_code = 2


class Spool:
    """The queue's folder. Nothing is cached, and nothing is created before the first entry."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = state_dir() / "queue" if folder is None else folder
        self.entries_folder = self.folder / "entries"

    # Reading.

    def entries(self) -> list[Entry]:
        """Return all entries in the order in which they were added; damaged files are left out."""
        paths = files.entries(self.entries_folder)
        numbered = [path for path in paths if path.suffix == ".json" and path.stem.isdecimal()]
        found = [entry for path in numbered if (entry := _read(path)) is not None]
        return sorted(found, key=lambda entry: entry.number)

    def entry(self, number: int) -> Entry | None:
        return _read(self._file(number))

    def find(self, text: str) -> Entry:
        """Return the entry that `text` names: its number, or its name if only one entry has it.

        Raises:
            NoEntryError: no entry matches, or several do.
        """
        if text.isdecimal() and (entry := self.entry(int(text))) is not None:
            return entry
        named = [entry for entry in self.entries() if entry.name == text]
        unfinished = [entry for entry in named if not entry.is_finished]
        # A name that an ended entry had may be used again.
        matching = unfinished if len(unfinished) == 1 else named
        if len(matching) == 1:
            return matching[0]
        if matching:
            numbers = [str(entry.number) for entry in matching[-_MAX_LISTED:]]
            raise NoEntryError(
                phrase('"{name}" is the name of {count} entries.', name=text, count=len(matching)),
                advice=phrase("Use a number: {numbers}.", numbers=format_choices(numbers)),
            )
        raise NoEntryError(
            phrase('The queue has no entry "{name}".', name=text[:200]),
            advice=phrase("List the entries with: rankdeck queue list --all"),
        )

    def config_file(self, number: int) -> Path:
        return self.entries_folder / f"{number}.toml"

    def start_lock(self, number: int) -> Path:
        return self.entries_folder / f"{number}.start.lock"

    def start_log(self, number: int) -> Path:
        return self.entries_folder / f"{number}.start.log"

    def environment(self, number: int) -> dict[str, str]:
        """Return the environment that an entry's run starts with; empty if its file cannot be read."""
        try:
            facts = parse_json_object(files.read_text(self._environment_file(number)))
        except (OSError, ValueError):
            return {}
        return {str(name): str(value) for name, value in facts.items()}

    @property
    def dispatcher_lock(self) -> Path:
        return self.folder / "dispatcher.lock"

    @property
    def is_paused(self) -> bool:
        return files.is_regular(self.folder / "paused")

    # Changes.

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the spool's lock; wait until no other process holds it.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        try:
            self.entries_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                phrase(
                    "The queue cannot be stored in {folder}: {why}.", folder=self.folder, why=error.strerror
                ),
                code="queue-folder",
                advice=phrase("Fix the folder's permissions, or set RANKDECK_HOME to another folder."),
            ) from None
        try:
            # Blocks: a change takes milliseconds, and a killed process releases the lock.
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def add(self, entry: Entry, config: str, environment: Mapping[str, str]) -> Entry:
        """Add an entry at the end of the queue and return it with its number, key and position.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        variables = {name: value for name, value in environment.items() if name not in _SESSION_VARIABLES}
        with self.locked():
            number = 1 + max(self._last_number(), max((e.number for e in self.entries()), default=0))
            entry.number, entry.position, entry.key = number, float(number), secrets.token_hex(8)
            # The JSON file is last: an entry without the other two must not exist.
            files.write_private(self.config_file(number), config)
            files.write_private(self._environment_file(number), msgspec.json.encode(variables).decode())
            self._write(entry)
            files.write_private(self.folder / "last_number", f"{number}\n")
        return entry

    def update(self, number: int, change: Callable[[Entry], None]) -> Entry:
        """Change an entry, write it and return it. If `change` raises an exception, nothing is written.

        Raises:
            NoEntryError: there is no such entry.
        """
        with self.locked():
            entry = self.entry(number)
            if entry is None:
                raise NoEntryError(phrase('The queue has no entry "{name}".', name=str(number)))
            change(entry)
            self._write(entry)
        return entry

    def set_paused(self, paused: bool) -> None:
        """Pause the queue or resume it; runs that have started are not affected."""
        with self.locked():
            if paused:
                files.write_private(self.folder / "paused", "")
            else:
                (self.folder / "paused").unlink(missing_ok=True)

    def _write(self, entry: Entry) -> None:
        text = msgspec.json.format(msgspec.json.encode(entry), indent=2)

        def fill(path: Path) -> None:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "wb") as file:
                file.write(text)

        # Synced, because a start that a power failure made the queue forget would happen twice.
        files.replace_file(self._file(entry.number), fill, sync=True)
        files.sync_to_disk(self.entries_folder)

    def _file(self, number: int) -> Path:
        return self.entries_folder / f"{number}.json"

    def _environment_file(self, number: int) -> Path:
        return self.entries_folder / f"{number}.env.json"

    def _last_number(self) -> int:
        text = files.text_or_empty(self.folder / "last_number")
        return int(text) if text.isdecimal() else 0


def _read(path: Path) -> Entry | None:
    try:
        return _decoder.decode(files.read_bytes(path))
    except (OSError, msgspec.DecodeError):
        return None
