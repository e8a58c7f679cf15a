"""Define the planner's output: one JSON line per requested strategy, written as soon as it is known.

Every line is complete: it names a strategy with its options, the memory that each device needs in a step, and
a verdict. A line with `changes` is advice: the same run with one change, and how much memory that saves. The
values in a line are predictions, unless their names state that they were measured. The cheapest and the
recommended line can be marked only once all lines are available (plan_marks.py). planner/pool.py makes these
lines, and cli/plan.py prints them.

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
# The values are part of the JSON output.
AT_LEAST, AT_MOST = "least", "most"
MAX_LISTED_DEVICES = 64
"""Maximum number of devices that are listed individually."""
TIGHT_SHARE = 0.9
"""Share of a device's available memory; a plan that needs more than this share is tight."""


class PlannedDevice(msgspec.Struct, kw_only=True):
    """Bytes of one device in its most demanding step.

    `active_bytes` is the peak of live tensors, which is the sum of `by_kind` (see events.MEMORY_KINDS).
    `reserved_bytes` is what torch's allocator would reserve for that peak; it is None in a rehearsal, which
    has no allocator. The allocator frees cached segments only when memory runs out, so the step may need much
    less than `total_bytes`: `needed_bytes` is that amount, computed only if `total_bytes` is near or above
    the device's limit (else None). `constants_bytes` are the driver's context and NCCL's buffers, 0 in a
    rehearsal. The verdict compares `total_bytes` with `capacity_bytes` minus `others_bytes` (current memory
    of other processes); the capacity is None if it is unknown.
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
        """Memory that would remain free during the run; negative if the run does not fit."""
        if self.capacity_bytes is None:
            return None
        return self.capacity_bytes - self.others_bytes - self.total_bytes


class StepTime(msgspec.Struct, kw_only=True):
    """A predicted step time in seconds, as a range. `calibrated` is true if the range is based on a measured
    step of this model."""

    low_s: float
    high_s: float
    calibrated: bool = False

    @property
    def middle_s(self) -> float:
        """The geometric mean of the range."""
        return math.sqrt(self.low_s * self.high_s)


class PlanLine(TranslatableStruct, kw_only=True, tag_field="kind", tag="plan"):
    """One strategy with its options, and its predicted needs.

    `label` is the strategy's display name, with the options that differ from the defaults. `verdict` is one
    of VERDICTS and `reason` explains why it is not "fits"; `refusal` is the problem that would end a run at
    once, and is None if only the planner failed. `devices` is empty if nothing could be predicted.
    `configured` is true if the configuration itself names this strategy.

    `changes` maps dotted keys of the configuration to changed values ("train.activation_checkpointing":
    true), in addition to `strategy` and `options`. A line with changes is advice: `saves_bytes` is how much
    less the fullest device would need, and `advice` describes the change in a sentence. If nothing fits, a
    last advice line without `saves_bytes` names a way to make the run fit, or states that there is none.

    `is_bound` is true if the values are only a lower ("least") or an upper ("most") bound, as stated
    by `bound`; `notes` name other inaccuracies. On request, `largest_batch` is the largest train.global_batch
    that still fits, `movement` the computations and transfers of the devices in a step, `verified` a sentence
    on whether a rehearsal of the strategy matches a run on one device, and `verified_outcome` the outcome of
    events.Verified. `seconds` is the planning time.
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
        """The device that decides the verdict: the one with the most bytes, including those of other
        processes."""
        if not self.devices:
            return None
        return max(self.devices, key=lambda device: device.total_bytes + device.others_bytes)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(PlanLine)


def encode(line: PlanLine) -> bytes:
    """Encode a line as JSON, terminated by a line feed."""
    return _encoder.encode(line) + b"\n"


def decode(line: bytes) -> PlanLine:
    """Decode a line from JSON; keys that are unknown to this version are skipped.

    Raises:
        msgspec.DecodeError: the line is not a plan line (but, for example, a command's problems as JSON).
    """
    return decode_document(_decoder.decode, line)


def group_equal_devices(devices: Sequence[PlannedDevice]) -> list[list[PlannedDevice]]:
    """Return a group for each device; if there are too many devices to list, return one group for each set of
    devices with equal needs."""
    if len(devices) <= MAX_LISTED_DEVICES:
        return [[device] for device in devices]
    groups: dict[bytes, list[PlannedDevice]] = {}
    for device in devices:
        # Encoded, because devices are not hashable.
        needs = _encoder.encode(msgspec.structs.replace(device, device=0, name=None))
        groups.setdefault(needs, []).append(device)
    return list(groups.values())


def verdict_of(devices: Sequence[PlannedDevice], host_bytes: int | None = None) -> tuple[str, str | None]:
    """Return (verdict, reason) for devices whose bytes are known; the reason is None if the plan fits.

    Memory is tight if less than a tenth of the available memory would remain free. A device of unknown
    capacity is assumed to have enough memory. If the devices use host memory, `host_bytes` is the host's free
    memory, which must be enough for all of them together.
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
        "Together, the devices need {needed} of this machine's memory; {left} is available.",
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
        "device {device} lacks {lacking}: it would need {total} in addition to {others} used "
        "by other processes.",
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
        "device {device} would have {room} to spare, with {others} used by other processes.",
        device=_name(device),
        room=format_bytes(room),
        others=format_bytes(device.others_bytes),
    )


def is_tight(device: PlannedDevice) -> bool:
    """Check whether the device needs nearly all of its memory; False if its capacity is unknown."""
    if device.capacity_bytes is None:
        return False
    needed_bytes = device.total_bytes if device.needed_bytes is None else device.needed_bytes
    return needed_bytes > TIGHT_SHARE * (device.capacity_bytes - device.others_bytes)


def _free_bytes(device: PlannedDevice) -> int:
    room = device.room_bytes
    assert room is not None
    return room


_ABOUT_RATIO = 1.5
"""Ratio of a range's upper end to its lower end; below this ratio, only the middle is shown."""


def is_no_fit_advice(line: PlanLine) -> bool:
    """Check whether an advice line only states that nothing fits, without naming anything that would help."""
    return line.advice is not None and line.verdict == DOES_NOT_FIT and line.saves_bytes is None


def plan_verdict_text(line: PlanLine) -> str:
    """Return the verdict's display text, marked for translation.

    The text is "may fit" for a lower bound that fits or an upper bound that does not clearly fit, and "not
    predicted" if only the planner failed.
    """
    if line.verdict == CANNOT and line.refusal is None:
        return NOT_PREDICTED
    return MAY_FIT if is_uncertain(line) else _VERDICT_TEXTS.get(line.verdict, line.verdict)


def is_uncertain(line: PlanLine) -> bool:
    """Check whether the line has only a bound that leaves open whether the plan fits."""
    return line.verdict in {AT_LEAST: (FITS, TIGHT), AT_MOST: (TIGHT,)}.get(line.bound or "", ())


def step_time_text(step: StepTime) -> str:
    """Format a step time to two significant digits, a prediction's precision: '1.3–3.4 s', 'about 2 s'."""
    # Both ends share the unit, which is shown once.
    unit, factor = ("s", 1.0) if step.high_s >= 1 else ("ms", 1e3)
    low, high = step.low_s * factor, step.high_s * factor
    if high < _ABOUT_RATIO * low:
        return phrase("about {time}", time=f"{_two_digits(step.middle_s * factor)} {unit}")
    return f"{_two_digits(low)}–{_two_digits(high)} {unit}"


def _two_digits(value: float) -> str:
    """Format to two significant digits: '340', '3.4', '0.34'; '2' for 2.0."""
    return f"{float(f'{value:.1e}'):.10g}"
