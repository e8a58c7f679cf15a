"""Describe the processes for which a rank is waiting: its loader workers, and other children.

The stack of such a rank ends in torch's DataLoader or in multiprocessing, and does not show the cause. The
classic cause is a forked child that waits for ever for a lock or a thread pool, because a fork copies no
threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import Phrase, phrase, plural_phrase, tr_noop
from rankdeck.diagnose.stacks import Frame, format_location
from rankdeck.diagnose.user_code import code_owner, is_user_file

LOADER_WORKER, CHILD, HELPER = "loader worker", "child", "helper"
"""Roles of a process; a helper is a process of Python or torch that runs none of the script's code."""
_WORKER_FRAME = ("torch/utils/data/_utils/worker.py", "_worker_loop")
_WORK_LOOPS = (
    _WORKER_FRAME,
    ("multiprocessing/pool.py", "worker"),
    ("concurrent/futures/process.py", "_process_worker"),
)
_QUEUE_FILES = (
    "/multiprocessing/queues.py",
    "/multiprocessing/connection.py",
    "/multiprocessing/synchronize.py",
    "/selectors.py",
)
_CHILD_FRAME = ("multiprocessing/process.py", "_bootstrap")
_SPAWN_FRAME = ("multiprocessing/spawn.py", "spawn_main")
_HELPER_FILES = (
    "multiprocessing/resource_tracker.py",
    "multiprocessing/forkserver.py",
    "torch/_inductor/compile_worker/",
)
_LOADER_FILE = "torch/utils/data/dataloader.py"
_CHILD_WAIT_FILES = ("/multiprocessing/", "/concurrent/futures/", "/subprocess.py")
_LOCKING_CODE = re.compile(r"^(async )?with |\.acquire\(")
_MAX_LINE_LENGTH = 100
_WORKER_TEXTS = (
    tr_noop("It is waiting for 1 loader worker, which is in {place}."),
    tr_noop("It is waiting for {n} loader workers, which are in {place}."),
)
_LOCKED_WORKER_TEXTS = (
    tr_noop("It is waiting for 1 loader worker, which is waiting for a lock in {place}."),
    tr_noop("It is waiting for {n} loader workers, which are waiting for a lock in {place}."),
)
_CHILD_TEXTS = (
    tr_noop("It is waiting for 1 child process, which is in {place}."),
    tr_noop("It is waiting for {n} child processes, which are in {place}."),
)
_LOCKED_CHILD_TEXTS = (
    tr_noop("It is waiting for 1 child process, which is waiting for a lock in {place}."),
    tr_noop("It is waiting for {n} child processes, which are waiting for a lock in {place}."),
)


@dataclass(frozen=True)
class ChildProcess:
    """A process of a run that is not itself a rank. `rank` is the rank that started it, directly or
    indirectly, or None. `number` counts that rank's processes of the same role, in the order of their start.

    `is_locked`: the process is waiting for a lock of the operating system (a futex). `packages`: the packages
    in `LOCKING_PACKAGES` that it has loaded.
    """

    pid: int
    rank: int | None
    role: str = CHILD
    number: int = 0
    frames: Sequence[Frame] = field(default_factory=list)
    is_locked: bool = False
    packages: Sequence[str] = ()

    @property
    def is_idle(self) -> bool:
        """Whether the process is waiting for work: for the indices of a batch, or for a task of a process
        pool."""
        for number, frame in enumerate(self.frames):
            if any(_is_frame(frame, loop) for loop in _WORK_LOOPS):
                return number > 0
            if not frame.file.endswith(_QUEUE_FILES):
                return False
        return False

    @property
    def waits_since_fork(self) -> bool:
        """Whether the process was probably forked and is waiting for a lock that no thread will
        release."""
        # Within the standard library, a lock is normally one that another living thread or process holds.
        is_own_lock = bool(self.frames) and code_owner(self.frames[0].file) != "Python"
        is_forked = any(_is_frame(frame, _CHILD_FRAME) for frame in self.frames) and not any(
            _is_frame(frame, _SPAWN_FRAME) for frame in self.frames
        )
        return self.is_locked and is_own_lock and is_forked

    def location(self) -> Phrase:
        """Return where the process is, with the source line of user code; its stack must be known."""
        if self.is_idle:
            return phrase("waiting for work")
        place, line = format_location(self.frames), _source_line(self.frames)
        return phrase("{place}: {line}", place=place, line=line) if line else place


LOCKING_PACKAGES = {"tokenizers": "TOKENIZERS_PARALLELISM=false"}
"""Tokenizer packages whose thread pools do not survive a fork, with the environment variables that turn these
pools off."""


def role_of(report: str) -> str:
    """Return the role of the process whose stacks faulthandler has written to `report`."""
    if f'{_WORKER_FRAME[0]}", line ' in report:
        return LOADER_WORKER
    if f'{_CHILD_FRAME[0]}", line ' in report:
        return CHILD
    return HELPER if any(file in report for file in _HELPER_FILES) else CHILD


def _is_frame(frame: Frame, file_and_function: tuple[str, str]) -> bool:
    file, function = file_and_function
    return frame.file.endswith(file) and frame.function == function


def awaited_children(frames: Sequence[Frame], children: Iterable[ChildProcess]) -> list[ChildProcess]:
    """Return the busy children for which a rank with the stack `frames` is waiting; all of them are at the
    same place in the code."""
    inner = []
    for frame in frames:
        if is_user_file(frame.file):
            break
        inner.append(frame)
    if any(frame.file.endswith(_LOADER_FILE) for frame in inner):
        role = LOADER_WORKER
    elif any(pattern in frame.file for frame in inner for pattern in _CHILD_WAIT_FILES):
        role = CHILD
    else:
        return []
    busy = [child for child in children if child.role == role and child.frames and not child.is_idle]
    # A child that waits for a lock explains more than one that waits for another child.
    busy.sort(key=lambda child: (not child.waits_since_fork, child.number))
    if not busy:
        return []
    first = busy[0]
    return [child for child in busy if _place_key(child) == _place_key(first)]


def _place_key(child: ChildProcess) -> tuple[object, ...]:
    user = next((frame for frame in child.frames if is_user_file(frame.file)), child.frames[0])
    return user, child.waits_since_fork


def with_children(
    warning: Problem,
    stacks: Mapping[int, Sequence[Frame]],
    children: Mapping[int, Sequence[ChildProcess]],
) -> Problem:
    """Return the warning about a hang, and add the child processes for which the blamed rank is waiting.

    If no rank is blamed, add those of the first rank that is waiting for child processes.
    """
    for rank in sorted(stacks) if warning.rank is None else [warning.rank]:
        awaited = awaited_children(stacks.get(rank, ()), children.get(rank, ()))
        if not awaited:
            continue
        text = _awaited_text(awaited)
        if warning.rank is None and len(stacks) > 1:
            text = phrase("Rank {rank}: {text}", rank=rank, text=text)
        message = phrase("{message} {text}", message=warning.as_phrase("message"), text=text)
        warning = warning.replace_fields(message=message)
        if awaited[0].waits_since_fork:
            advice = phrase(
                "{fix} {advice}", fix=_fork_advice(awaited[0]), advice=warning.as_phrase("advice")
            )
            warning = warning.replace_fields(advice=advice)
        return warning
    return warning


def _awaited_text(awaited: Sequence[ChildProcess]) -> Phrase:
    first = awaited[0]
    place = first.location()
    locked = first.waits_since_fork
    if first.role == LOADER_WORKER:
        singular, plural = _LOCKED_WORKER_TEXTS if locked else _WORKER_TEXTS
    else:
        singular, plural = _LOCKED_CHILD_TEXTS if locked else _CHILD_TEXTS
    return plural_phrase(singular, plural, len(awaited), place=place)


def _fork_advice(child: ChildProcess) -> Phrase:
    has_loader = child.role == LOADER_WORKER
    cause = phrase(
        "A forked process inherits locks and thread pools, but not the threads that release and run them."
    )
    # Python code that takes a lock itself does not wait for a package's pool.
    variable = next((LOCKING_PACKAGES[name] for name in child.packages), None)
    if variable is None or _LOCKING_CODE.search(_source_line(child.frames[:1])):
        if has_loader:
            fix = phrase('Pass multiprocessing_context="spawn" or num_workers=0 to the DataLoader.')
        else:
            fix = phrase('Start the process with multiprocessing.get_context("spawn").')
    elif has_loader:
        fix = phrase(
            'Set {variable} before the script uses its tokenizer, or pass multiprocessing_context="spawn" or '
            "num_workers=0 to the DataLoader.",
            variable=variable,
        )
    else:
        fix = phrase(
            "Set {variable} before the script uses its tokenizer, or start the process with "
            'multiprocessing.get_context("spawn").',
            variable=variable,
        )
    return phrase("{cause} {fix}", cause=cause, fix=fix)


def _source_line(frames: Sequence[Frame]) -> str:
    """Return the innermost line of user code on a stack, or ""."""
    frame = next((frame for frame in frames if is_user_file(frame.file)), None)
    if frame is None:
        return ""
    try:
        lines = files.read_text(Path(frame.file), files.MAX_TOML_BYTES).splitlines()
        return lines[frame.line - 1].strip()[:_MAX_LINE_LENGTH]
    except (OSError, ValueError, IndexError):
        return ""
