"""Check the limits of this process (open files, processes, memory, threads), what happens to runs at logout,
and the clock.

All values are those of the shell that started this process; services and containers may have other values.
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
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.doctor.lines import CheckLine, Verdict, make_row, skipped_rows

_FEW_FILES, _TOO_FEW_FILES, _GOOD_FILES = 1024, 256, 65536
"""Two thresholds and a recommended value for the limit on open files. A rank with a few loader workers keeps
several hundred files open: each tensor that a worker sends is a file."""
_FEW_PROCESSES, _TOO_FEW_PROCESSES = 512, 64
"""Thresholds for how many more threads can start: a rank starts one per core, and more to communicate."""
_LOW_MEMORY, _TOO_LOW_MEMORY = 4 << 30, 1 << 30
_MIN_ADDRESS_SPACE = 64 << 30
"""Minimum address space: CUDA reserves address space for the memory of all GPUs and of the host."""
_NUM_RANKS = 2


def check_open_files() -> Iterator[CheckLine]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    evidence = phrase(
        "RLIMIT_NOFILE: {soft} (hard limit {hard})", soft=_format_limit(soft), hard=_format_limit(hard)
    )
    if _is_at_least(soft, _FEW_FILES):
        yield make_row(
            "files",
            Verdict.OK,
            phrase("A process can open {count} files.", count=_format_limit(soft)),
            evidence,
        )
        return
    verdict = Verdict.WARNING if soft >= _TOO_FEW_FILES else Verdict.FAILED
    finding = phrase(
        "A process can open only {count} files, which is too few for loader workers.", count=soft
    )
    new_limit = _GOOD_FILES if hard == resource.RLIM_INFINITY else min(hard, _GOOD_FILES)
    if new_limit < _FEW_FILES:
        fix = phrase("Raise nofile in /etc/security/limits.conf as root.")
        yield make_row("files", verdict, finding, evidence, fix=fix)
    else:
        fix = phrase("Raise the limit in the shell that starts runs.")
        yield make_row("files", verdict, finding, evidence, fix=fix, command=f"ulimit -n {new_limit}")


def check_process_limit() -> Iterator[CheckLine]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    evidence, left = [phrase("RLIMIT_NPROC: {limit}", limit=_format_limit(soft))], None
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        num_threads = _count_user_threads()
        left = soft - num_threads
        evidence.append(phrase("this user runs {count} threads (/proc)", count=num_threads))
    elif soft != resource.RLIM_INFINITY:
        evidence.append(phrase("the limit does not apply to root"))
    group = cgroups.tightest_limit("pids")
    if group is not None:
        left = group.remaining if left is None else min(left, group.remaining)
        text = phrase("{file}: {used} of {limit} used", file=group.file, used=group.used, limit=group.limit)
        evidence.append(text)
    if left is None:
        yield make_row("processes", Verdict.OK, phrase("The number of processes is not limited."), *evidence)
    elif left >= _FEW_PROCESSES:
        finding = phrase("{count} more processes and threads can be started.", count=left)
        yield make_row("processes", Verdict.OK, finding, *evidence)
    else:
        verdict = Verdict.WARNING if left >= _TOO_FEW_PROCESSES else Verdict.FAILED
        finding = phrase("Only {count} more processes and threads can be started.", count=max(0, left))
        fix = phrase(
            "Stop processes that you do not need, or raise the limit (ulimit -u, or the "
            "container's pids limit)."
        )
        yield make_row("processes", verdict, finding, *evidence, fix=fix)


def _count_user_threads() -> int:
    """Return the total number of threads in this user's processes: RLIMIT_NPROC limits this number."""
    count = 0
    for process in psutil.process_iter():
        try:
            # The kernel counts threads, not processes, and by their real user id (getrlimit(2)).
            count += process.num_threads() if process.uids().real == os.getuid() else 0
        except psutil.Error:
            continue
    return count


def check_memory() -> Iterator[CheckLine]:
    left = psutil.virtual_memory().available
    evidence = [phrase("{size} of the machine's memory is free (/proc/meminfo)", size=format_bytes(left))]
    group = cgroups.tightest_limit("memory")
    if group is not None:
        left = min(left, group.remaining)
        sizes = {"used": format_bytes(group.used), "limit": format_bytes(group.limit)}
        evidence.append(phrase("{file}: {used} of {limit} used", file=group.file, **sizes))
    addresses, locked = (resource.getrlimit(of)[0] for of in (resource.RLIMIT_AS, resource.RLIMIT_MEMLOCK))
    evidence.append(phrase("RLIMIT_AS: {limit}", limit=_format_size_limit(addresses)))
    evidence.append(phrase("RLIMIT_MEMLOCK: {limit}", limit=_format_size_limit(locked)))
    if left < _LOW_MEMORY:
        verdict = Verdict.WARNING if left >= _TOO_LOW_MEMORY else Verdict.FAILED
        finding = phrase(
            "Only {size} of memory is left; torch alone takes several hundred MiB in every rank.",
            size=format_bytes(left),
        )
        fix = phrase("Stop processes that you do not need, or give the container more memory.")
        yield make_row("memory", verdict, finding, *evidence, fix=fix)
    elif not _is_at_least(addresses, _MIN_ADDRESS_SPACE):
        finding = phrase(
            "The address space is limited to {size}, but CUDA reserves more address space than it uses.",
            size=_format_size_limit(addresses),
        )
        fix = phrase("Remove the limit in the shell that starts runs.")
        yield make_row("memory", Verdict.WARNING, finding, *evidence, fix=fix, command="ulimit -v unlimited")
    # RDMA needs its buffers locked in memory.
    elif _has_infiniband() and locked != resource.RLIM_INFINITY:
        finding = phrase(
            "The machine has InfiniBand, but only {size} of memory can be locked.",
            size=_format_size_limit(locked),
        )
        fix = phrase("Remove the limit in the shell that starts runs.")
        yield make_row("memory", Verdict.WARNING, finding, *evidence, fix=fix, command="ulimit -l unlimited")
    else:
        yield make_row("memory", Verdict.OK, phrase("{size} is left.", size=format_bytes(left)), *evidence)


def _has_infiniband() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False


def check_threads(environment: Mapping[str, str] = os.environ) -> Iterator[CheckLine]:
    cores, quota = len(os.sched_getaffinity(0)), cgroups.cpu_quota()
    # torch counts the cores and does not see a container's CPU quota.
    usable = cores if quota is None else min(cores, max(1, round(quota)))
    value = environment.get("OMP_NUM_THREADS")
    evidence: list[str] = [
        plural_phrase(tr_noop("1 core (sched_getaffinity)"), tr_noop("{n} cores (sched_getaffinity)"), cores)
    ]
    if quota is not None:
        evidence.append(phrase("CPU quota of {quota:.1f} cores (cgroup)", quota=quota))
    evidence.append(f"OMP_NUM_THREADS={value}" if value is not None else phrase("OMP_NUM_THREADS is not set"))
    each = max(1, usable // _NUM_RANKS)
    command = f"export OMP_NUM_THREADS={each}"
    if value is None:
        if usable == cores:
            finding = plural_phrase(
                tr_noop("1 core, which the ranks of a run share."),
                tr_noop("{n} cores, which the ranks of a run share."),
                cores,
            )
            yield make_row("threads", Verdict.OK, finding, *evidence)
            return
        finding = plural_phrase(
            tr_noop("torch starts {threads} threads, but can use only 1 core."),
            tr_noop("torch starts {threads} threads, but can use only {n} cores."),
            usable,
            threads=cores,
        )
    elif not value.isdecimal() or int(value) < 1:
        finding = phrase("OMP_NUM_THREADS is not a valid number of threads.")
    # One thread per rank is the minimum, so it is right even where ranks outnumber cores.
    elif _NUM_RANKS * int(value) <= max(usable, _NUM_RANKS):
        finding = plural_phrase(
            tr_noop("Threads per rank: {threads}, on 1 core."),
            tr_noop("Threads per rank: {threads}, on {n} cores."),
            usable,
            threads=value,
        )
        yield make_row("threads", Verdict.OK, finding, *evidence)
        return
    else:
        finding = plural_phrase(
            tr_noop("Two ranks with {threads} threads each would share 1 core."),
            tr_noop("Two ranks with {threads} threads each would share {n} cores."),
            usable,
            threads=value,
        )
    fix = phrase("Set OMP_NUM_THREADS so that two ranks share the cores, or unset it.")
    yield make_row("threads", Verdict.WARNING, finding, *evidence, fix=fix, command=command)


def _is_at_least(limit: int, minimum: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= minimum


def _format_limit(limit: int) -> str:
    return phrase("unlimited") if limit == resource.RLIM_INFINITY else str(limit)


def _format_size_limit(limit: int) -> str:
    return phrase("unlimited") if limit == resource.RLIM_INFINITY else format_bytes(limit)


# Check whether a run survives its user's logout: systemd may end all processes of the session.
#
# Source: logind.conf(5), loginctl(1) enable-linger.

_SYSTEMD_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Folders of systemd settings, in order of increasing priority."""


def check_logout(root: Path = Path("/"), user: str | None = None) -> Iterator[CheckLine]:
    # The test of sd_booted(3): the folder exists only where systemd is the init process.
    if not (root / "run/systemd/system").is_dir():
        yield from skipped_rows(
            ["logout"], phrase("systemd is not running, so runs continue when you log out.")
        )
        return
    user = user or getpass.getuser()
    ends = _logind_setting(root, "KillUserProcesses")
    lingers = (root / "var/lib/systemd/linger" / user).exists()
    evidence = [
        phrase("KillUserProcesses={value} (logind.conf)", value=ends or "no"),
        phrase("lingering is enabled for {user} (/var/lib/systemd/linger)", user=user)
        if lingers
        else phrase("lingering is not enabled for {user} (/var/lib/systemd/linger)", user=user),
    ]
    # root is exempt by default (KillExcludeUsers).
    if (ends or "").lower() in ("yes", "true", "on", "1") and not lingers and user != "root":
        finding = phrase("All runs, including detached runs, end when you log out.")
        fix = phrase("Allow your processes to run after logout.")
        command = "loginctl enable-linger"
        yield make_row("logout", Verdict.WARNING, finding, *evidence, fix=fix, command=command)
    else:
        yield make_row("logout", Verdict.OK, phrase("Runs continue when you log out."), *evidence)


def _logind_setting(root: Path, name: str) -> str | None:
    """Return the effective value of a logind setting; None if no file sets it."""
    value = None
    for folder in _SYSTEMD_FOLDERS:
        for file in [root / folder / "logind.conf", *sorted((root / folder).glob("logind.conf.d/*.conf"))]:
            for line in files.text_or_empty(file).splitlines():
                key, separator, text = line.partition("=")
                # The last assignment wins, as in systemd; hence no early return.
                if separator and key.strip() == name:
                    value = text.strip()
    return value


# Check this machine's clock: whether it is synchronized, and whether it jumps.  Source: adjtimex(2), used
# here for reading only.

_CLOCK_CHECK_S = 0.5
_MAX_JUMP_S = 0.05
"""Maximum drift between wall clock and steady clock in half a second; a larger drift is a jump."""
_STA_UNSYNC = 0x40
_MIN_YEAR = 2025
"""Year in which this version was written; a clock that shows an earlier year is wrong."""


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        # The kernel fills the whole struct, which is longer than the fields that are read here.
        ("rest", ctypes.c_char * 256),
    )


class KernelClock(NamedTuple):
    """State of the kernel's clock."""

    is_synchronised: bool
    max_error_s: float


def read_kernel_clock() -> KernelClock | None:
    """Return the kernel's clock state; None if it is not available."""
    # With modes = 0, adjtimex only reads the clock and needs no privilege.
    timex = _Timex()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(timex)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return KernelClock(not timex.status & _STA_UNSYNC, timex.maxerror / 1e6)


def measure_clock_jump(
    wall: Callable[[], float], steady: Callable[[], float], sleep: Callable[[float], None]
) -> float:
    """Return by how much the wall clock moves relative to the steady clock during `_CLOCK_CHECK_S`."""
    # A time service that slews the clock moves both clocks alike, so only a jump shows here.
    before = wall() - steady()
    sleep(_CLOCK_CHECK_S)
    return wall() - steady() - before


def check_clock(
    kernel: Callable[[], KernelClock | None] = read_kernel_clock, wall: Callable[[], float] = time.time
) -> Iterator[CheckLine]:
    jumped_s = measure_clock_jump(wall, time.monotonic, time.sleep)
    kernel_clock = kernel()
    evidence: list[str] = [
        phrase(
            "CLOCK_REALTIME moved {moved:.1f} ms relative to CLOCK_MONOTONIC in {looked} s",
            looked=_CLOCK_CHECK_S,
            moved=abs(jumped_s) * 1e3,
        )
    ]
    if kernel_clock is not None:
        text = phrase("adjtimex: synchronised, maximum error {error:.3f} s", error=kernel_clock.max_error_s)
        evidence.append(text if kernel_clock.is_synchronised else phrase("adjtimex: not synchronised"))
    else:
        evidence.append(phrase("adjtimex does not report whether the clock is synchronised"))
    fix = phrase("Synchronise the clock with a time service (chrony, systemd-timesyncd).")
    if time.gmtime(wall()).tm_year < _MIN_YEAR:
        date = time.strftime("%Y-%m-%d", time.gmtime(wall()))
        finding, verdict = (
            phrase("The clock shows {date}, which is far in the past.", date=date),
            Verdict.FAILED,
        )
    elif abs(jumped_s) > _MAX_JUMP_S:
        finding, verdict = phrase("The clock jumped during the check."), Verdict.WARNING
    elif kernel_clock is not None and not kernel_clock.is_synchronised:
        finding, verdict = (
            phrase("The clock is not synchronised: times on several hosts will differ."),
            Verdict.WARNING,
        )
    else:
        yield make_row("clock", Verdict.OK, phrase("The clock runs steadily."), *evidence)
        return
    yield make_row("clock", verdict, finding, *evidence, fix=fix, command="timedatectl set-ntp true")
