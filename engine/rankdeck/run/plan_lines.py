"""What the planner says: one JSON line per strategy that was asked about, as soon as it is known.

Every line is whole: it names a strategy with its options, says for each device what a step would need, and
gives a verdict. A line with `changes` is advice: the same run with one thing changed, and what that saves.
Which lines are the cheapest and the recommended one can be said only when all are there: `marks`. Everything
in a line is predicted, and nothing in it was measured unless its name says so. Read cli/plan.py next, which
prints these lines, or planner/pool.py, which makes them.

An example (one line, wrapped here; kinds that are 0 are left out of `by_kind`):

    {"kind": "plan", "strategy": "ddp", "options": {"sync": "native", "bucket_mb": 25.0}, "label": "ddp",
     "verdict": "fits", "reason": null, "seconds": 1.21, "configured": true, "target": "8 x A100-80GB",
     "devices": [{"device": 0, "name": "A100-80GB", "active_bytes": 6905921536, "reserved_bytes": 7044333568,
       "constants_bytes": 1073741824, "total_bytes": 8118075392, "capacity_bytes": 85899345920,
       "others_bytes": 0, "by_kind": {"parameters": 497759232, "gradients": 497759232, "activations": ...}}],
     "step": {"low_s": 0.11, "high_s": 0.29, "calibrated": false}}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.base.parsing import document_of, refuse_deep
from rankdeck.base.phrases import Telling, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run.movement import Movement

FITS, TIGHT, DOES_NOT_FIT, CANNOT = "fits", "tight", "does-not-fit", "cannot"
_VERDICT_WORDS = {
    FITS: marked("fits"),
    TIGHT: marked("tight"),
    DOES_NOT_FIT: marked("does not fit"),
    CANNOT: marked("cannot"),
}
MAY_FIT = marked("may fit")
VERDICTS = (FITS, TIGHT, DOES_NOT_FIT, CANNOT)
PREDICTED = marked("predicted")
LEAST, MOST = "least", "most"
MOST_SHOWN = 64
"""So many devices are shown one by one."""
TIGHT_SHARE = 0.9
"""A plan fits with at most this share of what a device has for the run; with more of it memory is tight."""


class PlannedDevice(msgspec.Struct, kw_only=True):
    """One device in the step that needs the most of it, in bytes.

    `active_bytes` is the peak of live tensors; `by_kind` (see events.MEMORY_KINDS) adds up to it.
    `reserved_bytes` is what torch's allocator would hold to serve it, None in a rehearsal, which has none.
    The allocator keeps what it has reserved while the device has room: `needed_bytes` is what would do of
    `total_bytes` where that is clearly less, because segments are given back before memory runs out.
    `constants_bytes` are the driver's context and NCCL's buffers, 0 in a rehearsal. `total_bytes` is what the
    verdict compares with `capacity_bytes` less `others_bytes` (what other processes hold now); the capacity
    is None where nobody named one.
    """

    device: int
    name: str | None = None
    active_bytes: int
    reserved_bytes: int | None = None
    constants_bytes: int = 0
    total_bytes: int
    needed_bytes: int | None = None
    capacity_bytes: int | None = None
    others_bytes: int = 0
    by_kind: dict[str, int] = {}

    @property
    def room_bytes(self) -> int | None:
        """What is left of the device for this run; negative where it does not fit."""
        if self.capacity_bytes is None:
            return None
        return self.capacity_bytes - self.others_bytes - self.total_bytes


class StepTime(msgspec.Struct, kw_only=True):
    """A predicted step in seconds, as a range. `calibrated`: a measured step of this model is behind it."""

    low_s: float
    high_s: float
    calibrated: bool = False


class PlanLine(Telling, kw_only=True, tag_field="kind", tag="plan"):
    """One strategy with its options, and what it would need.

    `label` names it for people, with the options that are not its default ones. `verdict` is one of VERDICTS
    and `reason` says why it is not "fits"; `refusal` is the problem that a run of it would end with at once,
    None also where the planner alone gave up. `devices` is empty where nothing could be predicted.
    `configured`: this is what the configuration itself asks for. `changes` are dotted keys of the
    configuration that differ from it beside the strategy ("train.activation_checkpointing": true); with them
    the line is advice, `saves_bytes` is what the fullest device would need less, and `advice` says so in a
    sentence. Where nothing fits, a last such line without it names a way to fit, or says that there is none.
    `is_bound`: the figures are a bound, because part of the run could not be followed: a lower one ("least")
    or an upper one ("most"), as `bound` says; `notes` say what else is less exact. `largest_batch` is the
    largest train.global_batch that still fits, and `movement` what devices do and send in a step, where that
    was asked for. `verified` says in a sentence whether a rehearsal of the strategy computes what one device
    does, and `verified_outcome` is that of events.Verified, where that was asked for. `seconds` is how long
    the answer took.
    """

    strategy: str
    options: dict[str, Any]
    label: str
    verdict: str
    reason: str | None = None
    refusal: Problem | None = None
    seconds: float = 0.0
    devices: list[PlannedDevice] = msgspec.field(default_factory=list)
    target: str = ""
    configured: bool = False
    source: str = PREDICTED
    is_bound: bool = False
    bound: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    step: StepTime | None = None
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    advice: str | None = None
    saves_bytes: int | None = None
    largest_batch: int | None = None
    movement: Movement | None = None
    verified: str = ""
    verified_outcome: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_deep(self.options, self.changes)

    @property
    def fullest(self) -> PlannedDevice | None:
        """The device that decides: least room, or most bytes where no capacity is known."""
        if not self.devices:
            return None
        return max(self.devices, key=lambda device: device.total_bytes + device.others_bytes)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PlanLine)


def encode(line: PlanLine) -> bytes:
    """One JSON line with its line feed."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> PlanLine:
    """The line behind some JSON; keys that this version does not know are skipped.

    Raises:
        msgspec.DecodeError: it is no line of a plan (a command's problems come as one object on one line).
    """
    return document_of(_decoder.decode, line)


def alike(devices: Sequence[PlannedDevice]) -> list[list[PlannedDevice]]:
    """Each device by itself, or where they are too many to be shown, those that need the same together."""
    if len(devices) <= MOST_SHOWN:
        return [[device] for device in devices]
    groups: dict[bytes, list[PlannedDevice]] = {}
    for device in devices:
        needs = _encoder.encode(msgspec.structs.replace(device, device=0, name=None))
        groups.setdefault(needs, []).append(device)
    return list(groups.values())


def verdict_of(devices: Sequence[PlannedDevice], host_bytes: int | None = None) -> tuple[str, str | None]:
    """(verdict, reason) of devices whose bytes are known: tight where less than a tenth of what they have for
    the run would be left. Without a capacity a plan fits, as long as the host has the bytes of all devices
    together where they are its own.
    """
    together = sum(device.total_bytes for device in devices)
    limited = [device for device in devices if device.room_bytes is not None]
    worst = min(limited, key=_room, default=None)
    if host_bytes is not None and together > host_bytes:
        return DOES_NOT_FIT, _of_the_host(together, host_bytes)
    if worst is not None and _room(worst) < 0:
        return DOES_NOT_FIT, _lack(worst, _room(worst))
    if worst is not None and any(map(is_tight, limited)):
        return TIGHT, _little_room(worst, _room(worst))
    if host_bytes is not None and together > TIGHT_SHARE * host_bytes:
        return TIGHT, _of_the_host(together, host_bytes)
    return FITS, None


def _of_the_host(together: int, host_bytes: int) -> str:
    return phrase(
        "The devices need {needed} of this machine's memory together, which has {left} left.",
        needed=format_bytes(together),
        left=format_bytes(host_bytes),
    )


def _name(device: PlannedDevice) -> str:
    return f"{device.device}" + (f" ({device.name})" if device.name else "")


def _lack(device: PlannedDevice, room: int) -> str:
    sizes = {"lacking": format_bytes(-room), "total": format_bytes(device.total_bytes)}
    if not device.others_bytes:
        return phrase(
            "device {device} lacks {lacking}: it would need {total}.", device=_name(device), **sizes
        )
    return phrase(
        "device {device} lacks {lacking}: it would need {total} beside {others} of other processes.",
        device=_name(device),
        others=format_bytes(device.others_bytes),
        **sizes,
    )


def _little_room(device: PlannedDevice, room: int) -> str:
    if not device.others_bytes:
        return phrase(
            "device {device} would have {room} to spare.", device=_name(device), room=format_bytes(room)
        )
    return phrase(
        "device {device} would have {room} to spare beside {others} of other processes.",
        device=_name(device),
        room=format_bytes(room),
        others=format_bytes(device.others_bytes),
    )


def is_tight(device: PlannedDevice) -> bool:
    """Whether what it needs comes close to what the device has, if that is known."""
    if device.capacity_bytes is None:
        return False
    needed_bytes = device.total_bytes if device.needed_bytes is None else device.needed_bytes
    return needed_bytes > TIGHT_SHARE * (device.capacity_bytes - device.others_bytes)


def _room(device: PlannedDevice) -> int:
    room = device.room_bytes
    assert room is not None
    return room


class Marks(msgspec.Struct, frozen=True):
    """Places of lines in a list: `cheapest` needs the least of its fullest device, `recommended` is to be
    taken for the `reason`; None where no line has figures, or nothing fits."""

    cheapest: int | None
    recommended: int | None
    reason: str = ""


_ABOUT = 1.5  # ranges whose ends are closer are told by their middle
EQUALLY_FAST = 1.1
"""Predictions whose middles are no further apart than this factor cannot tell which is faster."""
_ONLY_ONE = (marked("It fits with room."), marked("As far as is known it fits with room."))
"""Why a line is recommended: what is predicted for it is sure, or a bound of which more is not known."""
_SURE_OF_NO_OTHER = (
    marked("It fits with room, which is sure of no other."),
    marked("As far as is known it fits with room, which is sure of no other."),
)
_NO_OTHER_DOES = (
    marked("It fits with room, which no other does."),
    marked("As far as is known it fits with room, which no other does."),
)
_SIMPLEST = (
    marked("It fits with room, step times are not known, and it is the simplest."),
    marked("As far as is known it fits with room, step times are not known, and it is the simplest."),
)
_SIMPLEST_AT_ONCE = (
    marked(
        "It fits with room, step times are not known, and it is the simplest in which all devices work at "
        "once."
    ),
    marked(
        "As far as is known it fits with room, step times are not known, and it is the simplest in which all "
        "devices work at once."
    ),
)
_FASTEST = (
    marked("It fits with room, and no other that does is predicted to be faster."),
    marked("As far as is known it fits with room, and no other that does is predicted to be faster."),
)
_SIMPLEST_OF_FASTEST = (
    marked("It fits with room, and of the fastest that do (within 10 %) it is the simplest."),
    marked(
        "As far as is known it fits with room, and of the fastest that do (within 10 %) it is the simplest."
    ),
)
_Rows = Sequence[tuple[int, PlanLine]]
_LEFT_OUT = marked("{reason} pipeline-async is left out: it trains something else than one device.")


def marks(lines: Iterable[PlanLine]) -> Marks:
    """Which of the lines to mark; lines of advice are left out.

    Of those that fit with room the fastest by the prediction, and of equally fast ones the simplest. Where
    times are not known, the simplest in which all devices work at once. Where memory is tight under all that
    fit, the one that needs the least. What only may fit (a bound) is taken where nothing is sure to, what
    trains otherwise where nothing else was asked for. The reason holds for the rows as they are shown.
    """
    asked = [(place, line) for place, line in enumerate(lines) if not line.changes]
    known = [(place, line) for place, line in asked if line.devices and line.strategy in STRATEGIES]
    cheapest = min(known, key=lambda item: _need(item[1]))[0] if known else None
    exact = [item for item in asked if not trains_otherwise(item[1])] or asked
    marks = _marks(cheapest, exact, [item for item in known if item in exact])
    if not marks.reason or all(item in exact for item in known):
        return marks
    return msgspec.structs.replace(marks, reason=phrase(_LEFT_OUT, reason=marks.reason))


def trains_otherwise(line: PlanLine) -> bool:
    """Whether a run of it ends with other weights than one device by design."""
    return line.strategy in STRATEGIES and STRATEGIES[line.strategy].is_stale


def _marks(cheapest: int | None, asked: _Rows, known: _Rows) -> Marks:
    sure = [item for item in known if item[1].verdict == FITS and not _is_open(item[1])]
    fits = sure or [item for item in known if item[1].verdict == FITS]
    if not fits:
        tight = [item for item in known if item[1].verdict == TIGHT]
        return _least_of_tight(cheapest, tight) if tight else Marks(cheapest, None)
    if len(fits) == 1:
        ((place, line),) = fits
        may_fit = any(_is_open(other) for _, other in asked if other is not line)
        why = _ONLY_ONE if len(asked) == 1 else _SURE_OF_NO_OTHER if may_fit else _NO_OTHER_DOES
        return Marks(cheapest, place, _because(line, why))
    timed = [(place, line, _middle_s(line.step)) for place, line in fits if line.step is not None]
    if not timed:
        # One device after another is as slow as one alone.
        place, line = min(
            fits, key=lambda item: (STRATEGIES[item[1].strategy].planning.in_turn, *complexity(item[1]))
        )
        why = _SIMPLEST_AT_ONCE if len(line.devices) > 1 else _SIMPLEST
        return Marks(cheapest, place, _because(line, why))
    fastest_s = min(middle_s for _, _, middle_s in timed)
    close = [(place, line) for place, line, middle_s in timed if middle_s <= EQUALLY_FAST * fastest_s]
    place, line = min(close, key=lambda item: complexity(item[1]))
    return Marks(cheapest, place, _because(line, _FASTEST if len(close) == 1 else _SIMPLEST_OF_FASTEST))


def _because(line: PlanLine, why: tuple[str, str]) -> str:
    return phrase(why[line.is_bound and line.bound != MOST])


def _least_of_tight(cheapest: int | None, tight: _Rows) -> Marks:
    sure = [item for item in tight if not _is_open(item[1])]
    place, _ = min(sure or tight, key=lambda item: _need(item[1]))
    return Marks(
        cheapest,
        place,
        phrase("Memory is tight under all that fit; this one needs the least.")
        if sure
        else phrase("Memory is tight, and none is sure to fit; this one needs the least."),
    )


def is_last_word(line: PlanLine) -> bool:
    """Whether a line of advice says that nothing fits, rather than what would help."""
    return line.advice is not None and line.verdict == DOES_NOT_FIT and line.saves_bytes is None


def words_of(line: PlanLine) -> str:
    """The verdict for people, as a marked text."""
    return MAY_FIT if _is_open(line) else _VERDICT_WORDS.get(line.verdict, line.verdict)


def _is_open(line: PlanLine) -> bool:
    return line.verdict in {LEAST: (FITS, TIGHT), MOST: (TIGHT,)}.get(line.bound or "", ())


def step_words(step: StepTime) -> str:
    """'1.3–3.4 s', 'about 2 s': two digits are the most that a prediction deserves."""
    unit, factor = ("s", 1.0) if step.high_s >= 1 else ("ms", 1e3)
    low, high = step.low_s * factor, step.high_s * factor
    if high < _ABOUT * low:
        return phrase("about {time}", time=f"{_two_digits(math.sqrt(low * high))} {unit}")
    return f"{_two_digits(low)}–{_two_digits(high)} {unit}"


def _two_digits(value: float) -> str:
    """'340', '3.4', '0.34'; '2' for 2.0."""
    return f"{float(f'{value:.1e}'):.10g}"


def _need(line: PlanLine) -> int:
    assert line.fullest is not None
    return line.fullest.total_bytes  # which is shown of a line


def complexity(line: PlanLine) -> tuple[int, bool, int]:
    """What sorts lines from the simplest on; one thread for several devices is no simplification."""
    options = len(STRATEGIES[line.strategy].changed(line.options))
    drives_several = STRATEGIES[line.strategy].planning.one_thread and len(line.devices) > 1
    return options, drives_several, list(STRATEGIES).index(line.strategy)


def _middle_s(step: StepTime) -> float:
    """The geometric mean of a range."""
    return math.sqrt(step.low_s * step.high_s)
