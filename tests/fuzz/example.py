"""One run, damaged, and everything that reads it here; a place to do so again and again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rankdeck.base import files
from rankdeck.run_dir import RunDir
from tests.fuzz.damage import Damage, damages
from tests.fuzz.readers import COMMANDS, READERS, command_here
from tests.fuzz.seeds import write_seeds
from tests.fuzz.watching import CANARY_CODE, facts, make_outside, watched

BOUNDED = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


VARIABLES = {"RANKDECK_HOME": "home", "RANKDECK_RUNS": "runs", "RANKDECK_CANARY": "outside/ran"}
"""Of the environment: places in the folder of a case."""
OF_THE_LIVING = ("watch", "stop", "checkpoint")
"""Commands that wait for whoever holds the lock."""


@dataclass(frozen=True)
class Case:
    """The run of that place among the seeds, what is done to it, and which commands read it."""

    seed: int
    damage: tuple[Damage, ...]
    commands: tuple[int, ...] = tuple(range(len(COMMANDS)))
    index: bytes = b""
    """What the index of all runs says besides."""
    readers: tuple[int, ...] = tuple(range(len(READERS)))
    name: bytes = b""
    """Of the run's folder, where it is not the seed's."""
    is_alive: bool = False
    """Somebody holds its lock."""


def cases() -> st.SearchStrategy[Case]:
    some = st.lists(st.integers(0, len(COMMANDS) - 1), min_size=1, max_size=2).map(tuple)
    index = st.sampled_from(
        [b""] * 6 + [b"\0\n/x\xff\n\n" + b"y" * 5000 + b"\n", b"/dev\n/proc/self/fd\n.\n"]
    )
    readers = st.lists(st.integers(0, len(READERS) - 1), min_size=1, max_size=4, unique=True).map(tuple)
    names = st.sampled_from(
        [b""] * 8 + [b"20261121-222424-\xff-f291", b"a\n\x1b[31m[bold]b", b"-x", b"x@0", b"y" * 250]
    )
    alive = st.sampled_from([False, False, False, True])
    return st.builds(Case, st.integers(0, 5), damages().map(tuple), some, index, readers, names, alive)


class Place:
    """A folder with seeds, and room for one damaged run at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seeds = write_seeds(folder / "seeds")
        self.folder_of_case = folder / "case"

    def make(self, case: Case) -> Path:
        """The damaged run, where nothing else is."""
        if self.folder_of_case.exists():
            _open_folders(self.folder_of_case)
            shutil.rmtree(self.folder_of_case)
        make_outside(self.folder_of_case)
        seed = self.seeds[case.seed % len(self.seeds)]
        run = self.folder_of_case / "runs" / (os.fsdecode(case.name) or seed.name)
        shutil.copytree(seed, run, symlinks=True)
        (run / "canary.py").write_text(CANARY_CODE)
        self._write_index(case.index)
        for damage in case.damage:
            damage.do(run)
        return run

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Where commands and readers look, and what they start."""
        with pytest.MonkeyPatch.context() as patch:
            for name, folder in VARIABLES.items():
                patch.setenv(name, str(self.folder_of_case / folder))
            yield

    def check(self, case: Case) -> None:
        """Raises: AssertionError, and whatever a reader does not say in words."""
        with self.environment():
            run = self.make(case)
            before = facts(self.folder_of_case)
            with _locked(run / "guard.lock", case.is_alive):
                for read in map(READERS.__getitem__, case.readers):
                    with watched(read.__name__):
                        read(RunDir(run))
                for command in map(COMMANDS.__getitem__, case.commands):
                    if not (case.is_alive and command[0] in OF_THE_LIVING):
                        with watched(" ".join(command)):
                            command_here(command, run, self.seeds[1])
            assert facts(self.folder_of_case) == before, "something outside of the run was written"

    def _write_index(self, lines: bytes) -> None:
        if lines:
            state = self.folder_of_case / VARIABLES["RANKDECK_HOME"] / "state"
            state.mkdir(parents=True, exist_ok=True)
            (state / "runs.index").write_bytes(lines)


@contextlib.contextmanager
def _locked(lock: Path, is_alive: bool) -> Iterator[None]:
    """As by a guard, where the file is one."""
    if not (is_alive and files.is_regular(lock)):
        yield
        return
    handle = files.open_regular(lock)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def _open_folders(folder: Path) -> None:
    """So that whoever runs the tests can remove them."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(path, name)  # noqa: PTH118 - some are too long for a Path
            with contextlib.suppress(OSError):
                if not os.path.islink(inner):  # noqa: PTH114
                    os.chmod(inner, 0o700)  # noqa: PTH101
