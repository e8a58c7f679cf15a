"""What faulthandler writes when a rank is asked where it stands -> the frames that tell it.

Read own_code.py before and hang.py next.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.diagnose.own_code import is_own

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?P<current>Current thread|Thread|Stack) .*$", re.MULTILINE)
_WAITING_FILES = (
    "torch/distributed/",
    "rankdeck/parallel/collectives/ring.py",
    "rankdeck/parallel/collectives/peers.py",
    "rankdeck/parallel/pipelining/communication.py",
)
_BACKWARD = "_engine_run_backward"
_WAITING_FUNCTIONS = {_BACKWARD: ("torch/autograd/",), "synchronize": ("torch/cuda/", "torch/accelerator/")}
"""In these folders, also of a torch that a person has built, which is installed nowhere."""
_STARTED = "_bootstrap"
"""The outermost function of every thread that Python code has started."""
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd", "/ipdb/", "/pudb/")


@dataclass(frozen=True)
class Frame:
    """Where a thread stands."""

    file: str
    line: int
    function: str

    def words(self) -> Phrase:
        return phrase(
            "{function} ({file}, line {line})", function=self.function, file=self.file, line=self.line
        )


def parse_stack(text: str) -> list[Frame]:
    """The thread that tells most in faulthandler's last report, innermost frame first: the one that it calls
    current (the main one), or where that stands in no code of the person's and waits for no other rank, one
    that does stand in theirs."""
    threads, current = _threads(text)
    if current is None:
        return []
    main = threads[current]
    if main and main[0].function == _BACKWARD:
        # What belongs to a GPU runs in a thread of torch's own: a hook, or a backward of the person's.
        return next((frames for frames in threads if _is_own_of_torch(frames)), main)
    if is_waiting(main) or any(is_own(frame.file) for frame in main):
        return main
    return next((frames for frames in threads if any(is_own(frame.file) for frame in frames)), main)


def _threads(text: str) -> tuple[list[list[Frame]], int | None]:
    """All threads, and which one is the current one."""
    heads = list(_THREAD.finditer(text))
    bounds = [*(head.start() for head in heads), len(text)]
    threads = [
        [
            Frame(found["file"], int(found["line"]), found["function"])
            for found in _FRAME.finditer(text, head.end(), end)
        ]
        for head, end in zip(heads, bounds[1:], strict=True)
    ]
    current = [index for index, head in enumerate(heads) if head["current"] != "Thread"]
    return threads, current[-1] if current else None


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Whether a thread is inside a collective or a backward pass, where ranks wait for each other, and in no
    code of the person's that runs there (a hook, a backward of their own)."""
    outside = itertools.takewhile(lambda frame: _waits(frame) or not is_own(frame.file), frames[:3])
    return any(map(_waits, outside))


def _waits(frame: Frame) -> bool:
    files = (*_WAITING_FILES, *_WAITING_FUNCTIONS.get(frame.function, ()))
    return any(part in frame.file for part in files)


def _is_own_of_torch(frames: Sequence[Frame]) -> bool:
    """Whether a thread that no Python code has started runs code of the person's."""
    is_pythons = not frames or frames[-1].function in (_STARTED, "<module>")
    return not is_pythons and any(is_own(frame.file) for frame in frames)


def is_debugged(frames: Sequence[Frame]) -> bool:
    """Whether a debugger of Python's has stopped the thread."""
    return any(part in frame.file for frame in frames for part in _DEBUGGERS)


def where(frames: Sequence[Frame]) -> Phrase:
    """The innermost line of the person's own code, and which function of others it has called."""
    own = next((frame for frame in frames if is_own(frame.file)), None)
    if own is None or own == frames[0]:
        return frames[0].words()
    return phrase("{place}, in a call of {function}", place=own.words(), function=_called(frames))


def _called(frames: Sequence[Frame]) -> str:
    """The outermost function of torch's collectives that is under way, else the innermost of all."""
    calls = [frame for frame in frames if frame.file.endswith("torch/distributed/distributed_c10d.py")]
    return calls[-1].function if calls else frames[0].function
