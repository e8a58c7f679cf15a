"""Pack a configuration and its code into an archive, and unpack it on another host.

The code consists of the files in the configuration's folder that git tracks or would add; without git, of the
Python files and the lock file. Large files are left out: data is never copied. The unpacked folder is named
after the archive's hash, so that the same code is stored only once. It is never removed while the
configuration of a run on that host refers to it, since the run may be resumed at any time. Otherwise it is
removed once it has been unused for a month.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import tomlkit

from rankdeck.base import files, packages
from rankdeck.base.errors import ConfigError
from rankdeck.base.home import state_dir
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.config.multi_host import portable_tables
from rankdeck.run_dir import default_runs_folder, is_run
from rankdeck.run_dir.listing import indexed_paths

CONFIG_NAME = "rankdeck.config.toml"
"""The configuration's name in the archive."""
MAX_CODE_FILE_BYTES = 4 << 20
MAX_ARCHIVE_BYTES = 64 << 20
_MAX_FILES = 10_000
_KEEP_UNUSED_S = 30 * 86_400.0
_CLEANUP_TIMEOUT_S = 2.0
"""Time limit of a cleanup: it must end before a client that waits for an answer considers the host silent."""
_UNPACKED_NAME = re.compile(r"[0-9a-f]{16}|\.\w{8}", re.ASCII)
"""Pattern of the names of unpacked folders, and of temporary folders during unpacking or removal."""
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "runs", "venv"}


def pack(config: RunConfig) -> bytes:
    """Return the archive of a configuration and its code; the same contents give the same bytes.

    Raises:
        ConfigError: there is too much code, or some of it is outside the configuration's folder.
    """
    folder = Path(config.folder or ".").resolve()
    _check_inside(config, folder)
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        _add_file(archive, CONFIG_NAME, tomlkit.dumps(portable_tables(config)).encode())
        for name in sorted(_file_names(folder)) if config.user_code() else ():
            _add_file(archive, name, files.read_bytes(folder / name))
            if written.tell() > MAX_ARCHIVE_BYTES:
                raise ConfigError(
                    phrase(
                        "The code in {folder} is larger than {most}.",
                        folder=folder,
                        most=format_bytes(MAX_ARCHIVE_BYTES),
                    ),
                    code="too-large",
                    path="folder",
                    advice=phrase(
                        "Use .gitignore to exclude files that are not code, or move the "
                        "configuration to a folder that contains only code."
                    ),
                )
    # mtime=0: the archive's hash, which names its folder, must depend on the contents only.
    return gzip.compress(written.getvalue(), compresslevel=1, mtime=0)


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the names of the regular files to pack."""
    for number, name in enumerate(_git_files(folder) or _user_files(folder)):
        if number >= _MAX_FILES:
            return
        path = folder / name
        # A file with the configuration's name in the archive would replace the configuration when it is
        # unpacked.
        is_file = name != CONFIG_NAME and not path.is_symlink() and files.is_regular(path)
        if is_file and path.stat().st_size <= MAX_CODE_FILE_BYTES:
            yield name


def _git_files(folder: Path) -> list[str]:
    """Return the files that git lists in the folder; an empty list if there is no git or no repository."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _user_files(folder: Path) -> Iterator[str]:
    if (lock := packages.find_lock_file(folder)) is not None:
        yield lock.name
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield str((here / name).relative_to(folder))


def _check_inside(config: RunConfig, folder: Path) -> None:
    for use in config.user_code():
        file = Path(use.rpartition(":")[0])
        if file.is_absolute() and not file.is_relative_to(folder):
            raise ConfigError(
                phrase("{file} is outside the configuration's folder {folder}.", file=file, folder=folder),
                code="outside",
                path="folder",
                advice=phrase(
                    "Move the configuration to a folder that contains all of its code, or set "
                    "its `folder` key."
                ),
            )


def unpack(archive: bytes) -> Path:
    """Unpack an archive from `pack` and return the folder.

    Raises:
        OSError, tarfile.TarError: the archive is invalid, or its files cannot be written.
    """
    folder = state_dir() / "code"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = folder / hashlib.sha256(archive).hexdigest()[:16]
    if final.is_dir():
        _mark_used(final)
        return final
    hidden = Path(tempfile.mkdtemp(prefix=".", dir=folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
            # "data" refuses paths and links that lead out of the folder.
            packed.extractall(hidden, filter="data")
        # Atomic, so that a folder with its final name is always complete.
        hidden.replace(final)
    except OSError:
        if not final.is_dir():  # another process has unpacked it meanwhile
            raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    _mark_used(final)
    with suppress(OSError):
        _remove_unused(folder)
    return final


def _mark_used(path: Path) -> None:
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _remove_unused(folder: Path) -> None:
    """Remove old folders to which no run refers; stop after `_CLEANUP_TIMEOUT_S`.

    The next cleanup removes the remaining folders.

    Raises:
        OSError: a folder of runs cannot be read, so nothing is removed.
    """
    until_s = time.monotonic() + _CLEANUP_TIMEOUT_S
    unused = {path.name: path for path in files.entries(folder) if _is_unused(path)}
    for name in _names_used_by_runs(set(unused), until_s):
        _mark_used(unused.pop(name))
    for path in unused.values():
        if time.monotonic() > until_s:  # otherwise not all runs may have been checked
            return
        with suppress(OSError):
            _remove_folder(path)


def _remove_folder(path: Path) -> None:
    """Rename an unused folder to a temporary name before removing it, because the removal may stop halfway.

    Raises:
        OSError: the folder cannot be renamed.
    """
    hidden = Path(tempfile.mkdtemp(prefix=".", dir=path.parent))
    try:
        if _is_unused(path):
            path.replace(hidden)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _is_unused(path: Path) -> bool:
    """Check whether a folder was last used more than `_KEEP_UNUSED_S` ago.

    If a wrong clock has put the time of last use in the future, that time is set to now.
    """
    try:
        status = path.lstat()
    except OSError:
        return False
    if _UNPACKED_NAME.fullmatch(path.name) is None or not stat.S_ISDIR(status.st_mode):
        return False
    if status.st_mtime > time.time():
        _mark_used(path)
    return time.time() - status.st_mtime > _KEEP_UNUSED_S


def _names_used_by_runs(names: set[str], until_s: float) -> Iterator[str]:
    """Yield each of `names` that the configuration of a local run contains, and remove it from `names`.

    Stop when `time.monotonic()` reaches `until_s`.
    """
    for run in _run_folders() if names else ():
        if not names or time.monotonic() > until_s:
            return
        for file in files.entries(run) if is_run(run) else ():
            if file.name.startswith("config.") and file.name.endswith(".toml"):
                with suppress(OSError):
                    text = files.read_bytes(file, files.MAX_TOML_BYTES)
                    used_names = {name for name in names if name.encode() in text}
                    names -= used_names
                    yield from used_names


def _run_folders() -> Iterator[Path]:
    """Yield all entries of the folders where runs were created, since any entry may be a renamed run.

    Raises:
        OSError: a folder cannot be read.
    """
    for folder in dict.fromkeys([*(path.parent for path in indexed_paths()), default_runs_folder()]):
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            yield from folder.iterdir()
