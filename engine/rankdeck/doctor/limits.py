"""What this process may have: open files, processes, memory, threads. Every figure is of the shell that
started this; services and containers may have others.
"""

from __future__ import annotations

import ctypes
import getpass
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from rankdeck.base import cgroups, files
from rankdeck.base.phrases import counted, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.doctor.lines import CheckLine, Verdict, not_tried, row

_FEW_FILES, _TOO_FEW_FILES, _GOOD_FILES = 1024, 256, 65536
"""A rank with a few loader workers keeps some hundreds open: each tensor that a worker sends is a file."""
_FEW_PROCESSES, _TOO_FEW_PROCESSES = 512, 64
"""A rank starts a thread for each core, several for communication and more for each loader worker."""
_LITTLE_MEMORY, _TOO_LITTLE_MEMORY = 4 << 30, 1 << 30
_ADDRESSES = 64 << 30
"""CUDA reserves addresses for all memory of all GPUs and of the host."""
_RANKS = 2


def look_at_files() -> Iterator[CheckLine]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    evidence = phrase("RLIMIT_NOFILE: {soft} of at most {hard}", soft=_count(soft), hard=_count(hard))
    if _is_least(soft, _FEW_FILES):
        yield row(
            "files", Verdict.GOOD, phrase("A process may open {count} files.", count=_count(soft)), evidence
        )
        return
    verdict = Verdict.LOOK if soft >= _TOO_FEW_FILES else Verdict.BROKEN
    finding = phrase("A process may open {count} files only; loader workers run out of them.", count=soft)
    most = _GOOD_FILES if hard == resource.RLIM_INFINITY else min(hard, _GOOD_FILES)
    if most < _FEW_FILES:
        fix = phrase("Have root raise it: nofile in /etc/security/limits.conf.")
        yield row("files", verdict, finding, evidence, fix=fix)
    else:
        fix = phrase("Raise it in the shell that starts runs.")
        yield row("files", verdict, finding, evidence, fix=fix, command=f"ulimit -n {most}")


def look_at_processes() -> Iterator[CheckLine]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    evidence, left = [phrase("RLIMIT_NPROC: {limit}", limit=_count(soft))], None
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        num_threads = _own_threads()
        left = soft - num_threads
        evidence.append(phrase("{count} threads of this user run (/proc)", count=num_threads))
    elif soft != resource.RLIM_INFINITY:
        evidence.append(phrase("it does not bind root"))
    group = cgroups.tightest("pids")
    if group is not None:
        left = group.left if left is None else min(left, group.left)
        words = phrase("{file}: {used} of {limit} used", file=group.file, used=group.used, limit=group.limit)
        evidence.append(words)
    if left is None:
        yield row("processes", Verdict.GOOD, phrase("Nothing limits how many are started."), *evidence)
    elif left >= _FEW_PROCESSES:
        finding = phrase("{count} more processes and threads may be started.", count=left)
        yield row("processes", Verdict.GOOD, finding, *evidence)
    else:
        verdict = Verdict.LOOK if left >= _TOO_FEW_PROCESSES else Verdict.BROKEN
        finding = phrase("Only {count} more processes and threads may be started.", count=max(0, left))
        fix = phrase("End what is not needed, or raise the limit (ulimit -u; pids of the container).")
        yield row("processes", verdict, finding, *evidence, fix=fix)


def _own_threads() -> int:
    """Of all processes of this user: what RLIMIT_NPROC counts."""
    count = 0
    for process in psutil.process_iter():
        try:
            count += process.num_threads() if process.uids().real == os.getuid() else 0
        except psutil.Error:
            continue
    return count


def look_at_memory() -> Iterator[CheckLine]:
    left = psutil.virtual_memory().available
    evidence = [phrase("{size} of the machine's memory are free (/proc/meminfo)", size=format_bytes(left))]
    group = cgroups.tightest("memory")
    if group is not None:
        left = min(left, group.left)
        sizes = {"used": format_bytes(group.used), "limit": format_bytes(group.limit)}
        evidence.append(phrase("{file}: {used} of {limit} used", file=group.file, **sizes))
    addresses, locked = (resource.getrlimit(of)[0] for of in (resource.RLIMIT_AS, resource.RLIMIT_MEMLOCK))
    evidence.append(phrase("RLIMIT_AS: {limit}", limit=_size(addresses)))
    evidence.append(phrase("RLIMIT_MEMLOCK: {limit}", limit=_size(locked)))
    if left < _LITTLE_MEMORY:
        verdict = Verdict.LOOK if left >= _TOO_LITTLE_MEMORY else Verdict.BROKEN
        finding = phrase(
            "{size} of memory are left; every rank takes some hundred MiB for torch alone.",
            size=format_bytes(left),
        )
        fix = phrase("End what is not needed, or give the container more.")
        yield row("memory", verdict, finding, *evidence, fix=fix)
    elif not _is_least(addresses, _ADDRESSES):
        finding = phrase(
            "Addresses are limited to {size}, and CUDA reserves more than it uses.", size=_size(addresses)
        )
        fix = phrase("Lift the limit in the shell that starts runs.")
        yield row("memory", Verdict.LOOK, finding, *evidence, fix=fix, command="ulimit -v unlimited")
    elif _has_infiniband() and locked != resource.RLIM_INFINITY:
        finding = phrase("InfiniBand is here, and only {size} may be locked in memory.", size=_size(locked))
        fix = phrase("Lift the limit in the shell that starts runs.")
        yield row("memory", Verdict.LOOK, finding, *evidence, fix=fix, command="ulimit -l unlimited")
    else:
        yield row("memory", Verdict.GOOD, phrase("{size} are left.", size=format_bytes(left)), *evidence)


def _has_infiniband() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False


def look_at_threads(environment: Mapping[str, str] = os.environ) -> Iterator[CheckLine]:
    cores, quota = len(os.sched_getaffinity(0)), cgroups.cpu_quota()
    usable = cores if quota is None else min(cores, max(1, round(quota)))
    asked = environment.get("OMP_NUM_THREADS")
    evidence: list[str] = [
        counted(marked("1 core (sched_getaffinity)"), marked("{n} cores (sched_getaffinity)"), cores)
    ]
    if quota is not None:
        evidence.append(phrase("the group may use {quota:.1f} of them (cgroup)", quota=quota))
    evidence.append(f"OMP_NUM_THREADS={asked}" if asked is not None else phrase("OMP_NUM_THREADS is not set"))
    each = max(1, usable // _RANKS)
    command = f"export OMP_NUM_THREADS={each}"
    if asked is None:
        if usable == cores:
            finding = counted(
                marked("1 core, which the ranks of a run share."),
                marked("{n} cores, which the ranks of a run share."),
                cores,
            )
            yield row("threads", Verdict.GOOD, finding, *evidence)
            return
        finding = counted(
            marked("torch starts {threads} threads where 1 core may be used."),
            marked("torch starts {threads} threads where {n} cores may be used."),
            usable,
            threads=cores,
        )
    elif not asked.isdecimal() or int(asked) < 1:
        finding = phrase("OMP_NUM_THREADS is no number of threads.")
    elif _RANKS * int(asked) <= max(usable, _RANKS):
        finding = counted(
            marked("Threads for each rank: {threads}, on 1 core."),
            marked("Threads for each rank: {threads}, on {n} cores."),
            usable,
            threads=asked,
        )
        yield row("threads", Verdict.GOOD, finding, *evidence)
        return
    else:
        finding = counted(
            marked("Two ranks of {threads} threads each would share 1 core."),
            marked("Two ranks of {threads} threads each would share {n} cores."),
            usable,
            threads=asked,
        )
    fix = phrase("Share the cores out: so many for each of two ranks, or unset it.")
    yield row("threads", Verdict.LOOK, finding, *evidence, fix=fix, command=command)


def _is_least(limit: int, least: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= least


def _count(limit: int) -> str:
    return phrase("unlimited") if limit == resource.RLIM_INFINITY else str(limit)


def _size(limit: int) -> str:
    return phrase("unlimited") if limit == resource.RLIM_INFINITY else format_bytes(limit)


# Whether a run lives on when whoever started it logs out: systemd may end all that a session started.
#
# Source: logind.conf(5), loginctl(1) enable-linger.

_PLACES = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Later ones count more."""


def look_at_logout(root: Path = Path("/"), user: str | None = None) -> Iterator[CheckLine]:
    if not (root / "run/systemd/system").is_dir():
        yield from not_tried(["logout"], phrase("No systemd runs here, which alone would end runs then."))
        return
    user = user or getpass.getuser()
    ends = _setting(root, "KillUserProcesses")
    lingers = (root / "var/lib/systemd/linger" / user).exists()
    evidence = [
        phrase("KillUserProcesses={value} (logind.conf)", value=ends or "no"),
        phrase("{user} lingers (/var/lib/systemd/linger)", user=user)
        if lingers
        else phrase("{user} does not linger (/var/lib/systemd/linger)", user=user),
    ]
    if (ends or "").lower() in ("yes", "true", "on", "1") and not lingers and user != "root":
        finding = phrase("Runs end when you log out, detached ones too.")
        fix = phrase("Let your processes stay.")
        command = "loginctl enable-linger"
        yield row("logout", Verdict.LOOK, finding, *evidence, fix=fix, command=command)
    else:
        yield row("logout", Verdict.GOOD, phrase("Runs go on when you log out."), *evidence)


def _setting(root: Path, name: str) -> str | None:
    """The value that counts, None where no file gives one."""
    value = None
    for place in _PLACES:
        for file in [root / place / "logind.conf", *sorted((root / place).glob("logind.conf.d/*.conf"))]:
            for line in files.text_or_empty(file).splitlines():
                key, found, text = line.partition("=")
                if found and key.strip() == name:
                    value = text.strip()
    return value


# The clock of this machine: whether something keeps it right, and whether it jumps.
#
# Source: adjtimex(2); it only reads here.

_LOOKS_S = 0.5
_STEP_S = 0.05
"""More than this between the two clocks within half a second is no drift."""
_UNSYNCHRONISED = 0x40
_FIRST_YEAR = 2025
"""Nothing of this version ran before."""


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


class KernelClock(NamedTuple):
    """What the kernel knows of its clock."""

    is_synchronised: bool
    most_error_s: float


def kernel_clock() -> KernelClock | None:
    """None where the kernel does not tell."""
    told = _Timex()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(told)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return KernelClock(not told.status & _UNSYNCHRONISED, told.maxerror / 1e6)


def jump_s(wall: Callable[[], float], steady: Callable[[], float], sleep: Callable[[float], None]) -> float:
    """By how much the clock on the wall moved against the steady one while we looked."""
    before = wall() - steady()
    sleep(_LOOKS_S)
    return wall() - steady() - before


def look_at_clock(
    kernel: Callable[[], KernelClock | None] = kernel_clock, wall: Callable[[], float] = time.time
) -> Iterator[CheckLine]:
    jumped_s = jump_s(wall, time.monotonic, time.sleep)
    told = kernel()
    evidence: list[str] = [
        phrase(
            "CLOCK_REALTIME against CLOCK_MONOTONIC within {looked} s: {moved:.1f} ms",
            looked=_LOOKS_S,
            moved=abs(jumped_s) * 1e3,
        )
    ]
    if told is not None:
        words = phrase("adjtimex: synchronised, off by {error:.3f} s at most", error=told.most_error_s)
        evidence.append(words if told.is_synchronised else phrase("adjtimex: not synchronised"))
    else:
        evidence.append(phrase("adjtimex does not tell whether it is synchronised"))
    keep = phrase("Let something keep it right (chrony, systemd-timesyncd).")
    if time.gmtime(wall()).tm_year < _FIRST_YEAR:
        date = time.strftime("%Y-%m-%d", time.gmtime(wall()))
        finding, verdict = phrase("It says {date}, which is long past.", date=date), Verdict.BROKEN
    elif abs(jumped_s) > _STEP_S:
        finding, verdict = phrase("It jumped while we looked."), Verdict.LOOK
    elif told is not None and not told.is_synchronised:
        finding, verdict = phrase("Nothing keeps it right: times of several hosts will differ."), Verdict.LOOK
    else:
        yield row("clock", Verdict.GOOD, phrase("It runs evenly."), *evidence)
        return
    yield row("clock", verdict, finding, *evidence, fix=keep, command="timedatectl set-ntp true")
