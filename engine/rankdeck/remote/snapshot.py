"""A configuration and the code that it names, as one archive that another host unpacks.

The code is the configuration's folder: what git knows there or would add, else its Python files and its lock
file. Nothing that is large goes along: data never moves by itself. The folder that it is unpacked to is named
by its contents, so the same code is there once; it stays as long as a run there names it, since that may be
resumed at any time, and a month longer.
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
"""What the configuration is called in the archive."""
MAX_CODE_FILE_BYTES = 4 << 20
MAX_ARCHIVE_BYTES = 64 << 20
_MAX_FILES = 10_000
_KEEP_UNUSED_S = 30 * 86_400.0
_CLEANUP_TIMEOUT_S = 2.0
"""Whoever waits for the archive is answered before it takes the host for silent."""
_UNPACKED_NAME = re.compile(r"[0-9a-f]{16}|\.\w{8}", re.ASCII)
"""What is unpacked, and what is half so, or half removed."""
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "runs", "venv"}


def pack(config: RunConfig) -> bytes:
    """The archive, the same bytes for the same contents.

    Raises:
        ConfigError: there is too much code, or some of it is outside of the configuration's folder.
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
                        "Leave what is no code out of git's view with .gitignore, or put the "
                        "configuration next to the code alone."
                    ),
                )
    return gzip.compress(written.getvalue(), compresslevel=1, mtime=0)


def _add_file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _file_names(folder: Path) -> Iterator[str]:
    """Regular files of the folder that go along."""
    for number, name in enumerate(_git_files(folder) or _user_files(folder)):
        if number >= _MAX_FILES:
            return
        path = folder / name
        is_file = name != CONFIG_NAME and not path.is_symlink() and files.is_regular(path)
        if is_file and path.stat().st_size <= MAX_CODE_FILE_BYTES:
            yield name


def _git_files(folder: Path) -> list[str]:
    """Below the folder; empty where it is not git's, or there is no git."""
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
                phrase("{file} is outside of the configuration's folder {folder}.", file=file, folder=folder),
                code="outside",
                path="folder",
                advice=phrase(
                    "Put the configuration into a folder that holds all of its code, or set folder."
                ),
            )


def unpack(archive: bytes) -> Path:
    """The folder with what `pack` made, on the host that got it.

    Raises:
        OSError, tarfile.TarError: it is none, or cannot be written.
    """
    place = state_dir() / "code"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    final = place / hashlib.sha256(archive).hexdigest()[:16]
    if final.is_dir():
        _mark_used(final)
        return final
    hidden = Path(tempfile.mkdtemp(prefix=".", dir=place))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
            packed.extractall(hidden, filter="data")
        hidden.replace(final)
    except OSError:
        if not final.is_dir():  # another one was quicker
            raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    _mark_used(final)
    with suppress(OSError):
        _remove_unused(place)
    return final


def _mark_used(path: Path) -> None:
    with suppress(OSError):
        os.utime(path, follow_symlinks=False)


def _remove_unused(place: Path) -> None:
    """What a run names is in use. It takes a moment at most: what is left then is for the next time.

    Raises: OSError, a folder of runs cannot be read, and all stays.
    """
    until_s = time.monotonic() + _CLEANUP_TIMEOUT_S
    unused = {path.name: path for path in files.entries(place) if _is_unused(path)}
    for name in _names_used_by_runs(set(unused), until_s):
        _mark_used(unused.pop(name))
    for path in unused.values():
        if time.monotonic() > until_s:  # or not all runs were looked at
            return
        with suppress(OSError):
            _remove_folder(path)


def _remove_folder(path: Path) -> None:
    """Under a name that nobody unpacks to: half of it may be all that can be removed. Raises: OSError."""
    hidden = Path(tempfile.mkdtemp(prefix=".", dir=path.parent))
    try:
        if _is_unused(path):
            path.replace(hidden)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def _is_unused(path: Path) -> bool:
    """For so long; where a clock was ahead once, from now on."""
    try:
        told = path.lstat()
    except OSError:
        return False
    if _UNPACKED_NAME.fullmatch(path.name) is None or not stat.S_ISDIR(told.st_mode):
        return False
    if told.st_mtime > time.time():
        _mark_used(path)
    return time.time() - told.st_mtime > _KEEP_UNUSED_S


def _names_used_by_runs(names: set[str], until_s: float) -> Iterator[str]:
    """Those that are in the configuration of a run of this host, each once, until then."""
    for run in _run_folders() if names else ():
        if not names or time.monotonic() > until_s:
            return
        for file in files.entries(run) if is_run(run) else ():
            if file.name.startswith("config.") and file.name.endswith(".toml"):
                with suppress(OSError):
                    text = files.read_bytes(file, files.MAX_TOML_BYTES)
                    found = {name for name in names if name.encode() in text}
                    names -= found
                    yield from found


def _run_folders() -> Iterator[Path]:
    """All that is where runs were begun: one may have been renamed. Raises: OSError, nobody can tell."""
    for folder in dict.fromkeys([*(path.parent for path in indexed_paths()), default_runs_folder()]):
        with suppress(FileNotFoundError, NotADirectoryError, ValueError):
            yield from folder.iterdir()
