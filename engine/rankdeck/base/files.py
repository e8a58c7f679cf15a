"""Files that are written whole or not at all, and read only where they are regular ones of a bounded size."""

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
    """Write beside the file, then rename over it: who reads at any moment sees the old contents or the new.

    `contents` may be a function that fills the path that it is given. A link is followed; a device or a pipe
    (/dev/stdout) is written into, because a rename would put a file in its place.

    Raises:
        OSError: the folder cannot be made or the file cannot be written. No half file stays.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        _fill(path, contents)
        return
    path = path.resolve()
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, contents)


def write_private(path: Path, text: str) -> None:
    """As `write_atomic`, for the owner alone: a configuration may hold secrets.

    Raises: OSError.
    """

    def fill(fresh: Path) -> None:
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)

    write_atomic(path, fill)


def find_write_error(folder: Path) -> str:
    """Why nothing can be written in a folder, in the system's words ("No space left on device", "Read-only
    file system"); "" where something can, or where the folder is gone.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PAGE_BYTES))
            file.flush()
    except OSError as error:
        is_elsewhere = error.errno in (errno.ENOENT, errno.EMFILE, errno.ENFILE)
        return "" if is_elsewhere else error.strerror or str(error)
    return ""


def replace_file(path: Path, contents: str | bytes | Callable[[Path], object], *, sync: bool = False) -> None:
    """As `write_atomic`, a file of ours in a folder that may come from anywhere: a link or a pipe that is
    there in its place is replaced. With `sync` the bytes are on the disk before the rename; the folder's own
    entry is the caller's to sync.

    Raises:
        OSError: the file cannot be written. No half file stays.
    """
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
        path.write_text(contents, "utf-8", "surrogateescape")  # of names of files that are not UTF-8
    elif isinstance(contents, bytes):
        path.write_bytes(contents)
    else:
        contents(path)


def sync_to_disk(path: Path) -> None:
    """Return once a file's bytes, or a folder's entries, are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_toml(path: Path) -> TomlTable:
    """The tables of a TOML file; a byte order mark, which some editors write, is skipped.

    Raises:
        OSError: as `read_bytes`.
        ValueError: it is not UTF-8 text, or not TOML.
    """
    return parse_toml(read_bytes(path, MAX_TOML_BYTES).decode("utf-8-sig"))


def read_toml_or_empty(path: Path) -> TomlTable:
    """As `read_toml`; no tables where that fails."""
    try:
        return read_toml(path)
    except (OSError, ValueError):
        return {}


def read_json(path: Path) -> JsonObject:
    """Raises OSError or ValueError: it cannot be read, or holds no JSON object."""
    return parse_json_object(read_text(path))


# Reading. Every file of a run is opened here, since a run's folder may come from anywhere.

MAX_FILE_BYTES = 8 << 20
"""No whole file that is read at once is larger: an environment, a plan, a last word. As JSON it may take
fifty times as much memory, and a second."""
MAX_TOML_BYTES = 1 << 20
"""Nor a configuration, which takes a second for each MiB."""


def open_regular(path: Path) -> int:
    """A file descriptor to read a regular file (or a link to one); it never waits for a writer.

    Raises:
        OSError: there is none, or it is a folder, a pipe, a socket or a device.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, phrase("it is no regular file"), str(path))


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock of a regular file."""
    try:
        handle = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def is_regular(path: Path) -> bool:
    """Whether something that `open_regular` opens is there."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether a folder (or a link to one) is there that can be asked for."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def wait_for_folder(folder: Path) -> None:
    """For a second at most: a run's directory that was moved just now is led to by its guard."""
    until_s = time.monotonic() + 1.0
    while not folder.exists() and time.monotonic() < until_s:
        time.sleep(0.02)


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where it is none, or cannot be read."""
    try:
        return list(folder.iterdir())
    except (OSError, ValueError):
        return []


def read_at(path: Path, offset: int, num_bytes: int) -> bytes:
    """At most `num_bytes` from `offset` on; empty at the end.

    Raises:
        OSError: as `open_regular`.
    """
    handle = open_regular(path)
    try:
        return os.pread(handle, num_bytes, offset)
    finally:
        os.close(handle)


def read_bytes(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The whole file.

    Raises:
        OSError: as `open_regular`, or it is larger than `most_bytes`.
    """
    data = read_at(path, 0, most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, phrase("it is larger than {most} bytes", most=most_bytes), str(path))
    return data


def read_text(path: Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The whole file as UTF-8, without a mark at its beginning; what is none becomes a replacement sign.

    Raises:
        OSError: as `read_bytes`.
    """
    return read_bytes(path, most_bytes).decode("utf-8-sig", "replace")


def text_or_empty(path: Path) -> str:
    """The whole file as `read_text`, without space around it; "" where it cannot be read."""
    try:
        return read_text(path).strip()
    except OSError:
        return ""


def read_tail(path: Path, num_bytes: int) -> tuple[int, bytes]:
    """(where it begins, the last `num_bytes` of the file).

    Raises:
        OSError: as `open_regular`.
    """
    handle = open_regular(path)
    try:
        start = max(0, os.fstat(handle).st_size - num_bytes)
        return start, os.pread(handle, num_bytes, start)
    finally:
        os.close(handle)


# Who holds which GPU: a locked file per UUID, held by the guard of a run for as long as the run lives.


def lease_path(uuid: str) -> Path:
    """The file whose lock is the lease of a GPU; nothing is created."""
    return state_dir() / "leases" / f"{uuid}.lock"


def lease_holder(uuid: str) -> str | None:
    """The run that holds a GPU, as its guard wrote it; None when it is free."""
    path = lease_path(uuid)
    if not is_locked(path):
        return None
    try:
        return read_text(path).strip() or "another run"
    except OSError:  # just given back
        return None
