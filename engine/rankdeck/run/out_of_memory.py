"""Why a run ran out of memory, from what it told: what stood on the device, and which allocation tipped it.

A rank says at its end what an allocation asked for, which module asked, and what the model's modules hold
(events.OutOfMemory). What all tensors held by kind is known of that moment where somebody counted: a GPU's
allocator always, the ledger of a rehearsal in steps that it followed. Else the last sampled step stands in,
with its age. Ways out are the planner's (ways_out.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rankdeck import events
from rankdeck.base.allocations import Allocation, allocation_of
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import listed, marked, phrase
from rankdeck.base.units import format_bytes, format_count
from rankdeck.config.cures import is_out_of_memory

if TYPE_CHECKING:
    from rankdeck.run.devices import DeviceFigures
    from rankdeck.run.fold import Fold

_OVER_CAPACITY = "over-capacity"


@dataclass(frozen=True)
class RanOut:
    """`place` is the device's in the run, None where nobody knows which. `held` is by kind, of the moment
    when it failed where `age_s` is 0, else the peak of step `held_step`, so much before. `modules` are bytes
    by kind, always of that moment.
    """

    problem: Problem
    allocation: Allocation
    place: int | None = None
    label: str = ""
    step: int | None = None
    module: str | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    held_step: int | None = None
    age_s: float | None = None
    source: str | None = None
    modules: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def is_pretended(self) -> bool:
        """Whether a rehearsal held more than its devices pretend to have, and went on."""
        return self.problem.code == _OVER_CAPACITY

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())


def ran_out(fold: Fold, problems: Sequence[Problem], capacity_bytes: int | None = None) -> RanOut | None:
    """What is known of the last time that memory ran out; None where it never did. `capacity_bytes` is what a
    rehearsal pretends."""
    found = [problem for problem in problems if is_out_of_memory(problem)]
    if not found:
        return None
    problem = next((one for one in reversed(found) if one.severity == "error"), found[-1])
    if problem.code == _OVER_CAPACITY:
        return _over_capacity(fold, problem, capacity_bytes)
    told = sorted(fold.out_of_memory.values(), key=lambda event: event.t)
    own = [event for event in told if problem.rank in (None, event.rank)]
    if own:
        return _told_by(fold, problem, own[0])
    allocation = allocation_of("\n".join((problem.message, *problem.last_lines)))
    device = _fullest(fold) if len(fold.devices) == 1 or problem.rank is None else None
    device = fold.devices.get(problem.rank, device) if problem.rank is not None else device
    return _with_sampled(fold, RanOut(problem, allocation, step=fold.step), device, None)


def _told_by(fold: Fold, problem: Problem, event: events.OutOfMemory) -> RanOut:
    device = fold.devices.get(event.device) if event.device is not None else _fullest(fold)
    ran = RanOut(
        problem,
        event.allocation,
        step=event.step or None,
        module=event.module,
        modules=event.modules,
        source=event.source,
    )
    place = None if device is None else device.device
    known = next((one for one in event.devices if one.device == place and one.live_by_kind), None)
    if known is None or device is None or known.live_by_kind is None:
        return _with_sampled(fold, ran, device, event.t)
    return replace(ran, place=place, label=device.label, held=_known(known.live_by_kind),
                    held_step=ran.step, age_s=0.0)  # fmt: skip


def _over_capacity(fold: Fold, problem: Problem, capacity_bytes: int | None) -> RanOut:
    """The step that needed the most, of the device that needed the most."""
    device, allocation = _fullest(fold), Allocation(capacity_bytes=capacity_bytes)
    ran = RanOut(problem, allocation, source=fold.source)
    if device is None or device.peak is None:
        return ran
    held = _known(device.peak.memory.peak_by_kind or {})
    step = device.peak.step
    return replace(ran, place=device.device, label=device.label, step=step, held=held, held_step=step,
                    age_s=0.0)  # fmt: skip


def _with_sampled(fold: Fold, ran: RanOut, device: DeviceFigures | None, failed_at: float | None) -> RanOut:
    """With the last sampled step of a device, and how long before the failure it was."""
    if device is None:
        return ran
    ran = replace(ran, place=device.device, label=device.label)
    if device.memory is None:
        return ran
    began, sampled_s = fold.first_started, device.peak_history.last_x
    age_s = None
    if failed_at is not None and began is not None and sampled_s is not None:
        age_s = max(0.0, failed_at - began.started - sampled_s)
    kinds = device.memory.peak_by_kind or device.memory.live_by_kind or {}
    return replace(ran, held=_known(kinds), held_step=device.memory_step, age_s=age_s, source=fold.source)


def _known(kinds: Mapping[str, int]) -> dict[str, int]:
    """The largest first, without those of nothing."""
    return dict(sorted(((kind, size) for kind, size in kinds.items() if size), key=lambda item: -item[1]))


def _fullest(fold: Fold) -> DeviceFigures | None:
    known = [device for device in fold.devices.values() if device.info is not None]
    return max(known, key=lambda device: device.peak_bytes or device.used_peak_bytes or 0, default=None)


# In words


def headline(ran: RanOut) -> str:
    """'GPU 1 ran out of memory in step 6.'"""
    who = ran.label or phrase("A process")
    if ran.step is None:
        if ran.is_pretended:
            return phrase("{device} held more than it pretends to have; the rehearsal went on.", device=who)
        return phrase("{device} ran out of memory.", device=who)
    template = (
        marked("{device} held more in step {step} than it pretends to have; the rehearsal went on.")
        if ran.is_pretended
        else marked("{device} ran out of memory in step {step}.")
    )
    return phrase(template, device=who, step=format_count(ran.step))


def tipped(ran: RanOut) -> str:
    """Which allocation it was, and what there was room for, as far as is known."""
    told = ran.allocation
    if ran.is_pretended:
        if told.capacity_bytes is None:
            return ""
        return phrase(
            "It held {held}, and rehearsal.capacity is {capacity}.",
            held=format_bytes(ran.held_bytes),
            capacity=format_bytes(told.capacity_bytes),
        )
    if told.asked_bytes is None:
        return phrase("Which allocation it was, nobody said: the process was ended from outside.")
    size = format_bytes(told.asked_bytes)
    failed = (
        phrase("An allocation of {size} failed.", size=size)
        if ran.module is None
        else phrase("An allocation of {size} failed in {module}.", size=size, module=module_name(ran.module))
    )
    room = _room(told)
    return phrase("{failed} {room}", failed=failed, room=room) if room else failed


_HELD = (
    ("in_use_bytes", marked("this process held {size}"), marked("This process held {size}")),
    ("allocated_bytes", marked("torch's tensors of it {size}"), marked("Torch's tensors of it {size}")),
    (
        "unused_bytes",
        marked("torch's allocator kept unused {size}"),
        marked("Torch's allocator kept unused {size}"),
    ),
    ("others_bytes", marked("others held {size}"), marked("Others held {size}")),
)
"""Of an allocation that failed, and what is said of it: within a sentence, and where one begins with it."""


def _room(told: Allocation) -> str:
    """'Of 14.6 GiB, 1.6 GiB were free: this process held 966.0 MiB, others held 12.0 GiB.'"""
    known = [
        (format_bytes(size), within, first) for name, within, first in _HELD if (size := getattr(told, name))
    ]
    if told.capacity_bytes is None or told.free_bytes is None:
        parts = [phrase(within if at else first, size=size) for at, (size, within, first) in enumerate(known)]
        return phrase("{held}.", held=listed(parts)) if parts else ""
    held = listed([phrase(within, size=size) for size, within, _ in known])
    capacity, free = format_bytes(told.capacity_bytes), format_bytes(told.free_bytes)
    if not held:
        return phrase("Of {capacity}, {free} were free.", capacity=capacity, free=free)
    return phrase("Of {capacity}, {free} were free: {held}.", capacity=capacity, free=free, held=held)


def moment(ran: RanOut) -> str:
    """When what is shown by kind stood on the device."""
    if not ran.held:
        return phrase("No step was sampled before it failed: what stood on the device by kind is not known.")
    if ran.held_step is None:
        return phrase("when it failed") if ran.age_s == 0 else ""
    step = format_count(ran.held_step)
    if ran.age_s == 0:
        if ran.is_pretended:
            return phrase("at the peak of step {step}", step=step)
        return phrase("when it failed, in step {step}", step=step)
    if ran.age_s is None:
        return phrase("peak of step {step}, the last one that was sampled", step=step)
    return phrase(
        "peak of step {step}, the last one that was sampled, {seconds:.1f} s before it failed",
        step=step,
        seconds=ran.age_s,
    )


def short_moments(ran: RanOut) -> list[str]:
    """The same where there is ever less room: 'step 3, 1.4 s before it failed', 'step 3'."""
    if not ran.held:
        return [phrase("not known")]
    if ran.held_step is None:
        return []
    step = format_count(ran.held_step)
    told: list[str] = [phrase("step {step}", step=step)]
    if ran.age_s:
        told.insert(0, phrase("step {step}, {seconds:.1f} s before it failed", step=step, seconds=ran.age_s))
    return told


def module_name(name: str) -> str:
    """The one whose name is empty is the model."""
    return name or phrase("the model itself")
