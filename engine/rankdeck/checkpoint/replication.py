"""Files of a checkpoint that is written by several hosts, brought to those that lack them.

Each host's ranks write their own. Afterwards every host has all of them: whichever is lost, another one can
go on, alone too. One rank of each host takes part.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rankdeck.base import files
from rankdeck.base.phrases import phrase
from rankdeck.checkpoint_files import (
    Checkpoint,
    check_file_names,
    committed_files,
    file_checksum,
    list_checkpoints,
    write_commit,
)

_CHUNK_BYTES = 16 << 20
FileList = Mapping[str, tuple[int, str]]
"""Name -> (bytes, checksum)."""


@dataclass(frozen=True)
class HostLeaders:
    """The ranks that lead a host each, as a group of theirs; this one is the `index`-th."""

    group: dist.ProcessGroup
    ranks: Sequence[int]
    index: int

    def gather(self, answer: Any) -> list[Any]:
        answers: list[Any] = [None] * len(self.ranks)
        dist.all_gather_object(answers, answer, group=self.group)
        return answers

    def broadcast(self, chunk: Tensor, owner: int) -> None:
        dist.broadcast(chunk, self.ranks[owner], group=self.group)

    def distribute(self, folder: Path, listed: FileList, has: Callable[[str], bool]) -> None:
        """Every host gets the files in its `folder` that it has not, from the first one that has.

        Raises: OSError, on a host that could not read or write; all of them take part to the end.
        """
        there = self.gather([name for name in listed if has(name)])
        failed: OSError | None = None
        for name, (size, expected) in listed.items():
            owners = [index for index, names in enumerate(there) if name in names]
            if not owners or len(owners) == len(self.ranks):
                continue
            try:
                self._relay(folder / name, size, owners[0], writes=self.index not in owners)
                if self.index not in owners and file_checksum(folder / name) != expected:
                    raise OSError(errno.EIO, phrase("{file} came over damaged", file=name))
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _relay(self, file: Path, size: int, owner: int, *, writes: bool) -> None:
        """Raises: OSError; whatever happens, every chunk has been sent or taken."""
        failed: OSError | None = None
        for start in range(0, size, _CHUNK_BYTES):
            chunk = torch.zeros(min(_CHUNK_BYTES, size - start), dtype=torch.uint8)
            try:
                if self.index == owner:
                    read = bytearray(files.read_at(file, start, len(chunk)))
                    chunk[: len(read)] = torch.frombuffer(read, dtype=torch.uint8)
                self.broadcast(chunk, owner)
                if writes and failed is None:
                    _append_chunk(file, start, chunk)
            except OSError as error:
                failed = failed or error
                if self.index == owner:
                    self.broadcast(chunk, owner)  # its checksum tells the others
        if failed is not None:
            raise failed
        if writes:
            files.sync_to_disk(file)

    def newest_intact(self, folder: Path) -> tuple[Checkpoint | None, list[str]]:
        """As that of one host, of what all of them have together; each has all of it afterwards.

        Raises: OSError, it could not be brought here; ValueError, a host names files of no checkpoint.
        """
        own = {one.step: committed_files(one.path) for one in list_checkpoints(folder)}
        committed: dict[int, FileList] = {}
        for known in self.gather({step: listed for step, listed in own.items() if listed}):
            for step, listed in known.items():
                check_file_names(listed)
                committed[int(step)] = listed
        complaints: list[str] = []
        for step, listed in sorted(committed.items(), reverse=True):
            path = folder / str(step)
            whole = {name for name, facts in listed.items() if _is_intact(path / name, facts)}
            together = set[str]().union(*self.gather(whole))
            if lacking := sorted(set(listed) - together):
                words = phrase("no host has {file} as it was", file=lacking[0])
                complaints.append(
                    phrase("The checkpoint of step {step} is damaged: {damage}.", step=step, damage=words)
                )
                continue
            self._fetch(path, listed, whole)
            return Checkpoint(path), complaints
        return None, complaints

    def _fetch(self, path: Path, listed: FileList, whole: set[str]) -> None:
        """Raises: OSError, on all hosts alike."""
        failed: OSError | None = None
        try:
            if not path.is_dir():
                path.parent.mkdir(exist_ok=True)
                path.mkdir()
        except OSError as error:
            failed = error
        try:
            self.distribute(path, listed, whole.__contains__)
            if Checkpoint(path).find_damage() is not None:
                for file in path.glob("*.safetensors"):
                    if file.name not in listed:
                        file.unlink()
                write_commit(path, listed)
        except OSError as error:
            failed = failed or error
        reasons = [why for why in self.gather(None if failed is None else str(failed)) if why]
        if reasons:
            raise failed or OSError(errno.EIO, reasons[0])


def _append_chunk(file: Path, start: int, chunk: Tensor) -> None:
    """Raises: OSError."""
    if start == 0:
        file.unlink(missing_ok=True)
    with file.open("ab" if start else "xb") as opened:
        opened.write(chunk.numpy().tobytes())


def _is_intact(file: Path, facts: tuple[int, str]) -> bool:
    try:
        return files.is_regular(file) and file.stat().st_size == facts[0] and file_checksum(file) == facts[1]
    except OSError:
        return False


def make_host_leaders(rank: int, world_size: int, local_rank: int) -> HostLeaders | None:
    """The leading ranks; None of a rank that leads none. Every rank calls it."""
    leads: list[Any] = [None] * world_size
    dist.all_gather_object(leads, local_rank == 0)
    ranks = [number for number, is_first in enumerate(leads) if is_first]
    group = dist.new_group(ranks, backend="gloo")
    if rank not in ranks:
        return None
    return HostLeaders(group, ranks, ranks.index(rank))
