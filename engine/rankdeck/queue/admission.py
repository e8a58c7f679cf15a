"""Decides which entries start now, on which devices, and what the others wait for.

The rule: entries are served by priority, then in the order of the queue. An entry that lacks devices is
overtaken by later entries that fit, but only for `BACKFILL_S` after it became the first one that lacks
devices of its kind. From then on, all devices that it could use are kept for it as they become free, so that
a run on many devices starts as well. Everything here is a function of its arguments.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rankdeck.base.phrases import join_phrases, phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_bytes
from rankdeck.queue.devices import QueueDevice
from rankdeck.queue.entry import Entry

BACKFILL_S = 1800.0
_MAX_REASONS = 3
_WAITING_TEXTS = {
    "cpu": (tr_noop("waiting for 1 CPU slot"), tr_noop("waiting for {n} CPU slots")),
    "gpu": (tr_noop("waiting for 1 GPU"), tr_noop("waiting for {n} GPUs")),
}


@dataclass
class Decision:
    """A decision about all entries.

    `starts`: (entry, its devices). `waits`: what each other waiting entry waits for, by number. `blocked`:
    number of the first entry that lacks devices, for each kind of device.
    """

    starts: list[tuple[Entry, list[QueueDevice]]] = field(default_factory=list)
    waits: dict[int, str] = field(default_factory=dict)
    blocked: dict[str, int] = field(default_factory=dict)


def decide(
    entries: Sequence[Entry], devices: Sequence[QueueDevice], now: float, *, is_paused: bool = False
) -> Decision:
    """Decide for all entries of the queue; `now` is in Unix seconds.

    `devices` are those of this machine with the reasons why they are not free.
    """
    decision = Decision()
    by_number = {entry.number: entry for entry in entries}
    free = {device.lease: device for device in devices if not device.busy}
    # By priority first: a later entry with a higher priority is not an overtaking one.
    for entry in sorted(entries, key=lambda entry: (-entry.priority, entry.position)):
        if not entry.wants_start:
            continue
        reason = _reason_before_devices(entry, by_number, now, is_paused=is_paused)
        if reason:
            decision.waits[entry.number] = reason
            continue
        chosen = _choose(entry, devices, free)
        if chosen is not None:
            decision.starts.append((entry, chosen))
            for device in chosen:
                del free[device.lease]
            continue
        # The text is made before devices are kept for the entry, so that it names who uses them.
        decision.waits[entry.number] = _missing_devices(entry, devices, free)
        kind = entry.need.kind
        if kind not in decision.blocked:
            decision.blocked[kind] = entry.number
            if entry.blocked_since is not None and now - entry.blocked_since >= BACKFILL_S:
                for device in _eligible(entry, devices):
                    free.pop(device.lease, None)
    return decision


def _reason_before_devices(
    entry: Entry, by_number: Mapping[int, Entry], now: float, *, is_paused: bool
) -> str:
    """Return why an entry may not start even if devices are free; empty if it may."""
    if entry.is_held:
        return phrase("held; release it with: rankdeck queue release {number}", number=entry.number)
    if is_paused:
        return phrase("the queue is paused; resume it with: rankdeck queue resume")
    if entry.not_before > now:
        return phrase(
            "starts at {time}", time=time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.not_before))
        )
    if failed := failed_predecessor(entry, by_number):
        before = by_number.get(failed)
        state = "missing" if before is None else before.state
        return phrase(
            "cannot start: entry {number}, which it follows, is {state}", number=failed, state=state
        )
    unfinished = (number for number in entry.after if by_number[number].state != "completed")
    number = next(unfinished, None)
    return "" if number is None else phrase("waiting for entry {number} to complete", number=number)


def failed_predecessor(entry: Entry, by_number: Mapping[int, Entry]) -> int | None:
    """Return the number of an entry that had to complete before this one but never will; None if there is
    none."""
    return next(
        (
            number
            for number in entry.after
            if number not in by_number or by_number[number].state in ("failed", "stopped", "removed")
        ),
        None,
    )


def _eligible(entry: Entry, devices: Iterable[QueueDevice]) -> list[QueueDevice]:
    """Return the devices that could serve the entry if they were free."""
    need = entry.need
    if not need.gpus:
        return [device for device in devices if device.kind == need.kind and not device.is_instance]
    gpus = [device for device in devices if device.kind == "gpu"]
    by_name = {device.index: device for device in gpus if not device.is_instance}
    by_name |= {device.lease: device for device in gpus}
    return [by_name[name] for name in need.gpus if name in by_name]


def _num_needed(entry: Entry, eligible: Sequence[QueueDevice]) -> int:
    """Return the number of devices that the entry takes.

    A rehearsal on more virtual devices than there are CPU slots takes all slots, because virtual devices may
    share cores. An entry that takes all free GPUs starts as soon as one is free.
    """
    need = entry.need
    return min(need.num_devices, max(1, len(eligible))) if need.kind == "cpu" else max(1, need.num_devices)


def _choose(
    entry: Entry, devices: Sequence[QueueDevice], free: Mapping[str, QueueDevice]
) -> list[QueueDevice] | None:
    """Return the devices to start the entry on; None if too few are free."""
    need, eligible = entry.need, _eligible(entry, devices)
    fitting = [device for device in eligible if device.lease in free and not _lacks(entry, device)]
    num_needed = _num_needed(entry, eligible)
    if len(fitting) < num_needed:
        return None
    if need.num_devices == 0:
        return fitting
    if not need.gpus:
        # Those with the least free memory that is enough: the others stay free for larger runs.
        fitting.sort(key=lambda device: device.free_bytes or 0)
    return fitting[:num_needed]


def _lacks(entry: Entry, device: QueueDevice) -> str:
    """Return text that says which memory the device lacks; empty if it has enough."""
    need_bytes, free_bytes = entry.need.free_bytes, device.free_bytes
    # Drivers of GPUs that share the host's memory do not report it; nothing then speaks against a start.
    if free_bytes is None or free_bytes >= need_bytes:
        return ""
    return phrase(
        "has {free} of free memory, but {need} are needed",
        free=format_bytes(free_bytes),
        need=format_bytes(need_bytes),
    )


def _missing_devices(entry: Entry, devices: Sequence[QueueDevice], free: Mapping[str, QueueDevice]) -> str:
    """Return text such as "waiting for 2 GPUs: GPU 1 is used by the run NAME"."""
    eligible = _eligible(entry, devices)
    num_needed = _num_needed(entry, eligible)
    text = plural_phrase(*_WAITING_TEXTS[entry.need.kind], num_needed)
    if len(eligible) < num_needed:
        return phrase("{waiting}: this machine has {n}", waiting=text, n=len(eligible))
    reasons = []
    for device in eligible:
        reason = device.busy or _lacks(entry, device)
        if not reason and device.lease not in free:
            reason = phrase("is kept for an earlier entry")
        if reason:
            reasons.append(phrase("{device} {reason}", device=device.label, reason=reason))
    listed = reasons[:_MAX_REASONS]
    if len(reasons) > len(listed):
        listed.append(phrase("{n} more are not free", n=len(reasons) - len(listed)))
    return phrase("{waiting}: {reasons}", waiting=text, reasons=join_phrases(listed))
