"""Parse the stacks that faulthandler writes on request, and the calls in torch's flight recorders.

Read user_code.py first and hang.py next.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import Phrase, phrase, tr_noop
from rankdeck.diagnose.user_code import is_user_file

_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?P<current>Current thread|Thread|Stack) .*$", re.MULTILINE)
_FATAL = "Fatal Python error: "
"""Text that faulthandler writes before the stacks of a process that was killed by a signal such as
SIGABRT."""
_WAITING_FILES = (
    "torch/distributed/",
    "rankdeck/parallel/collectives/ring.py",
    "rankdeck/parallel/collectives/peers.py",
    "rankdeck/parallel/pipelining/communication.py",
)
_BACKWARD = "_engine_run_backward"
_WAITING_FUNCTIONS = {_BACKWARD: ("torch/autograd/",), "synchronize": ("torch/cuda/", "torch/accelerator/")}
"""Functions in which a thread waits, with the folders of torch that contain each function. A torch built from
source has the same folders."""
_IMPORT_SYSTEM = "<frozen importlib"
"""Start of the file name in frames of the import system. There are five such frames per import; they would
hide which modules import each other."""
_THREAD_ENTRY = "_bootstrap"
"""The outermost function of every thread started by Python code."""
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd", "/ipdb/", "/pudb/")


@dataclass(frozen=True)
class Frame:
    """A stack frame of a thread."""

    file: str
    line: int
    function: str

    def text(self) -> Phrase:
        return phrase(
            "{function} ({file}, line {line})", function=self.function, file=self.file, line=self.line
        )


def parse_stack(text: str) -> list[Frame]:
    """Return the stack of the most informative thread in faulthandler's last report, innermost frame first.

    This is the thread marked as current (the main thread) if that thread runs user code or waits for another
    rank. If not, this is the first thread that runs user code or, if no thread does, the current thread.
    """
    threads, current = _parse_threads(text)
    if current is None:
        return []
    main = threads[current]
    if main and main[0].function == _BACKWARD:
        # autograd runs a GPU's backward pass in a separate thread, with the user's hooks and custom backward
        # functions.
        return next((frames for frames in threads if _is_user_code_on_torch_thread(frames)), main)
    if is_waiting(main) or any(is_user_file(frame.file) for frame in main):
        return main
    return next((frames for frames in threads if any(is_user_file(frame.file) for frame in frames)), main)


def parse_crash(text: str) -> list[Frame]:
    """Return the stack that faulthandler wrote when a signal ended the process, innermost frame first; an
    empty list if it wrote none.

    The thread that crashed may have no Python code, like those of gloo. The stack is therefore that of a
    thread that waits in a collective or, if there is none, of a thread in user code.
    """
    _, crash, report = text.rpartition(_FATAL)
    if not crash:
        return []
    threads, _ = _parse_threads(report)
    waiting = (frames for frames in threads if is_waiting(frames))
    users = (frames for frames in threads if any(is_user_file(frame.file) for frame in frames))
    return next(waiting, None) or next(users, [])


def _parse_threads(text: str) -> tuple[list[list[Frame]], int | None]:
    """Return the stacks of all threads, and the current thread's index (None without a current thread)."""
    heads = list(_THREAD.finditer(text))
    bounds = [*(header.start() for header in heads), len(text)]
    threads = [
        [
            Frame(match["file"], int(match["line"]), match["function"])
            for match in _FRAME.finditer(text, header.end(), end)
            if not match["file"].startswith(_IMPORT_SYSTEM)
        ]
        for header, end in zip(heads, bounds[1:], strict=True)
    ]
    current = [index for index, header in enumerate(heads) if header["current"] != "Thread"]
    # faulthandler appends to its file, so the last current thread is that of the newest report.
    return threads, current[-1] if current else None


def is_waiting(frames: Sequence[Frame]) -> bool:
    """Check whether a thread is in a collective or a backward pass, where ranks wait for each other.

    A thread does not count as waiting if the collective or backward pass is running user code (a hook, a
    custom backward).
    """
    # Only the innermost three frames show what the thread does now; deeper ones, how it got there.
    outside = itertools.takewhile(
        lambda frame: _is_waiting_frame(frame) or not is_user_file(frame.file), frames[:3]
    )
    return any(map(_is_waiting_frame, outside))


def _is_waiting_frame(frame: Frame) -> bool:
    files = (*_WAITING_FILES, *_WAITING_FUNCTIONS.get(frame.function, ()))
    return any(pattern in frame.file for pattern in files)


def _is_user_code_on_torch_thread(frames: Sequence[Frame]) -> bool:
    """Check whether a thread that Python code did not start is running user code."""
    is_pythons = not frames or frames[-1].function in (_THREAD_ENTRY, "<module>")
    return not is_pythons and any(is_user_file(frame.file) for frame in frames)


def is_debugged(frames: Sequence[Frame]) -> bool:
    """Check whether a Python debugger has stopped the thread."""
    return any(pattern in frame.file for frame in frames for pattern in _DEBUGGERS)


def format_location(frames: Sequence[Frame]) -> Phrase:
    """Return the innermost line of user code, and the library function that it called."""
    user_frame = next((frame for frame in frames if is_user_file(frame.file)), None)
    if user_frame is None or user_frame == frames[0]:
        return frames[0].text()
    return phrase(
        "{place}, in a call to {function}", place=user_frame.text(), function=_called_function(frames)
    )


def _called_function(frames: Sequence[Frame]) -> str:
    """Return the outermost torch collective on the stack or, if there is none, the innermost function."""
    calls = [frame for frame in frames if frame.file.endswith("torch/distributed/distributed_c10d.py")]
    return calls[-1].function if calls else frames[0].function


# From each rank's flight recorder: which ranks have not reached which collective, and whether all have called
# the same ones in the same order.
#
# Each group numbers its collectives, and a rank records a number only once it has reached that call. If the
# same number is another collective on another rank, all wait forever. Point-to-point messages have no such
# numbers and are left out.

_SAME_SHAPE_COLLECTIVES = ("all_reduce", "broadcast", "reduce")
"""Collectives to which every rank must pass tensors of the same shape."""
_MAX_NAME_LENGTH = 40
MICROBATCH_TEXT = tr_noop("{phase} of microbatch {number}")


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank has reached; `number` is its sequence number in its process group."""

    group: str
    number: int
    kind: str
    shape: str = ""
    is_finished: bool = False

    def text(self) -> Phrase:
        if self.shape:
            return phrase(
                "{kind} number {number} ({shape})", kind=self.kind, number=self.number, shape=self.shape
            )
        return phrase("{kind} number {number}", kind=self.kind, number=self.number)

    def matches(self, other: CollectiveCall) -> bool:
        """Check whether this call and `other` can be the same collective."""
        # Ranks may pass different shapes to a gather or an all_to_all, so only the kind is compared for
        # those.
        same_shape = self.shape == other.shape or self.kind not in _SAME_SHAPE_COLLECTIVES
        return self.kind == other.kind and same_shape


def parse_calls(text: str | bytes) -> list[CollectiveCall]:
    """Return the collectives in a flight recorder's JSON, oldest first; an empty list if the JSON cannot be
    parsed."""
    try:
        # The JSON is torch's and changes with its versions: without usable entries the stacks must do.
        entries = parse_json(text)["entries"]
        return [_parse_call(entry) for entry in entries if not entry.get("is_p2p")]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return []


def parse_microbatch(text: str | bytes) -> Phrase | None:
    """Return what a pipeline rank started last, such as 'forward of microbatch 3', from a flight recorder's
    JSON."""
    try:
        name, number = parse_json(text)["microbatch"]
        return phrase(MICROBATCH_TEXT, phase=str(name)[:_MAX_NAME_LENGTH], number=int(number))
    except (ValueError, TypeError, KeyError):
        return None


def _parse_call(entry: Mapping[str, Any]) -> CollectiveCall:
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    shapes = [f"{'x'.join(map(str, size)) or 1} {dtype}" for size, dtype in zip(sizes, dtypes, strict=False)]
    return CollectiveCall(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        kind=str(entry["profiling_name"]).rpartition(":")[2].lstrip("_"),
        shape=", ".join(shapes),
        is_finished=bool(entry.get("retired")),
    )


def current_call(calls: Sequence[CollectiveCall]) -> CollectiveCall | None:
    """Return the last call that the rank has not finished; None if it has finished all calls."""
    return next((call for call in reversed(calls) if not call.is_finished), None)


def find_mismatch(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[int, CollectiveCall]:
    """Return each rank's call at the first sequence number where the calls differ; empty if all calls
    match."""
    for ranks in _calls_by_number(calls).values():
        first = next(iter(ranks.values()))
        if not all(first.matches(call) for call in ranks.values()):
            return ranks
    return {}


def find_missing_ranks(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> tuple[list[int], CollectiveCall] | None:
    """Return a collective that only some ranks of its group have reached, as (missing ranks, call).

    None if no rank is known to be missing.
    """
    members = _group_ranks(calls)
    for (group, _), ranks in _calls_by_number(calls).items():
        absent = sorted(members[group] - ranks.keys())
        waited_for = next((call for call in ranks.values() if not call.is_finished), None)
        if absent and waited_for is not None:
            return absent, waited_for
    return None


def find_unfinished(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> tuple[CollectiveCall, list[int]] | None:
    """Return the first collective that all ranks of its group have reached but not all have finished, and the
    group's ranks.

    None if there is no such collective.
    """
    members = _group_ranks(calls)
    for (group, _), ranks in _calls_by_number(calls).items():
        call = next((call for call in ranks.values() if not call.is_finished), None)
        if call is not None and len(ranks) > 1 and members[group] == ranks.keys():
            return call, sorted(ranks)
    return None


def _group_ranks(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[str, set[int]]:
    """Return, for each group, the ranks that have called a collective in it."""
    members: dict[str, set[int]] = {}
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            members.setdefault(call.group, set()).add(rank)
    return members


def _calls_by_number(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> dict[tuple[str, int], dict[int, CollectiveCall]]:
    """Return calls by (group, number), then by rank. Leave out numbers that the flight recorder of any rank
    has already overwritten."""
    oldest: dict[str, int] = {}
    for rank_calls in calls.values():
        for group in {call.group for call in rank_calls}:
            first = min(call.number for call in rank_calls if call.group == group)
            # A flight recorder is a ring buffer: older numbers may be overwritten on one rank and present on
            # another.
            oldest[group] = max(oldest.get(group, 0), first)
    by_number: dict[tuple[str, int], dict[int, CollectiveCall]] = {}
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            if call.number >= oldest[call.group]:
                by_number.setdefault((call.group, call.number), {})[rank] = call
    return dict(sorted(by_number.items(), key=lambda item: item[0][1]))
