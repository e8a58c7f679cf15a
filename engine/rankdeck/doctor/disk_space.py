"""Check the folders that runs write to: creating and locking files, free space, write speed.

Measurements write to an unnamed file, which the system deletes however this process ends.
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
from rankdeck.doctor.lines import CheckLine, Verdict, make_row, skipped_rows

MIB = 1 << 20
_LOW_BYTES, _TOO_LOW_BYTES = 2 << 30, 200 * MIB
_CHUNK_BYTES, _MAX_WRITE_BYTES, _MAX_WRITE_S = 8 * MIB, 64 * MIB, 1.5
_SLOW_BYTES_PER_S = 50 * MIB
_NUM_WORKERS, _PREFETCHED_BATCHES, _BATCH_BYTES = 2, 3, 32 * 3 * 224 * 224 * 4
"""Assumed workers per rank, prefetched batches per worker, bytes per batch (32 images of 224 x 224)."""
_NUM_RANKS = 2


def check_runs_folder(folder: Path) -> Iterator[CheckLine]:
    """Check the folder of runs or, if it does not exist yet, its nearest existing parent."""
    disk_folder = existing_folder(folder)
    evidence = (
        [_describe_disk(disk_folder)]
        if disk_folder == folder
        else [
            phrase("the first run creates {folder} in {place}", folder=folder, place=disk_folder),
            _describe_disk(disk_folder),
        ]
    )
    try:
        free, total = disk_space(disk_folder)
        evidence.append(
            phrase("{free} of {total} is free (statvfs)", free=format_bytes(free), total=format_bytes(total))
        )
        per_s = None
        with tempfile.TemporaryFile(dir=disk_folder, buffering=0) as file:
            _check_lock(file.fileno())
            # The measurement must not fill a disk that is nearly full.
            if free > 4 * _MAX_WRITE_BYTES:
                num_bytes, seconds = _measure_write(file.fileno())
                per_s = num_bytes / seconds
                text = phrase(
                    "{size} written with fdatasync in {seconds:.2f} s",
                    size=format_bytes(num_bytes, 0),
                    seconds=seconds,
                )
                evidence.append(text)
    except OSError as error:
        yield _unwritable_row("runs", folder, error, evidence)
        return
    yield _runs_row(free, per_s, evidence)


def _runs_row(free: int, per_s: float | None, evidence: list[str]) -> CheckLine:
    room = format_bytes(free)
    if free < _LOW_BYTES:
        verdict = Verdict.WARNING if free >= _TOO_LOW_BYTES else Verdict.FAILED
        finding = phrase("{size} is free; a checkpoint takes three times the size of the weights.", size=room)
        fix = phrase("Free some space, or keep runs elsewhere (RANKDECK_RUNS or --runs).")
        return make_row("runs", verdict, finding, *evidence, fix=fix)
    speed = phrase("not measured") if per_s is None else f"{format_bytes(per_s)}/s"
    if per_s is not None and per_s < _SLOW_BYTES_PER_S:
        finding = phrase(
            "The disk is slow: {speed}. A checkpoint of 1 GiB takes {seconds:.0f} s.",
            speed=speed,
            seconds=(1 << 30) / per_s,
        )
        fix = phrase("Keep runs on a local disk (RANKDECK_RUNS or --runs), or save less often.")
        return make_row("runs", Verdict.WARNING, finding, *evidence, fix=fix)
    return make_row(
        "runs",
        Verdict.OK,
        phrase("{size} is free, write speed: {speed}.", size=room, speed=speed),
        *evidence,
    )


def check_state_folder(folder: Path) -> Iterator[CheckLine]:
    """Check that files can be created and locked in the folder of GPU leases and of the index of runs."""
    disk_folder = existing_folder(folder)
    evidence = [str(folder), _describe_disk(disk_folder)]
    try:
        with tempfile.TemporaryFile(dir=disk_folder) as file:
            _check_lock(file.fileno())
    except OSError as error:
        yield _unwritable_row("state", folder, error, evidence)
        return
    yield make_row("state", Verdict.OK, phrase("Files can be created and locked in the folder."), *evidence)


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Iterator[CheckLine]:
    if not folder.is_dir():
        yield from skipped_rows(["shm"], phrase("{folder} does not exist.", folder=folder))
        return
    try:
        free, total = disk_space(folder)
        # tmpfs allocates pages only when they are written: in a full /dev/shm a file can still be created.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(bytes(MIB))
    except OSError as error:
        finding = phrase("Cannot write to shared memory: {why}.", why=error.strerror)
        fix = phrase("Make /dev/shm larger, or set data.workers = 0.")
        yield make_row("shm", Verdict.FAILED, finding, str(folder), fix=fix, command=_remount_command(folder))
        return
    needed = _NUM_RANKS * _NUM_WORKERS * _PREFETCHED_BATCHES * _BATCH_BYTES
    sizes = {"free": format_bytes(free), "total": format_bytes(total)}
    evidence = [
        phrase("{folder}: {free} of {total} is free (statvfs)", folder=folder, **sizes),
        phrase(
            "{ranks} ranks with {workers} loader workers each, {ahead} batches of 32 images of "
            "224 x 224 per worker: {size}",
            ranks=_NUM_RANKS,
            workers=_NUM_WORKERS,
            ahead=_PREFETCHED_BATCHES,
            size=format_bytes(needed),
        ),
    ]
    if free >= needed:
        yield make_row(
            "shm", Verdict.OK, phrase("{free} is free for loader workers.", free=sizes["free"]), *evidence
        )
        return
    finding = phrase(
        "{free} is free: loader workers that send images would run out of space.", free=sizes["free"]
    )
    fix = phrase("Make /dev/shm larger (docker run --shm-size=8g), or set data.workers = 0.")
    yield make_row("shm", Verdict.WARNING, finding, *evidence, fix=fix, command=_remount_command(folder))


def _remount_command(folder: Path) -> str:
    return f"mount -o remount,size=8G {folder}"


def existing_folder(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next((candidate for candidate in (folder, *folder.parents) if candidate.is_dir()), Path("/"))


def disk_space(folder: Path) -> tuple[int, int]:
    """Return (bytes free for this user, total bytes) of the folder's disk.

    Raises:
        OSError: the folder cannot be read.
    """
    # disk_usage reports the blocks that are available to this user; ext4 reserves some of the free ones for
    # root.
    usage = shutil.disk_usage(folder)
    return usage.free, usage.total


def _describe_disk(folder: Path) -> str:
    """Return a text like '/home/me/runs: ext4 on /dev/nvme0n1p2'."""
    # Without `all`, psutil omits file systems that have no device, such as NFS, overlay and tmpfs.
    mounted = [
        partition
        for partition in psutil.disk_partitions(all=True)
        if folder.is_relative_to(partition.mountpoint)
    ]
    if not mounted:
        return str(folder)
    # Every path is also below "/": the longest mount point is the innermost.
    disk = max(mounted, key=lambda partition: len(partition.mountpoint))
    return phrase("{folder}: {kind} on {device}", folder=folder, kind=disk.fstype, device=disk.device)


def _check_lock(handle: int) -> None:
    """Check that file locks work: runs and leases need them, and some network file systems do not support
    them.

    Raises:
        OSError: the file cannot be locked.
    """
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _measure_write(handle: int) -> tuple[int, float]:
    """Write chunks to the file, calling fdatasync after each one, and return (bytes, seconds).

    Raises:
        OSError: writing failed.
    """
    # Random bytes, because some file systems compress zeros or do not store them.
    chunk = os.urandom(_CHUNK_BYTES)
    num_bytes, began_s = 0, time.monotonic()
    # Each chunk is synced: without a sync the page cache would be measured, and a single sync at the end
    # could not be cut short on a slow disk.
    while num_bytes < _MAX_WRITE_BYTES and time.monotonic() - began_s < _MAX_WRITE_S:
        num_bytes += os.write(handle, chunk)
        os.fdatasync(handle)
    return num_bytes, time.monotonic() - began_s


def _unwritable_row(name: str, folder: Path, error: OSError, evidence: list[str]) -> CheckLine:
    finding = phrase("Cannot create and lock a file in {folder}: {why}.", folder=folder, why=error.strerror)
    fix = phrase("Make the folder writable, or keep runs elsewhere (RANKDECK_RUNS or --runs).")
    if name == "state":
        fix = phrase("Make the folder writable, or keep state elsewhere (RANKDECK_HOME).")
    return make_row(name, Verdict.FAILED, finding, *evidence, fix=fix)
