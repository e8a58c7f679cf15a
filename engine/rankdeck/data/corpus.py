"""Turns text files into one cached file of tokens, built once and memory-mapped by all ranks.

    files (sorted) --stat--> fingerprint --known?--> content key --> <cache>/text/<key>/tokens.bin

Text is read as bytes. With a vocabulary of 256 the tokens are the bytes themselves. For a larger vocabulary,
bpe.py trains BPE in a separate process, because the tokenizer's threads must not live in a process that forks
ranks. Several processes may build at the same time: each writes to its own folder, and the first rename wins.
This module does not import torch. Read text.py next.
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
"""Limit on the total size of @stdlib's files: enough text to learn from, and tokenized within two seconds.
Other paths have no limit."""

NUM_BYTES = 256
PIECE_BYTES = 64 * 1024
# Part of every cache key: a new format invalidates cached tokens.
FORMAT_VERSION = "1"
# Age from which an unfinished build is taken for a killed one.
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
    """Return the smallest unsigned dtype that holds every token id of a vocabulary of this size."""
    return np.dtype(np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.uint32)


def ensure_tokens(path: str, vocabulary: int) -> Path:
    """Return the token file of the text at `path` (a file, a folder or @stdlib). Build the token file if the
    cache does not have it.

    Raises:
        DataError: the path cannot be read or contains no text, or the cache cannot be written.
    """
    files = corpus_files(path)
    folder = cache_dir() / "text"
    key_file = folder / "seen" / _fingerprint(files, vocabulary)
    try:
        tokens = folder / key_file.read_text() / "tokens.bin"
        if tokens.is_file():
            return tokens
    except OSError:
        pass
    key = _content_key(files, vocabulary)
    tokens = folder / key / "tokens.bin"
    try:
        if not tokens.is_file():
            _build_tokens(files, vocabulary, tokens.parent)
        # Next time, the fingerprint leads to the key without reading the files.
        write_atomic(key_file, key)
    except OSError as error:
        raise DataError(
            phrase(
                "The tokens of {path} cannot be written to the cache {folder}: {why}.",
                path=path,
                folder=folder,
                why=error.strerror or error,
            ),
            path=str(folder),
            advice=phrase("Free some disk space, or set RANKDECK_HOME to a writable folder."),
        ) from error
    return tokens


def corpus_files(path: str) -> list[Path]:
    """Return the text files at `path`, sorted, without hidden ones. For @stdlib, stop at STDLIB_CAP_BYTES.

    Raises:
        DataError: there is nothing to read.
    """
    if path == STDLIB:
        return _stdlib_files()
    root = Path(path)
    try:
        files = [root] if root.is_file() else list(_walk(root))
        if not root.exists():
            raise FileNotFoundError(2, "No such file or directory")
    except OSError as error:
        raise _unreadable(root, error) from error
    if not files:
        raise DataError(
            phrase("data.args.path = {path} contains no files.", path=path),
            path="data.args.path",
            advice=phrase("Specify a text file, a folder of text files, or {stdlib}.", stdlib=STDLIB),
        )
    return files


def read_pieces(files: Iterable[Path]) -> Iterator[bytes]:
    """Yield the text in pieces of about PIECE_BYTES that end at a line end. Files that look binary are
    skipped.

    Raises:
        DataError: a file cannot be read.
    """
    for file in files:
        try:
            with file.open("rb") as stream:
                piece = stream.read(PIECE_BYTES)
                # A NUL byte in the first piece marks a binary file.
                if b"\0" in piece:
                    continue
                while piece:
                    # Complete the line; a file without line ends is cut at PIECE_BYTES.
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
            phrase("This Python installation does not include the standard library's source."),
            path="data.args.path",
            advice=phrase("Set data.args.path to a text file or a folder of text files."),
        )
    return files


def _walk(root: Path, suffix: str = "") -> Iterator[Path]:
    """Yield the files below `root` in sorted order, a folder's files before its subfolders."""

    def fail(error: OSError) -> None:
        raise error

    for folder, names, files in os.walk(root, onerror=fail):
        # In place, so that os.walk skips the other folders and keeps this order.
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
            "Check the path and its permissions. It must be a text file, a folder of text "
            "files, or {stdlib}.",
            stdlib=STDLIB,
        ),
    )


def _fingerprint(files: Sequence[Path], vocabulary: int) -> str:
    """Return a digest that changes when a file is added, removed, resized or modified; the contents are not
    read."""
    digest = hashlib.blake2b(f"{FORMAT_VERSION} {vocabulary}\n".encode(), digest_size=16)
    for file in files:
        try:
            stat = file.stat()
        except OSError as error:
            raise _unreadable(file, error) from error
        digest.update(
            # File names need not be valid UTF-8.
            f"{file.absolute()}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _content_key(files: Iterable[Path], vocabulary: int) -> str:
    digest = hashlib.blake2b(f"{FORMAT_VERSION} {vocabulary}\n".encode(), digest_size=16)
    for file in files:
        try:
            with file.open("rb") as stream:
                # Contents only, so that copies of the same files share their tokens.
                digest.update(hashlib.file_digest(stream, "blake2b").digest())
        except OSError as error:
            raise _unreadable(file, error) from error
    return digest.hexdigest()


def _build_tokens(files: Sequence[Path], vocabulary: int, folder: Path) -> None:
    """Write the tokens to a temporary folder and rename it to `folder`, unless another process was first."""
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
            # The rename fails if another process was first; its tokens are the same.
            if not (folder / "tokens.bin").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build_bpe(files: Sequence[Path], vocabulary: int, folder: Path) -> None:
    request = {"files": [str(file) for file in files], "vocabulary": vocabulary, "folder": str(folder)}
    # A separate process: the tokenizer's threads must not live in a process that forks ranks. -P keeps
    # modules in the current folder from shadowing imports.
    command = [sys.executable, "-P", "-m", "rankdeck.data.bpe"]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(
            phrase(
                "The vocabulary of {vocabulary} tokens could not be built: {last}",
                vocabulary=vocabulary,
                last=last,
            ),
            path="data.args.vocabulary",
            advice=phrase("Check that the disk is not full, or use vocabulary = 256 (bytes)."),
        )


def _remove_stale(folder: Path) -> None:
    """Remove unfinished folders left behind by killed processes."""
    for left in folder.glob("making-*"):
        try:
            if time.time() - left.stat().st_mtime > STALE_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)
        except OSError:
            pass
