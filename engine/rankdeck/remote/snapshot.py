"""A configuration and the code that it names, as one archive that another host unpacks.

The code is the configuration's folder: what git knows there or would add, else its Python files. Nothing that
is large goes along: data never moves by itself. The folder that it is unpacked to is named by its contents,
so the same code is there once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import tomlkit

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.home import state_dir
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.config.over_hosts import portable

CONFIG = "rankdeck.config.toml"
"""What the configuration is called in the archive."""
LARGEST_FILE_BYTES = 4 << 20
LARGEST_BYTES = 64 << 20
_MOST_FILES = 10_000
_PASSED_OVER = {"__pycache__", "node_modules", "runs", "venv"}


def pack(config: RunConfig) -> bytes:
    """The archive, the same bytes for the same contents.

    Raises:
        ConfigError: there is too much code, or some of it is outside of the configuration's folder.
    """
    folder = Path(config.folder or ".").resolve()
    _check_inside(config, folder)
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        _add(archive, CONFIG, tomlkit.dumps(portable(config)).encode())
        for name in sorted(_names(folder)) if config.own_code() else ():
            _add(archive, name, files.read_bytes(folder / name))
            if written.tell() > LARGEST_BYTES:
                raise ConfigError(
                    phrase(
                        "The code in {folder} is larger than {most}.",
                        folder=folder,
                        most=format_bytes(LARGEST_BYTES),
                    ),
                    code="too-large",
                    path="folder",
                    advice=phrase(
                        "Leave what is no code out of git's view with .gitignore, or put the "
                        "configuration next to the code alone."
                    ),
                )
    return gzip.compress(written.getvalue(), compresslevel=1, mtime=0)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _names(folder: Path) -> Iterator[str]:
    """Regular files of the folder that go along."""
    for number, name in enumerate(_known_to_git(folder) or _python_files(folder)):
        if number >= _MOST_FILES:
            return
        path = folder / name
        is_file = name != CONFIG and not path.is_symlink() and files.is_regular(path)
        if is_file and path.stat().st_size <= LARGEST_FILE_BYTES:
            yield name


def _known_to_git(folder: Path) -> list[str]:
    """Below the folder; empty where it is not git's, or there is no git."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]


def _python_files(folder: Path) -> Iterator[str]:
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _PASSED_OVER
            and not (here / name / "pyvenv.cfg").exists()
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield str((here / name).relative_to(folder))


def _check_inside(config: RunConfig, folder: Path) -> None:
    for use in config.own_code():
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
    return final
