"""Folders that runs write into: whether files can be made and locked there, how much fits, and how fast.

What is written to measure is a file without a name, which is gone with this process however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_bytes
from rankdeck.doctor.lines import CheckLine, Verdict, not_tried, row

MIB = 1 << 20
_LITTLE, _TOO_LITTLE = 2 << 30, 200 * MIB
_CHUNK_BYTES, _MOST_BYTES, _MOST_S = 8 * MIB, 64 * MIB, 1.5
_SLOW_PER_S = 50 * MIB
_WORKERS, _AHEAD, _BATCH_BYTES = 2, 3, 32 * 3 * 224 * 224 * 4
"""For one rank: loader workers, batches of each that wait or are used, and 32 pictures of 224 x 224."""
_RANKS = 2


def look_at_runs(folder: Path) -> Iterator[CheckLine]:
    """`folder` need not be there yet: the first one above it that is, is where it would be made."""
    place = existing_folder(folder)
    evidence = (
        [_disk_of(place)]
        if place == folder
        else [
            phrase("{folder} is made by the first run, in {place}", folder=folder, place=place),
            _disk_of(place),
        ]
    )
    try:
        free, total = disk_space(place)
        evidence.append(
            phrase("{free} of {total} are free (statvfs)", free=format_bytes(free), total=format_bytes(total))
        )
        per_s = None
        with tempfile.TemporaryFile(dir=place, buffering=0) as file:
            _check_lock(file.fileno())
            if free > 4 * _MOST_BYTES:
                num_bytes, seconds = _write(file.fileno())
                per_s = num_bytes / seconds
                words = phrase(
                    "{size} written with fdatasync in {seconds:.2f} s",
                    size=format_bytes(num_bytes, 0),
                    seconds=seconds,
                )
                evidence.append(words)
    except OSError as error:
        yield _unwritable("runs", folder, error, evidence)
        return
    yield _judged(free, per_s, evidence)


def _judged(free: int, per_s: float | None, evidence: list[str]) -> CheckLine:
    room = format_bytes(free)
    if free < _LITTLE:
        verdict = Verdict.LOOK if free >= _TOO_LITTLE else Verdict.BROKEN
        finding = phrase("{size} are free; a checkpoint takes three times the weights.", size=room)
        fix = phrase("Free space, or keep runs elsewhere (RANKDECK_RUNS or --runs).")
        return row("runs", verdict, finding, *evidence, fix=fix)
    speed = phrase("not measured") if per_s is None else f"{format_bytes(per_s)}/s"
    if per_s is not None and per_s < _SLOW_PER_S:
        finding = phrase(
            "It is slow: {speed}. A checkpoint of 1 GiB takes {seconds:.0f} s.",
            speed=speed,
            seconds=(1 << 30) / per_s,
        )
        fix = phrase("Keep runs on a local disk (RANKDECK_RUNS or --runs), or save less often.")
        return row("runs", Verdict.LOOK, finding, *evidence, fix=fix)
    return row(
        "runs",
        Verdict.GOOD,
        phrase("{size} are free, written at {speed}.", size=room, speed=speed),
        *evidence,
    )


def look_at_state(folder: Path) -> Iterator[CheckLine]:
    """Where leases of GPUs and the index of runs are kept."""
    place = existing_folder(folder)
    evidence = [str(folder), _disk_of(place)]
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            _check_lock(file.fileno())
    except OSError as error:
        yield _unwritable("state", folder, error, evidence)
        return
    yield row("state", Verdict.GOOD, phrase("Files can be made and locked there."), *evidence)


def look_at_shm(folder: Path = Path("/dev/shm")) -> Iterator[CheckLine]:
    if not folder.is_dir():
        yield from not_tried(["shm"], phrase("There is no {folder} here.", folder=folder))
        return
    try:
        free, total = disk_space(folder)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(MIB))
    except OSError as error:
        finding = phrase("Nothing can be written there: {why}.", why=error.strerror)
        fix = phrase("Give it room, or set data.workers = 0.")
        yield row("shm", Verdict.BROKEN, finding, str(folder), fix=fix, command=_remount(folder))
        return
    needed = _RANKS * _WORKERS * _AHEAD * _BATCH_BYTES
    sizes = {"free": format_bytes(free), "total": format_bytes(total)}
    evidence = [
        phrase("{folder}: {free} of {total} are free (statvfs)", folder=folder, **sizes),
        phrase(
            "{ranks} ranks with {workers} loader workers each keep {ahead} batches of 32 pictures of "
            "224 x 224 there: {size}",
            ranks=_RANKS,
            workers=_WORKERS,
            ahead=_AHEAD,
            size=format_bytes(needed),
        ),
    ]
    if free >= needed:
        yield row(
            "shm", Verdict.GOOD, phrase("{free} are free for loader workers.", free=sizes["free"]), *evidence
        )
        return
    finding = phrase("{free} are free: loader workers that send pictures run out of it.", free=sizes["free"])
    fix = phrase("Give it room (docker run --shm-size=8g), or set data.workers = 0.")
    yield row("shm", Verdict.LOOK, finding, *evidence, fix=fix, command=_remount(folder))


def _remount(folder: Path) -> str:
    return f"mount -o remount,size=8G {folder}"


def existing_folder(folder: Path) -> Path:
    """The first of a folder and those above it that is there."""
    return next((place for place in (folder, *folder.parents) if place.is_dir()), Path("/"))


def disk_space(folder: Path) -> tuple[int, int]:
    """(bytes that are free for this user, bytes of the disk). Raises: OSError."""
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total


def _disk_of(folder: Path) -> str:
    """'/home/me/runs: ext4 on /dev/nvme0n1p2'."""
    mounted = [part for part in psutil.disk_partitions(all=True) if folder.is_relative_to(part.mountpoint)]
    if not mounted:
        return str(folder)
    disk = max(mounted, key=lambda part: len(part.mountpoint))
    return phrase("{folder}: {kind} on {device}", folder=folder, kind=disk.fstype, device=disk.device)


def _check_lock(handle: int) -> None:
    """Runs and leases live on locks, which some network disks do not have. Raises: OSError."""
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _write(handle: int) -> tuple[int, float]:
    """(bytes, seconds) that were written and are on the disk. Raises: OSError."""
    chunk = os.urandom(_CHUNK_BYTES)
    num_bytes, began_s = 0, time.monotonic()
    while num_bytes < _MOST_BYTES and time.monotonic() - began_s < _MOST_S:
        num_bytes += os.write(handle, chunk)
        os.fdatasync(handle)
    return num_bytes, time.monotonic() - began_s


def _unwritable(name: str, folder: Path, error: OSError, evidence: list[str]) -> CheckLine:
    finding = phrase("No file can be made and locked in {folder}: {why}.", folder=folder, why=error.strerror)
    fix = phrase("Make it writable, or keep runs elsewhere (RANKDECK_RUNS or --runs).")
    if name == "state":
        fix = phrase("Make it writable, or keep state elsewhere (RANKDECK_HOME).")
    return row(name, Verdict.BROKEN, finding, *evidence, fix=fix)
