"""Every test lives in a home of its own, on one thread per process, and leaves no process behind.

The variables are set before anything imports numpy, torch or Qt, which read them once.
"""

from __future__ import annotations

import ctypes.util
import functools
import gc
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.checkout import PRODUCT

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["PYTHONPATH"] = PRODUCT
# Where a machine has it set, each of thousands of processes would compile all that it imports of the product.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    # A shell starts its background jobs so, and nohup what it is given; what a test starts would be deaf too.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

import pytest  # noqa: E402

from tests.helpers import processes  # noqa: E402
from tests.helpers.display import virtual_display  # noqa: E402
from tests.helpers.waiting import wait_until  # noqa: E402

ENDING_S = "RANKDECK_TEST_ENDING_S"
_ENDING_S = float(os.environ.get(ENDING_S, "5"))


@pytest.fixture(scope="session", autouse=True)
def _session_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home for what is set up before the first test's own one: fixtures of a module or a session."""
    with pytest.MonkeyPatch.context() as patch:
        _move_home(patch, tmp_path_factory.mktemp("session"))
        yield


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, state, caches and runs of this test are below its tmp_path, and go with it."""
    _move_home(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def _no_process_left(_own_home: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """What the test started has ended within 5 s of its end, or the test fails and the rest is killed."""
    mark = f"{processes.MARK}={uuid.uuid4().hex}"
    before = processes.all_pids()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*mark.split("="))
        yield

    try:
        wait_until(lambda: not processes.started_since(before, mark), deadline_s=_ENDING_S)
    except AssertionError:
        leftovers = processes.started_since(before, mark)
        texts = "\n".join(map(processes.process_text, leftovers))
        processes.kill_processes(leftovers)
        pytest.fail(f"{request.node.nodeid} left processes behind:\n{texts}", pytrace=False)


def pytest_collection_finish() -> None:
    """Qt tests collect garbage; what importing all tests brought is none and is not gone over."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What this machine cannot run is skipped with the reason."""
    if item.get_closest_marker("gpu") is not None and not _has_gpu():
        pytest.skip("no NVIDIA GPU here that torch can use")
    if item.get_closest_marker("xvfb") is not None and (missing := _missing_for_windows()):
        # .ci/setup installs them where it may; what has to pass everywhere else is not left out unseen.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{missing} is not installed")


@pytest.fixture(scope="session")
def x_display() -> Iterator[str]:
    """A virtual X server for processes that open a real window: their DISPLAY. Mark such tests `xvfb`."""
    with virtual_display() as name:
        yield name


@functools.cache
def _missing_for_windows() -> str:
    """What a real window on a virtual display lacks here; empty if nothing."""
    for program in ("Xvfb", "openbox", "xdotool"):
        if shutil.which(program) is None:
            return program
    return "" if ctypes.util.find_library("xcb-cursor") else "libxcb-cursor0"


@functools.cache
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _move_home(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setenv("RANKDECK_HOME", str(folder / "rankdeck-home"))
    patch.setenv("RANKDECK_RUNS", str(folder / "rankdeck-runs"))
