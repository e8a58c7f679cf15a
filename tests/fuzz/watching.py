"""What holds of every call, whatever it reads: seconds, bytes, words, and nothing outside of the run.

Seconds are those of the processor: a machine that is busy is no defect. Who waits for ever (a pipe that
nobody writes) is woken. Root reads everything; here it does without that right.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankdeck.base.errors import RankdeckError
from tests.fuzz.damage import CANARY

MOST_S = 5.0
MOST_WAITED_S = 20.0
MOST_BYTES = 1 << 30


class TooSlow(BaseException):
    """No `except Exception` takes it for a damaged file."""


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Raises AssertionError: the call took too long or too much, or ended in something else than words."""
    before = time.process_time()
    try:
        with _bounded(), warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    except RankdeckError as error:
        assert error.problems and all(problem.message for problem in error.problems), what
    except TooSlow:
        raise AssertionError(f"{what}: it took too long") from None
    except MemoryError:
        raise AssertionError(f"{what}: it took more than {MOST_BYTES} bytes") from None
    seconds = time.process_time() - before
    assert seconds < MOST_S, f"{what}: it took {seconds:.1f} s"


@contextmanager
def _bounded() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = [signal.signal(number, _too_slow) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    signal.setitimer(signal.ITIMER_REAL, MOST_WAITED_S)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, limits[1]))
    try:
        with without_rights():
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def _too_slow(*_: object) -> None:
    raise TooSlow


_VERSION_3 = 0x20080522
_PR_CAPBSET_DROP = 24
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def without_rights() -> Iterator[None]:
    """Modes of files hold for this thread, though root runs the tests."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    capabilities = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, capabilities) == 0
    less = (ctypes.c_uint32 * 6)(*capabilities)
    less[0] &= ~_OVERRIDES
    libc.capset(header, less)
    try:
        yield
    finally:
        libc.capset(header, capabilities)


def drop_rights() -> None:
    """The same for a process that is about to become another one, and for all that it starts."""
    if os.geteuid() == 0:
        for capability in (1, 2):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


CANARY_CODE = """\
import os
open(os.environ["RANKDECK_CANARY"], "a").close()
"""


def make_outside(parent: Path) -> None:
    """What links lead to, and code that tells when it runs."""
    folder = parent / CANARY
    folder.mkdir(parents=True)
    (folder / "canary.py").write_text(CANARY_CODE)
    (folder / "folder").mkdir(parents=True)
    (folder / "canary").write_text("{}\n")
    (folder / "folder" / "12").mkdir()
    (folder / "folder" / "12" / "COMMIT").write_text("{}")


def facts(folder: Path) -> dict[str, Any]:
    """Whatever is outside: two of them are the same where nobody wrote there."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size, path.lstat().st_ino)
        for path in sorted((folder / CANARY).rglob("*"))
    }
