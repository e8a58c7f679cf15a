"""List, check and commit the files of checkpoints, without importing torch.

    checkpoints/<step>/  ...  COMMIT    lists every file with its length and checksum; written last

A directory without COMMIT does not count as a checkpoint. Files have checksums because readers of most file
formats do not detect a zeroed page. checkpoint/store.py writes and restores the contents.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rankdeck.base import files
from rankdeck.base.errors import RankdeckError
from rankdeck.base.parsing import check_depth, decode_document, parse_json
from rankdeck.base.phrases import Phrase, phrase

COMMIT = "COMMIT"
PROGRESS = "progress.json"
_CHUNK_BYTES = 1 << 20
# The last alternative matches temporary files that an interrupted write left (base/files.py).
_CHECKPOINT_FILE = re.compile(r"progress\.json|.+\.safetensors(\.index\.json)?|\..+\.new")
_STEP = re.compile(r"[0-9]{1,15}")
_MAX_RANKS = 1 << 16
_MAX_PROGRESS_BYTES = 32 << 20


UNSAVABLE_STATE = "state-cannot-be-saved"
"""Error code for a save that would fail every time, regardless of the disk."""


class CheckpointError(RankdeckError):
    """Error for a checkpoint that cannot be written or read; the run continues, or an older checkpoint is
    used."""

    code = "checkpoint"


class Progress(msgspec.Struct):
    """Training progress in a checkpoint. Random states are restored only for the same `layout` of ranks.

    `values` are the merged values of all ranks; `own[r]` are the values of rank r that differ from these.
    `lost` names the state that was not saved. Checkpoints of older versions have no extra state in
    `values` (`has_values_beside` is False).
    """

    step: int
    layout: str
    world_size: Annotated[int, msgspec.Meta(ge=1, le=_MAX_RANKS)]
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    own: list[dict[str, Any]] = msgspec.field(default_factory=list)
    lost: list[str] = msgspec.field(default_factory=list)
    has_values_beside: bool = False

    def __post_init__(self) -> None:
        check_depth(self.values, self.own)


_progress = msgspec.json.Decoder(Progress)


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint on disk."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name)

    def progress(self) -> Progress:
        return decode_document(_progress.decode, files.read_bytes(self.path / PROGRESS, _MAX_PROGRESS_BYTES))

    def find_damage(self) -> Phrase | None:
        """Check the files against COMMIT; return a description of the first damage found, or None."""
        try:
            commit = _read_commit(self.path)
        except ValueError:
            return phrase("{file} cannot be read", file=COMMIT)
        for name, (num_bytes, expected) in commit.items():
            file = self.path / name
            try:
                if not files.is_regular(file):
                    return phrase("{file} is missing", file=name)
                if (size := file.stat().st_size) != num_bytes:
                    return phrase(
                        "{file} has {size} bytes instead of {whole}", file=name, size=size, whole=num_bytes
                    )
                if file_checksum(file) != expected:
                    return phrase("{file} does not match its checksum", file=name)
            except OSError as error:
                return phrase("{file} cannot be read: {why}", file=name, why=error.strerror)
        try:
            step = self.progress().step
        except (OSError, msgspec.DecodeError):
            return phrase("{file} cannot be read", file=PROGRESS)
        if step != self.step:
            return phrase("it contains the state of step {step}", step=step)
        # Readers of a checkpoint load all of these files, not only those that COMMIT lists.
        strange = sorted(file.name for file in self.path.glob("*.safetensors") if file.name not in commit)
        return phrase("{file} is not part of the checkpoint", file=strange[0]) if strange else None


def list_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints that have a COMMIT, newest first; their files are not checked (see
    `Checkpoint.find_damage`)."""
    paths = files.entries(folder)
    named = [path for path in paths if _STEP.fullmatch(path.name) and files.is_regular(path / COMMIT)]
    return sorted(map(Checkpoint, named), key=lambda checkpoint: checkpoint.step, reverse=True)


def list_unfinished(folder: Path) -> list[Path]:
    """Return the folders of checkpoints without a COMMIT: partly written or partly removed."""
    named = [path for path in files.entries(folder) if _STEP.fullmatch(path.name)]
    return [path for path in named if not files.is_regular(path / COMMIT)]


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, complete or partial. If its folder contains other files, they and the folder
    remain.

    COMMIT is removed first, so that a partial checkpoint never looks complete. Files that cannot be removed
    remain.
    """
    # Never follow a link: its target may be outside the run directory.
    if path.is_symlink():
        return
    with contextlib.suppress(OSError):
        (path / COMMIT).unlink(missing_ok=True)
        for file in path.iterdir():
            if _CHECKPOINT_FILE.fullmatch(file.name):
                file.unlink()
        path.rmdir()


def newest_intact(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest intact checkpoint, and descriptions of the damage to newer checkpoints."""
    complaints: list[str] = []
    for checkpoint in list_checkpoints(folder):
        damage = checkpoint.find_damage()
        if damage is None:
            return checkpoint, complaints
        complaints.append(
            phrase("The checkpoint of step {step} is damaged: {damage}.", step=checkpoint.step, damage=damage)
        )
    return None, complaints


def committed_files(path: Path) -> dict[str, tuple[int, str]]:
    """Return name -> (bytes, checksum) of a checkpoint's files; empty if its COMMIT is damaged."""
    try:
        return _read_commit(path)
    except ValueError:
        return {}


def check_file_names(listed: Iterable[str]) -> None:
    """Check that a COMMIT, possibly another host's, lists only names of checkpoint files, without folders.

    Raises:
        ValueError: a name is not that of a checkpoint file.
    """
    if not all("/" not in name and _CHECKPOINT_FILE.fullmatch(name) for name in listed):
        raise ValueError("a listed name is not that of a checkpoint file")


def _read_commit(path: Path) -> dict[str, tuple[int, str]]:
    """Return the files that COMMIT lists.

    Raises:
        ValueError: COMMIT itself is damaged.
    """
    try:
        commit = parse_json(files.read_bytes(path / COMMIT))
        listed = {name: (int(entry[0]), str(entry[1])) for name, entry in commit["files"].items()}
        if commit["checksum"] != data_checksum(json.dumps(listed, sort_keys=True).encode()):
            raise ValueError
        check_file_names(listed)
    # COMMIT may contain any JSON, so any error of these lines means that it is damaged.
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise ValueError from None
    return listed


def _chunks(path: Path) -> Iterator[bytes]:
    with open(files.open_regular(path), "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def file_checksum(path: Path) -> str:
    running = hashlib.blake2b(digest_size=16)
    for chunk in _chunks(path):
        running.update(chunk)
    return running.hexdigest()


def data_checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def write_commit(path: Path, listed: Mapping[str, tuple[int, str]]) -> None:
    """Write COMMIT. `listed` maps each file name to (bytes, checksum); the files must already be on disk."""
    body = json.dumps(listed, sort_keys=True)
    text = json.dumps({"files": listed, "checksum": data_checksum(body.encode())}, sort_keys=True)
    files.sync_to_disk(path)
    # The order matters: a COMMIT on disk must imply that the entries of all files are on disk too.
    files.replace_file(path / COMMIT, text, sync=True)
    files.sync_to_disk(path)
    files.sync_to_disk(path.parent)
