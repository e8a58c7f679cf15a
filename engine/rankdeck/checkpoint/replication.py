"""Copy a checkpoint's files, which several hosts write, to the hosts that lack them.

The ranks of each host write their own files. Once these are copied, every host has all files, so if hosts are
lost, the remaining ones can resume, even if only one is left. One rank per host takes part.
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
"""File name -> (bytes, checksum)."""


@dataclass(frozen=True)
class HostLeaders:
    """Process group of the host leaders, one rank per host; `index` is this rank's position in it."""

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
        """Copy each file in `listed` from the first host that has it to the `folder` of every host that lacks
        it.

        Raises: OSError, on a host that could not read or write; all hosts still take part until the end.
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
                    raise OSError(errno.EIO, phrase("{file} was damaged during the transfer", file=name))
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _relay(self, file: Path, size: int, owner: int, *, writes: bool) -> None:
        """Broadcast a file in chunks from the host leader with index `owner`; if `writes` is True, write the
        chunks to this host's own file.

        Raises: OSError, but only after every chunk has been sent or received.
        """
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
                    self.broadcast(chunk, owner)  # the receivers notice by its checksum
        if failed is not None:
            raise failed
        if writes:
            files.sync_to_disk(file)

    def newest_intact(self, folder: Path) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint of which every file is intact on at least one host, and notes on newer
        checkpoints that are damaged.

        Before returning, copy to each host the files of that checkpoint that the host lacks.

        Raises: OSError, if the checkpoint could not be copied to all hosts; ValueError, if a host lists a
        name that no checkpoint file can have.
        """
        local = {checkpoint.step: committed_files(checkpoint.path) for checkpoint in list_checkpoints(folder)}
        committed: dict[int, FileList] = {}
        for listing in self.gather({step: listed for step, listed in local.items() if listed}):
            for step, listed in listing.items():
                # The names come from another host, and files are written under them.
                check_file_names(listed)
                committed[int(step)] = listed
        complaints: list[str] = []
        for step, listed in sorted(committed.items(), reverse=True):
            path = folder / str(step)
            intact = {name for name, facts in listed.items() if _is_intact(path / name, facts)}
            together = set[str]().union(*self.gather(intact))
            if lacking := sorted(set(listed) - together):
                damage = phrase("no host has an intact copy of {file}", file=lacking[0])
                complaints.append(
                    phrase("The checkpoint of step {step} is damaged: {damage}.", step=step, damage=damage)
                )
                continue
            self._fetch(path, listed, intact)
            return Checkpoint(path), complaints
        return None, complaints

    def _fetch(self, path: Path, listed: FileList, intact: set[str]) -> None:
        """Copy the listed files to the hosts without intact copies, and commit the checkpoint. `intact` has
        the names of the files that are intact on this host.

        Raises: OSError, on all hosts if any host failed.
        """
        failed: OSError | None = None
        try:
            if not path.is_dir():
                path.parent.mkdir(exist_ok=True)
                path.mkdir()
        except OSError as error:
            failed = error
        try:
            self.distribute(path, listed, intact.__contains__)
            if Checkpoint(path).find_damage() is not None:
                for file in path.glob("*.safetensors"):
                    if file.name not in listed:
                        file.unlink()
                write_commit(path, listed)
        except OSError as error:
            failed = failed or error
        # If one host fails, all do: the others would wait for it in the next collective.
        reasons = [why for why in self.gather(None if failed is None else str(failed)) if why]
        if reasons:
            raise failed or OSError(errno.EIO, reasons[0])


def _append_chunk(file: Path, start: int, chunk: Tensor) -> None:
    """Append a chunk to a file; if `start` is 0, replace the file. Raises: OSError."""
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
    """Return the group of host leaders; None on a rank that is not a leader. All ranks must call this."""
    leads: list[Any] = [None] * world_size
    dist.all_gather_object(leads, local_rank == 0)
    ranks = [number for number, is_first in enumerate(leads) if is_first]
    # gloo, because files are sent from CPU memory. All ranks must call this, even if they are not leaders.
    group = dist.new_group(ranks, backend="gloo")
    if rank not in ranks:
        return None
    return HostLeaders(group, ranks, ranks.index(rank))
