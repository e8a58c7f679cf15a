"""Cache the rows of runs and races between reads and across program starts, so that a list of thousands of
runs appears immediately.

The cache is never authoritative: a row is valid only as long as the names, sizes, times and inodes of its
run's files do not change. Each folder of runs has one cache file; a file that is damaged, of another version
or of another folder is ignored. The cache file is replaced as a whole, after merging in the rows that another
program wrote in the meantime. If it cannot be written, rows are read from the runs each time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import fields, replace
from hashlib import blake2b
from pathlib import Path

import msgspec

import rankdeck
from rankdeck.base import files
from rankdeck.base.home import cache_dir
from rankdeck.run.race_row import race_info
from rankdeck.run.row import RaceFacts, RunInfo, RunMetrics, read_info
from rankdeck.run_dir import RaceDir, RunDir

_INDEXED_SUFFIXES = (".toml", ".json", ".jsonl")
# A file that changes twice within one tick of the file system's clock keeps its stamp, so rows of files
# younger than this are not cached.
_SETTLED_NS = 2_000_000_000
_OUTCOMES_WITHOUT_RECORD = ("running", "lost")
_CHECKSUM_BYTES = 16
_MAX_BYTES = 16 << 20  # about twenty thousand runs

FileStamp = bytes
_IndexRows = dict[str, tuple[FileStamp, bytes]]


class _Index(msgspec.Struct, array_like=True):
    """Contents of a cache file. `rows` maps the name of a run directory to its stamp and encoded row."""

    shape: str
    folder: str
    rows: _IndexRows


def _index_shape() -> str:
    names = [field.name for kind in (RunInfo, RunMetrics, RaceFacts) for field in fields(kind)]
    # Stored in the file: a cache of another version, or with other fields, is ignored.
    return " ".join(["rows-1", rankdeck.__version__, *names])


_encode = msgspec.msgpack.Encoder(enc_hook=os.fspath).encode
_decode = msgspec.msgpack.Decoder(RunInfo, dec_hook=lambda kind, value: kind(value)).decode
_decode_index = msgspec.msgpack.Decoder(_Index).decode


def read_stamp(run: Path) -> tuple[FileStamp, int]:
    """Return a stamp that changes with a run's files, and the time of the latest change (Unix ns)."""
    entries: list[tuple[str, int, int, int, int]] = []
    for folder in (os.fspath(run), os.path.join(run, "events")):  # noqa: PTH118 - thousands of them
        try:
            with os.scandir(folder) as scan:
                entries.extend(
                    sorted(
                        map(_entry_facts, (entry for entry in scan if entry.name.endswith(_INDEXED_SUFFIXES)))
                    )
                )
        except OSError:
            pass
        entries.append(("", 0, 0, 0, 0))
    youngest = max(max(facts[2], facts[3]) for facts in entries)
    return blake2b(
        repr(entries).encode("utf-8", "surrogatepass"), digest_size=_CHECKSUM_BYTES
    ).digest(), youngest


def is_unsettled(changed_ns: int) -> bool:
    """Check whether a change at `changed_ns` (Unix time) is so recent that another change could have the same
    time."""
    return time.time_ns() - changed_ns < _SETTLED_NS


def _entry_facts(entry: os.DirEntry[str]) -> tuple[str, int, int, int, int]:
    try:
        stat = entry.stat()
    except OSError:
        return entry.name, -1, 0, 0, 0
    # Unlike mtime, ctime cannot be set back by a program.
    return entry.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class RunRows:
    """Current rows of runs and races. `save` writes the new rows to the cache."""

    def __init__(self) -> None:
        self._rows: dict[Path, tuple[FileStamp, RunInfo]] = {}
        self._index_rows: dict[Path, _IndexRows] = {}
        self._new_rows: dict[Path, dict[str, tuple[FileStamp, bytes]]] = {}

    def info(self, run: RunDir | RaceDir) -> RunInfo:
        """Return the row of a run or a race, read again if its files have changed."""
        stamp, youngest = read_stamp(run.path)
        row = self._load(run.path, stamp)
        # A folder that was assembled by hand may be both a run and a race.
        if row is None or (row.race is not None) != isinstance(run, RaceDir):
            row = race_info(run) if isinstance(run, RaceDir) else read_info(run)
            self._store(row, stamp, youngest)
        if isinstance(run, RaceDir) or row.outcome not in _OUTCOMES_WITHOUT_RECORD:
            return row
        outcome = run.outcome()  # depends on the lock, which the stamp does not cover
        return row if outcome == row.outcome else replace(row, outcome=outcome)

    def with_metrics(self, run: RunDir, metrics: RunMetrics, stamp: tuple[FileStamp, int]) -> RunInfo:
        """Return the run's row, with `metrics` added if the run's files have not changed since `stamp`.

        The caller took `stamp` with `read_stamp` before it read the state from which `metrics` come.
        """
        info = self.info(run)
        if read_stamp(run.path)[0] == stamp[0]:
            info = replace(info, metrics=metrics)
            self._store(info, *stamp)
        return info

    def forget(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self._rows.pop(path, None)

    def _load(self, path: Path, stamp: FileStamp) -> RunInfo | None:
        loaded = self._rows.get(path)
        if loaded is not None:
            return loaded[1] if loaded[0] == stamp else None
        folder = path.parent
        if folder not in self._index_rows:
            self._index_rows[folder] = read_index(folder)
        cached = self._index_rows[folder].get(path.name)
        if cached is None or cached[0] != stamp:
            return None
        try:
            info = _decode(cached[1])
        except (msgspec.MsgspecError, ValueError):
            return None
        if info.path != path:
            return None
        self._rows[path] = stamp, info
        return info

    def _store(self, info: RunInfo, stamp: FileStamp, youngest: int) -> None:
        if info.outcome == "running" or is_unsettled(youngest):
            self._rows.pop(info.path, None)
            return
        self._rows[info.path] = stamp, info
        try:
            row = _encode(info)
        except (UnicodeEncodeError, OverflowError):
            return  # a path that cannot be encoded: not cached
        self._new_rows.setdefault(info.path.parent, {})[info.path.name] = stamp, row

    @property
    def num_unsaved(self) -> int:
        return sum(map(len, self._new_rows.values()))

    def save(self) -> None:
        """Merge the new rows into the cache, and drop the rows of removed runs."""
        # Read each file again: another program may have added rows in the meantime.
        for folder, fresh in self._new_rows.items():
            rows = read_index(folder) | fresh
            here = _folder_names(folder)
            self._index_rows[folder] = rows = {name: row for name, row in rows.items() if name in here}
            _write_index(folder, rows)
        self._new_rows.clear()


def _folder_names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names are all that is asked for
    except OSError:
        return set()


def index_file(folder: Path) -> Path:
    """Return the cache file for a folder of runs."""
    name = blake2b(os.fsencode(folder), digest_size=_CHECKSUM_BYTES).hexdigest()
    return cache_dir() / "rows" / f"{name}.index"


def read_index(folder: Path) -> _IndexRows:
    """Return a folder's cached rows; empty if the cache file is missing, damaged, or was written for another
    folder or by another version."""
    try:
        data = files.read_bytes(index_file(folder), _MAX_BYTES)
        if data[:_CHECKSUM_BYTES] != _checksum(data[_CHECKSUM_BYTES:]):
            return {}
        index = _decode_index(memoryview(data)[_CHECKSUM_BYTES:])
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}
    return index.rows if (index.shape, index.folder) == (_index_shape(), str(folder)) else {}


def _write_index(folder: Path, rows: _IndexRows) -> None:
    try:
        data = msgspec.msgpack.encode(_Index(_index_shape(), str(folder), rows))
        files.write_atomic(index_file(folder), _checksum(data) + data)
    except (OSError, UnicodeEncodeError):
        pass  # without a cache, rows are only slower


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
