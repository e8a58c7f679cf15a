"""Writes files atomically, and reads only regular files of a bounded size."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rankdeck.base.home import state_dir
from rankdeck.base.parsing import JsonObject, TomlTable, parse_json_object, parse_toml
from rankdeck.base.phrases import phrase

_PAGE_BYTES = 4096


def write_atomic(
    path: Path,
    contents: str | bytes | Callable[[Path], object],
    *,
    make_folder: bool = True,
) -> None:
    """Write a temporary file and rename it over `path`: readers see the old contents or the new ones.

    `contents` may be a function that writes the file to the path that it receives. A symlink is followed. A
    device or a pipe (/dev/stdout) is written to directly, because a rename would replace it with a file.

    Raises:
        OSError: the folder cannot be created or the file cannot be written. No partial file remains.
    """
    # All packages write whole files with this function; each of five earlier functions failed for symlinks or
    # pipes, or left partial files. Only the guard has its own: it imports nothing, and reserves the space for
    # end.json.
    if path.exists() and not (path.is_file() or path.is_dir()):
        _fill(path, contents)
        return
    path = path.resolve()
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, contents)


def write_private(path: Path, text: str) -> None:
    """Write as `write_atomic` does, but let only the owner read the file: a configuration may contain
    secrets.

    Raises: OSError.
    """

    def fill(fresh: Path) -> None:
        # The mode is set at creation: after a later chmod others may already have opened the file.
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)

    write_atomic(path, fill)


def find_write_error(folder: Path) -> str:
    """Return why writing into a folder fails, in the operating system's words ("No space left on device").

    Returns "" if writing works, if the folder does not exist, or if no file descriptor is free.
    """
    try:
        # statvfs reports a full disk, but not one that became read-only or broke. Only a write can tell.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PAGE_BYTES))
            file.flush()
    except OSError as error:
        # A missing folder and a lack of descriptors say nothing about the disk.
        is_elsewhere = error.errno in (errno.ENOENT, errno.EMFILE, errno.ENFILE)
        return "" if is_elsewhere else error.strerror or str(error)
    return ""


def replace_file(path: Path, contents: str | bytes | Callable[[Path], object], *, sync: bool = False) -> None:
    """Write like `write_atomic`, but replace a symlink or a pipe at `path`: the folder may come from an
    untrusted source.

    If `sync` is True, the file's bytes are on disk before the rename; the caller syncs the folder.

    Raises:
        OSError: the file cannot be written. No partial file remains.
    """
    # In the same folder, because a rename is only atomic within a file system.
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    try:
        _fill(fresh, contents)
        if sync:
            sync_to_disk(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _fill(path: Path, contents: str | bytes | Callable[[Path], object]) -> None:
    if isinstance(contents, str):
        path.write_text(contents, "utf-8", "surrogateescape")  # for file names that are not UTF-8
    elif isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        contents(path)


def sync_to_disk(path: Path) -> None:
    """Wait until a file's bytes, or a folder's entries, are on disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_toml(path: Path) -> TomlTable:
    """Return the tables of a TOML file; a byte order mark is skipped.

    Raises:
        OSError: for the same reasons as in `read_bytes`.
        ValueError: the file is not UTF-8 text, or not TOML.
    """
    return parse_toml(read_bytes(path, MAX_TOML_BYTES).decode("utf-8-sig"))


def read_toml_or_empty(path: Path) -> TomlTable:
    """Read a file like `read_toml`; return an empty table if that fails."""
    try:
        return read_toml(path)
    except (OSError, ValueError):
        return {}


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file. Raises OSError or ValueError."""
    return parse_json_object(read_text(path))


# Reading. All files of a run are opened with these functions, because a run directory may come from anywhere.

MAX_FILE_BYTES = 8 << 20
"""Size limit of files that are read whole: an environment, a plan, an exit record. Parsing a JSON file of
this size may take a second and fifty times the file's size in memory."""
MAX_TOML_BYTES = 1 << 20
"""Size limit of a configuration: parsing takes a second for each MiB."""


def open_regular(path: Path) -> int:
    """Open a regular file, or a symlink to one, for reading and return its file descriptor; never block on a
    pipe.

    Raises:
        OSError: the path does not exist, or is a folder, a pipe, a socket or a device.
    """
    # O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal must not become this
    # process's controlling terminal.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, phrase("it is not a regular file"), str(path))


def is_locked(path: Path) -> bool:
    """Return whether another process has an exclusive lock on a file; False if it is no regular file."""
    try:
        handle = open_regular(path)
    except OSError:
        return False
    try:
        # A shared lock, so that two processes that check at the same time do not take each other for the
        # holder.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def is_regular(path: Path) -> bool:
    """Return whether the path is a regular file or a symlink to one."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether the path is a folder or a symlink to one; False if it cannot be checked."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def wait_for_folder(folder: Path) -> None:
    """Wait up to a second for a run directory to exist: after a move, the run's guard creates a link from the
    old path to the new one."""
    until_s = time.monotonic() + 1.0
    while not folder.exists() and time.monotonic() < until_s:
        time.sleep(0.02)


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder; empty if it cannot be read."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def read_at(path: Path, offset: int, num_bytes: int) -> bytes:
    """Read at most `num_bytes` from `offset`; empty at the end of the file.

    Raises:
        OSError: for the same reasons as in `open_regular`.
    """
    handle = open_regular(path)
    try:
        return os.pread(handle, num_bytes, offset)
    finally:
        os.close(handle)


def read_bytes(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read the whole file.

    Raises:
        OSError: for the same reasons as in `open_regular`, or because the file is larger than `most_bytes`.
    """
    # One more byte distinguishes a file of exactly this size from a larger one.
    data = read_at(path, 0, most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, phrase("it is larger than {most} bytes", most=most_bytes), str(path))
    return data


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Read the whole file as UTF-8, skipping a byte order mark; invalid bytes become replacement characters.

    Raises:
        OSError: for the same reasons as in `read_bytes`.
    """
    return read_bytes(path, most_bytes).decode("utf-8-sig", "replace")


def text_or_empty(path: Path) -> str:
    """Read a file like `read_text` and strip whitespace; return "" if the file cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def read_tail(path: Path, num_bytes: int) -> tuple[int, bytes]:
    """Return (offset, bytes) of the last `num_bytes` of the file.

    Raises:
        OSError: for the same reasons as in `open_regular`.
    """
    handle = open_regular(path)
    try:
        start = max(0, os.fstat(handle).st_size - num_bytes)
        return start, os.pread(handle, num_bytes, start)
    finally:
        os.close(handle)


# GPU leases: a lock file per UUID, which a run's guard keeps locked while the run is alive.


def lease_path(uuid: str) -> Path:
    """Return the path of the lock file that represents a GPU's lease; the file is not created."""
    return state_dir() / "leases" / f"{uuid}.lock"


def lease_holder(uuid: str) -> str | None:
    """Return the name of the run that holds a GPU's lease, as the run's guard wrote it to the lock file; None
    if the GPU is free."""
    path = lease_path(uuid)
    if not is_locked(path):
        return None
    try:
        return read_text(path).strip() or "another run"
    except OSError:  # the lease was just released
        return None
