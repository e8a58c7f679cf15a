"""What the planner says: one JSON line per strategy that was asked about, as soon as it is known.

Every line is whole: it names a strategy with its options, says for each device what a step would need, and
gives a verdict. A line with `changes` is advice: the same run with one thing changed, and what that saves.
Everything in a line is predicted, and nothing in it was measured unless its name says so. Which lines are the
cheapest and the recommended one can be said only when all are there: read plan_marks.py next, then
cli/plan.py, which prints these lines, or planner/pool.py, which makes them.

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
from collections.abc import Sequence

import msgspec

from rankdeck.base.errors import Problem
from rankdeck.base.parsing import check_depth, decode_document
from rankdeck.base.phrases import TranslatableStruct, phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.run.movement import Movement

FITS, TIGHT, DOES_NOT_FIT, CANNOT = "fits", "tight", "does-not-fit", "cannot"
_VERDICT_TEXTS = {
    FITS: tr_noop("fits"),
    TIGHT: tr_noop("tight"),
    DOES_NOT_FIT: tr_noop("does not fit"),
    CANNOT: tr_noop("cannot"),
}
MAY_FIT, NOT_PREDICTED = tr_noop("may fit"), tr_noop("not predicted")
VERDICTS = (FITS, TIGHT, DOES_NOT_FIT, CANNOT)
PREDICTED = tr_noop("predicted")
AT_LEAST, AT_MOST = "least", "most"
MAX_LISTED_DEVICES = 64
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

    @property
    def middle_s(self) -> float:
        """The geometric mean of the range."""
        return math.sqrt(self.low_s * self.high_s)


class PlanLine(TranslatableStruct, kw_only=True, tag_field="kind", tag="plan"):
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
    options: dict[str, object]
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
    changes: dict[str, object] = msgspec.field(default_factory=dict)
    advice: str | None = None
    saves_bytes: int | None = None
    largest_batch: int | None = None
    movement: Movement | None = None
    verified: str = ""
    verified_outcome: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_depth(self.options, self.changes)

    @property
    def fullest_device(self) -> PlannedDevice | None:
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
    return decode_document(_decoder.decode, line)


def group_equal_devices(devices: Sequence[PlannedDevice]) -> list[list[PlannedDevice]]:
    """Each device by itself, or where they are too many to be shown, those that need the same together."""
    if len(devices) <= MAX_LISTED_DEVICES:
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
    worst = min(limited, key=_free_bytes, default=None)
    if host_bytes is not None and together > host_bytes:
        return DOES_NOT_FIT, _host_memory_reason(together, host_bytes)
    if worst is not None and _free_bytes(worst) < 0:
        return DOES_NOT_FIT, _shortage_reason(worst, _free_bytes(worst))
    if worst is not None and any(map(is_tight, limited)):
        return TIGHT, _tight_reason(worst, _free_bytes(worst))
    if host_bytes is not None and together > TIGHT_SHARE * host_bytes:
        return TIGHT, _host_memory_reason(together, host_bytes)
    return FITS, None


def _host_memory_reason(together: int, host_bytes: int) -> str:
    return phrase(
        "The devices need {needed} of this machine's memory together, which has {left} left.",
        needed=format_bytes(together),
        left=format_bytes(host_bytes),
    )


def _name(device: PlannedDevice) -> str:
    return f"{device.device}" + (f" ({device.name})" if device.name else "")


def _shortage_reason(device: PlannedDevice, room: int) -> str:
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


def _tight_reason(device: PlannedDevice, room: int) -> str:
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


def _free_bytes(device: PlannedDevice) -> int:
    room = device.room_bytes
    assert room is not None
    return room


_ABOUT_RATIO = 1.5
"""A range whose ends are closer than this factor is told by its middle."""


def is_no_fit_advice(line: PlanLine) -> bool:
    """Whether a line of advice says that nothing fits, rather than what would help."""
    return line.advice is not None and line.verdict == DOES_NOT_FIT and line.saves_bytes is None


def plan_verdict_text(line: PlanLine) -> str:
    """The verdict for people, as a marked text: a lower bound that fits and an upper one that does not leave
    it open, and of what a run may well do nothing is known."""
    if line.verdict == CANNOT and line.refusal is None:
        return NOT_PREDICTED
    return MAY_FIT if is_uncertain(line) else _VERDICT_TEXTS.get(line.verdict, line.verdict)


def is_uncertain(line: PlanLine) -> bool:
    """Whether a bound leaves open whether it fits."""
    return line.verdict in {AT_LEAST: (FITS, TIGHT), AT_MOST: (TIGHT,)}.get(line.bound or "", ())


def step_time_text(step: StepTime) -> str:
    """'1.3–3.4 s', 'about 2 s': two digits are the most that a prediction deserves."""
    unit, factor = ("s", 1.0) if step.high_s >= 1 else ("ms", 1e3)
    low, high = step.low_s * factor, step.high_s * factor
    if high < _ABOUT_RATIO * low:
        return phrase("about {time}", time=f"{_two_digits(step.middle_s * factor)} {unit}")
    return f"{_two_digits(low)}–{_two_digits(high)} {unit}"


def _two_digits(value: float) -> str:
    """'340', '3.4', '0.34'; '2' for 2.0."""
    return f"{float(f'{value:.1e}'):.10g}"
