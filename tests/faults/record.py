"""What trials have come to, one JSON line each: a suite that was cut off goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec


class Judged(Protocol):
    """What is not as it must be, nothing where it is right."""

    wrong: list[str]


T = TypeVar("T", bound=Judged)


class Recorded(Generic[T]):
    """A file of records of one type, each known by a key."""

    def __init__(self, file: Path, kind: type[T], key: Callable[[T], str]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._key = file, key
        lines = file.read_bytes().splitlines() if file.exists() else []
        # Whoever was cut off may have left half a line.
        records = (record for line in lines if (record := _read(line, kind)) is not None)
        self._records: dict[str, T] = {key(record): record for record in records}

    def __iter__(self) -> Iterator[T]:
        return iter(self._records.values())

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def add(self, record: T) -> None:
        self._records[self._key(record)] = record
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")

    def retain(self, keys: Iterable[str]) -> None:
        """Forget all others."""
        self._records = {key: self._records[key] for key in keys if key in self._records}
        self._file.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in self))

    @property
    def right(self) -> list[str]:
        """The keys of those that are right."""
        return [key for key, record in self._records.items() if not record.wrong]


def _read(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError:
        return None
