"""From files of text to one file of tokens in the cache, made once and shared by all ranks as a memory map.

    files (sorted) --stat--> fingerprint --seen?--> key of the contents --> <cache>/text/<key>/tokens.bin

Text is read as bytes. 256 tokens are the bytes themselves; above that a BPE vocabulary is trained and applied
by bpe.py, in a process of its own: its threads must not live in a process that will fork ranks. Several
processes may do all this at once: each writes to a folder of its own, and the first to rename it wins. This
module knows no torch. Read text.py next.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from rankdeck.base.errors import DataError
from rankdeck.base.files import write_atomic
from rankdeck.base.home import cache_dir
from rankdeck.base.phrases import phrase

STDLIB = "@stdlib"
STDLIB_CAP_BYTES = 8_000_000
"""@stdlib takes its first files up to this size: enough to learn from, and tokenized within two seconds.
Other paths are not capped.
"""

NUM_BYTES = 256
PIECE_BYTES = 64 * 1024
FORMAT_VERSION = "1"
STALE_AFTER_S = 3600.0

# Folders that differ between distributions of Python, or hold no text to learn from.
_SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "site-packages",
    "test",
    "tests",
    "turtledemo",
}


def token_dtype(vocabulary: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned type that holds every token."""
    return np.dtype(np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.uint32)


def ensure_tokens(path: str, vocabulary: int) -> Path:
    """The file of tokens for the text at `path` (a file, a folder or @stdlib), made now if it is not in the
    cache.

    Raises: DataError for a path that cannot be read, holds no text, or a cache that cannot be written.
    """
    files = corpus_files(path)
    folder = cache_dir() / "text"
    seen = folder / "seen" / _fingerprint(files, vocabulary)
    try:
        tokens = folder / seen.read_text() / "tokens.bin"
        if tokens.is_file():
            return tokens
    except OSError:
        pass
    key = _content_key(files, vocabulary)
    tokens = folder / key / "tokens.bin"
    try:
        if not tokens.is_file():
            _build_tokens(files, vocabulary, tokens.parent)
        write_atomic(seen, key)
    except OSError as error:
        raise DataError(
            phrase(
                "The tokens of {path} cannot be written to the cache {folder}: {why}.",
                path=path,
                folder=folder,
                why=error.strerror or error,
            ),
            path=str(folder),
            advice=phrase("Free some space, or set RANKDECK_HOME to a folder that can be written."),
        ) from error
    return tokens


def corpus_files(path: str) -> list[Path]:
    """The files of a text, sorted; hidden ones are left out, and for @stdlib all but the first
    STDLIB_CAP_BYTES.

    Raises: DataError when there is nothing to read.
    """
    if path == STDLIB:
        return _stdlib_files()
    root = Path(path)
    try:
        files = [root] if root.is_file() else list(_walk(root))
        if not root.exists():
            raise FileNotFoundError(2, "no such file or folder")
    except OSError as error:
        raise _unreadable(root, error) from error
    if not files:
        raise DataError(
            phrase("data.args.path = {path} holds no files.", path=path),
            path="data.args.path",
            advice=phrase("Name a text file, a folder of them, or {stdlib}.", stdlib=STDLIB),
        )
    return files


def read_pieces(files: Iterable[Path]) -> Iterator[bytes]:
    """The text in pieces of about PIECE_BYTES that end with a line; a file that begins like a binary one is
    left out.

    Raises: DataError for a file that cannot be read.
    """
    for file in files:
        try:
            with file.open("rb") as stream:
                piece = stream.read(PIECE_BYTES)
                if b"\0" in piece:
                    continue
                while piece:
                    yield piece + stream.readline(PIECE_BYTES)
                    piece = stream.read(PIECE_BYTES)
        except OSError as error:
            raise _unreadable(file, error) from error


def _stdlib_files() -> list[Path]:
    files, total_bytes = [], 0
    for file in _walk(Path(sysconfig.get_path("stdlib")), suffix=".py"):
        total_bytes += file.stat().st_size
        if total_bytes > STDLIB_CAP_BYTES:
            break
        files.append(file)
    if not files:
        raise DataError(
            phrase("This Python comes without the source of its standard library."),
            path="data.args.path",
            advice=phrase("Name a text file or a folder of them as data.args.path."),
        )
    return files


def _walk(root: Path, suffix: str = "") -> Iterator[Path]:
    """Files below a folder in sorted order, files of a folder before its subfolders."""

    def fail(error: OSError) -> None:
        raise error

    for folder, names, files in os.walk(root, onerror=fail):
        names[:] = sorted(
            name for name in names if name[0] != "." and not (suffix and name in _SKIPPED_FOLDERS)
        )
        for name in sorted(files):
            if name[0] != "." and name.endswith(suffix):
                yield Path(folder, name)


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        phrase("data.args.path: {path} cannot be read: {why}.", path=path, why=error.strerror or error),
        path=str(path),
        advice=phrase(
            "Check the path and its permissions; it names a text file, a folder of them, or {stdlib}.",
            stdlib=STDLIB,
        ),
    )


def _fingerprint(files: Sequence[Path], vocabulary: int) -> str:
    """Changes when a file is added, removed, resized or written; reads no contents."""
    digest = hashlib.blake2b(f"{FORMAT_VERSION} {vocabulary}\n".encode(), digest_size=16)
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            raise _unreadable(file, error) from error
        digest.update(
            f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _content_key(files: Iterable[Path], vocabulary: int) -> str:
    digest = hashlib.blake2b(f"{FORMAT_VERSION} {vocabulary}\n".encode(), digest_size=16)
    for file in files:
        try:
            with file.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except OSError as error:
            raise _unreadable(file, error) from error
    return digest.hexdigest()


def _build_tokens(files: Sequence[Path], vocabulary: int, folder: Path) -> None:
    """Writes the tokens into a temporary folder and renames it to `folder`, unless another process has done
    so meanwhile.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    temporary = Path(tempfile.mkdtemp(prefix="making-", dir=folder.parent))
    try:
        if vocabulary == NUM_BYTES:
            with (temporary / "tokens.bin").open("wb") as stream:
                for piece in read_pieces(files):
                    stream.write(piece)
        else:
            _build_bpe(files, vocabulary, temporary)
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / "tokens.bin").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build_bpe(files: Sequence[Path], vocabulary: int, folder: Path) -> None:
    request = {"files": [str(file) for file in files], "vocabulary": vocabulary, "folder": str(folder)}
    command = [sys.executable, "-P", "-m", "rankdeck.data.bpe"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(
            phrase(
                "The vocabulary of {vocabulary} tokens could not be made: {last}",
                vocabulary=vocabulary,
                last=last,
            ),
            path="data.args.vocabulary",
            advice=phrase("Check that the disk is not full, or use vocabulary = 256 (bytes)."),
        )


def _remove_stale(folder: Path) -> None:
    """Removes what a killed process left half made."""
    for left in folder.glob("making-*"):
        try:
            if time.time() - left.stat().st_mtime > STALE_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass
