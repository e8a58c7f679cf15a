"""The rows of runs and races, kept between looks and between starts, so that thousands are listed at once.

Never the truth: a row holds as long as the files that it was made of are the same by name, length, times and
inode. What is kept is a file for each folder of runs, among the caches; one that is damaged, of another
version or of another folder counts as none. It is replaced whole, over what another program has put there
meanwhile. Where it cannot be written, rows are made each time.
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
# A file that changes twice within one tick of its clock looks the same: what is younger is not kept.
_SETTLED_NS = 2_000_000_000
_OUTCOMES_WITHOUT_RECORD = ("running", "lost")
_CHECKSUM_BYTES = 16
_MAX_BYTES = 16 << 20  # twenty thousand runs

FileStamp = bytes
_IndexRows = dict[str, tuple[FileStamp, bytes]]


class _Index(msgspec.Struct, array_like=True):
    """`rows`: by the name of a run's folder, its stamp and its encoded row."""

    shape: str
    folder: str
    rows: _IndexRows


def _index_shape() -> str:
    names = [field.name for kind in (RunInfo, RunMetrics, RaceFacts) for field in fields(kind)]
    return " ".join(["rows-1", rankdeck.__version__, *names])


_encode = msgspec.msgpack.Encoder(enc_hook=os.fspath).encode
_decode = msgspec.msgpack.Decoder(RunInfo, dec_hook=lambda kind, value: kind(value)).decode
_decode_index = msgspec.msgpack.Decoder(_Index).decode


def read_stamp(run: Path) -> tuple[FileStamp, int]:
    """What tells whether a run's files are others by now, and when the youngest changed (Unix ns)."""
    told: list[tuple[str, int, int, int, int]] = []
    for folder in (os.fspath(run), os.path.join(run, "events")):  # noqa: PTH118 - thousands of them
        try:
            with os.scandir(folder) as found:
                told.extend(
                    sorted(map(_entry_facts, (one for one in found if one.name.endswith(_INDEXED_SUFFIXES))))
                )
        except OSError:
            pass
        told.append(("", 0, 0, 0, 0))
    youngest = max(max(facts[2], facts[3]) for facts in told)
    return blake2b(
        repr(told).encode("utf-8", "surrogatepass"), digest_size=_CHECKSUM_BYTES
    ).digest(), youngest


def is_unsettled(changed_ns: int) -> bool:
    """Whether a change at `changed_ns` (Unix time) is so recent that the next one may have the same time."""
    return time.time_ns() - changed_ns < _SETTLED_NS


def _entry_facts(entry: os.DirEntry[str]) -> tuple[str, int, int, int, int]:
    try:
        stat = entry.stat()
    except OSError:
        return entry.name, -1, 0, 0, 0
    return entry.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


class RunRows:
    """The rows that were asked for, as they are now. `save` keeps what was made."""

    def __init__(self) -> None:
        self._rows: dict[Path, tuple[FileStamp, RunInfo]] = {}
        self._index_rows: dict[Path, _IndexRows] = {}
        self._new_rows: dict[Path, dict[str, tuple[FileStamp, bytes]]] = {}

    def info(self, run: RunDir | RaceDir) -> RunInfo:
        """The row of a run or a race, made anew where the run's files are others than they were."""
        stamp, youngest = read_stamp(run.path)
        known = self._load(run.path, stamp)
        # What somebody put together may be both.
        if known is None or (known.race is not None) != isinstance(run, RaceDir):
            known = race_info(run) if isinstance(run, RaceDir) else read_info(run)
            self._store(known, stamp, youngest)
        if isinstance(run, RaceDir) or known.outcome not in _OUTCOMES_WITHOUT_RECORD:
            return known
        outcome = run.outcome()  # who holds the lock, no file tells
        return known if outcome == known.outcome else replace(known, outcome=outcome)

    def with_metrics(self, run: RunDir, figures: RunMetrics, stamp: tuple[FileStamp, int]) -> RunInfo:
        """The row with what its fold says. `stamp` is from before the fold was read."""
        info = self.info(run)
        if read_stamp(run.path)[0] == stamp[0]:
            info = replace(info, metrics=figures)
            self._store(info, *stamp)
        return info

    def forget(self, gone: Iterable[Path]) -> None:
        for path in gone:
            self._rows.pop(path, None)

    def _load(self, path: Path, stamp: FileStamp) -> RunInfo | None:
        known = self._rows.get(path)
        if known is not None:
            return known[1] if known[0] == stamp else None
        folder = path.parent
        if folder not in self._index_rows:
            self._index_rows[folder] = read_index(folder)
        kept = self._index_rows[folder].get(path.name)
        if kept is None or kept[0] != stamp:
            return None
        try:
            info = _decode(kept[1])
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
            return  # a name that is no text: read each time
        self._new_rows.setdefault(info.path.parent, {})[info.path.name] = stamp, row

    @property
    def num_unsaved(self) -> int:
        return sum(map(len, self._new_rows.values()))

    def save(self) -> None:
        """Lay what is new over what is kept now; rows of runs that are gone go."""
        for folder, fresh in self._new_rows.items():
            kept = read_index(folder) | fresh
            here = _folder_names(folder)
            self._index_rows[folder] = kept = {name: row for name, row in kept.items() if name in here}
            _write_index(folder, kept)
        self._new_rows.clear()


def _folder_names(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names are all that is asked for
    except OSError:
        return set()


def index_file(folder: Path) -> Path:
    """Where the rows of a folder's runs are kept."""
    name = blake2b(os.fsencode(folder), digest_size=_CHECKSUM_BYTES).hexdigest()
    return cache_dir() / "rows" / f"{name}.index"


def read_index(folder: Path) -> _IndexRows:
    """What is kept of a folder; nothing where that is none of ours, of another version, or damaged."""
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
        pass  # a disk that refuses costs only time


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
