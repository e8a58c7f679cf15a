"""What faulthandler writes when a rank is asked where it stands -> the frames that tell it.

Read user_code.py before and hang.py next.
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
_WAITING_FILES = (
    "torch/distributed/",
    "rankdeck/parallel/collectives/ring.py",
    "rankdeck/parallel/collectives/peers.py",
    "rankdeck/parallel/pipelining/communication.py",
)
_BACKWARD = "_engine_run_backward"
_WAITING_FUNCTIONS = {_BACKWARD: ("torch/autograd/",), "synchronize": ("torch/cuda/", "torch/accelerator/")}
"""In these folders, also of a torch that a person has built, which is installed nowhere."""
_THREAD_ENTRY = "_bootstrap"
"""The outermost function of every thread that Python code has started."""
_DEBUGGERS = ("/pdb.py", "/bdb.py", "/debugpy/", "/pydevd", "/ipdb/", "/pudb/")


@dataclass(frozen=True)
class Frame:
    """Where a thread stands."""

    file: str
    line: int
    function: str

    def text(self) -> Phrase:
        return phrase(
            "{function} ({file}, line {line})", function=self.function, file=self.file, line=self.line
        )


def parse_stack(text: str) -> list[Frame]:
    """The thread that tells most in faulthandler's last report, innermost frame first: the one that it calls
    current (the main one), or where that stands in no code of the person's and waits for no other rank, one
    that does stand in theirs."""
    threads, current = _parse_threads(text)
    if current is None:
        return []
    main = threads[current]
    if main and main[0].function == _BACKWARD:
        # What belongs to a GPU runs in a thread of torch's own: a hook, or a backward of the person's.
        return next((frames for frames in threads if _is_user_code_on_torch_thread(frames)), main)
    if is_waiting(main) or any(is_user_file(frame.file) for frame in main):
        return main
    return next((frames for frames in threads if any(is_user_file(frame.file) for frame in frames)), main)


def _parse_threads(text: str) -> tuple[list[list[Frame]], int | None]:
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
    outside = itertools.takewhile(
        lambda frame: _is_waiting_frame(frame) or not is_user_file(frame.file), frames[:3]
    )
    return any(map(_is_waiting_frame, outside))


def _is_waiting_frame(frame: Frame) -> bool:
    files = (*_WAITING_FILES, *_WAITING_FUNCTIONS.get(frame.function, ()))
    return any(part in frame.file for part in files)


def _is_user_code_on_torch_thread(frames: Sequence[Frame]) -> bool:
    """Whether a thread that no Python code has started runs code of the person's."""
    is_pythons = not frames or frames[-1].function in (_THREAD_ENTRY, "<module>")
    return not is_pythons and any(is_user_file(frame.file) for frame in frames)


def is_debugged(frames: Sequence[Frame]) -> bool:
    """Whether a debugger of Python's has stopped the thread."""
    return any(part in frame.file for frame in frames for part in _DEBUGGERS)


def format_location(frames: Sequence[Frame]) -> Phrase:
    """The innermost line of the person's own code, and which function of others it has called."""
    own = next((frame for frame in frames if is_user_file(frame.file)), None)
    if own is None or own == frames[0]:
        return frames[0].text()
    return phrase("{place}, in a call of {function}", place=own.text(), function=_called_function(frames))


def _called_function(frames: Sequence[Frame]) -> str:
    """The outermost function of torch's collectives that is under way, else the innermost of all."""
    calls = [frame for frame in frames if frame.file.endswith("torch/distributed/distributed_c10d.py")]
    return calls[-1].function if calls else frames[0].function


# What torch's flight recorder holds of every rank -> who has not come to which collective, and whether all
# have called the same ones in the same order.
#
# Each group numbers its collectives, and a rank enters a number only once it has come to that call. Where
# the same number is another collective elsewhere, everybody waits for ever. Messages between two ranks have
# no such numbers and are left out.

_SAME_SHAPE_COLLECTIVES = ("all_reduce", "broadcast", "reduce")
"""What every rank passes tensors of one shape to."""
_MAX_NAME_LENGTH = 40
MICROBATCH_TEXT = tr_noop("{phase} of microbatch {number}")


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank has come to: the `number`th of its group."""

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
        """Whether the two can be one collective."""
        same_shape = self.shape == other.shape or self.kind not in _SAME_SHAPE_COLLECTIVES
        return self.kind == other.kind and same_shape


def parse_calls(text: str | bytes) -> list[CollectiveCall]:
    """The collectives in a recorder's JSON, the oldest first; empty for what is none."""
    try:
        entries = parse_json(text)["entries"]
        return [_parse_call(entry) for entry in entries if not entry.get("is_p2p")]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return []


def parse_microbatch(text: str | bytes) -> Phrase | None:
    """What a rank of a pipeline has begun last, of the same JSON: 'forward of microbatch 3'."""
    try:
        name, number = parse_json(text)["microbatch"]
        return phrase(MICROBATCH_TEXT, phase=str(name)[:_MAX_NAME_LENGTH], number=int(number))
    except (ValueError, TypeError, KeyError):
        return None


def _parse_call(entry: Mapping[str, Any]) -> CollectiveCall:
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    told = [f"{'x'.join(map(str, size)) or 1} {dtype}" for size, dtype in zip(sizes, dtypes, strict=False)]
    return CollectiveCall(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        kind=str(entry["profiling_name"]).rpartition(":")[2].lstrip("_"),
        shape=", ".join(told),
        is_finished=bool(entry.get("retired")),
    )


def current_call(calls: Sequence[CollectiveCall]) -> CollectiveCall | None:
    """The one that a rank is in."""
    return next((call for call in reversed(calls) if not call.is_finished), None)


def find_mismatch(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[int, CollectiveCall]:
    """By rank what it has called under the first number that was not the same everywhere; empty where all
    that is known fits together."""
    for ranks in _calls_by_number(calls).values():
        first = next(iter(ranks.values()))
        if not all(first.matches(call) for call in ranks.values()):
            return ranks
    return {}


def find_missing_ranks(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> tuple[list[int], CollectiveCall] | None:
    """The ranks that have not come to a collective where others of their group are, and that collective; None
    where nobody is known to be missing."""
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
    """The first collective that every rank of its group has come to and that is not over in all of them, with
    its ranks; None where there is none."""
    members = _group_ranks(calls)
    for (group, _), ranks in _calls_by_number(calls).items():
        call = next((call for call in ranks.values() if not call.is_finished), None)
        if call is not None and len(ranks) > 1 and members[group] == ranks.keys():
            return call, sorted(ranks)
    return None


def _group_ranks(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[str, set[int]]:
    """The ranks of each group, as far as they have called anything in it."""
    members: dict[str, set[int]] = {}
    for rank, made in calls.items():
        for call in made:
            members.setdefault(call.group, set()).add(rank)
    return members


def _calls_by_number(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> dict[tuple[str, int], dict[int, CollectiveCall]]:
    """Of each group and number who has come to it, without numbers that some recorder no longer holds."""
    oldest: dict[str, int] = {}
    for made in calls.values():
        for group in {call.group for call in made}:
            first = min(call.number for call in made if call.group == group)
            oldest[group] = max(oldest.get(group, 0), first)
    found: dict[tuple[str, int], dict[int, CollectiveCall]] = {}
    for rank, made in calls.items():
        for call in made:
            if call.number >= oldest[call.group]:
                found.setdefault((call.group, call.number), {})[rank] = call
    return dict(sorted(found.items(), key=lambda item: item[0][1]))
