"""Why a run ran out of memory, from what it reported: what was on the device, and which allocation tipped it.

A rank reports at its end what an allocation asked for, which module asked, and what the model's modules hold
(events.OutOfMemory). Memory by kind is known for that moment where it was counted: always by a GPU's
allocator, by the ledger of a rehearsal in steps that it followed. Else the last sampled step stands in, with
its age. The terminal, the report's page and the app show the same `OutOfMemoryReport`. Fixes come from the
planner (fixes.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankdeck import events
from rankdeck.base.allocations import Allocation, parse_allocation
from rankdeck.base.errors import Problem
from rankdeck.base.phrases import join_phrases, phrase, tr_noop
from rankdeck.base.units import format_bytes, format_count
from rankdeck.diagnose.fixes import Fix, config_or_none, is_memory_problem, planned_fixes
from rankdeck.diagnose.user_code import CodeLine, user_lines
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run_dir import RunDir

if TYPE_CHECKING:
    from rankdeck.run.devices import DeviceState
    from rankdeck.run.run_state import RunState

MAX_MODULES = 24
NO_PLAN_TEXT = tr_noop(
    "Nothing was planned: a person's own script has no configuration that could be changed."
)
NO_SMALLER_PLAN_TEXT = tr_noop(
    "Nothing that was planned needs less: use more devices, larger ones, or a smaller model."
)
_OVER_CAPACITY_CODE = "over-capacity"
_KIND_TEXTS = {"gathered": tr_noop("gathered")}
"""Of kinds that the window names otherwise elsewhere."""
_USAGE_TEXTS = (
    ("in_use_bytes", tr_noop("this process held {size}"), tr_noop("This process held {size}")),
    ("allocated_bytes", tr_noop("torch's tensors of it {size}"), tr_noop("Torch's tensors of it {size}")),
    (
        "unused_bytes",
        tr_noop("torch's allocator kept unused {size}"),
        tr_noop("Torch's allocator kept unused {size}"),
    ),
    ("others_bytes", tr_noop("others held {size}"), tr_noop("Others held {size}")),
)
"""Of an allocation that failed, and what is said of it: within a sentence, and where one begins with it."""


class MemoryShare(NamedTuple):
    """A kind or a module, its bytes, and its share of the largest one."""

    name: str
    num_bytes: int
    share: float
    detail: str = ""

    @property
    def size(self) -> str:
        return format_bytes(self.num_bytes)


@dataclass(frozen=True)
class OutOfMemoryReport:
    """`device_index` is the device's in the run, None where it is unknown. `memory_by_kind` is by kind, of
    the moment when it failed where `age_s` is 0, else the peak of step `memory_step`, so much before.
    `memory_by_module` are bytes by kind, always of that moment. `fixes` are empty until they are planned.
    """

    problem: Problem
    allocation: Allocation
    device_index: int | None = None
    device: str = ""
    step: int | None = None
    module: str | None = None
    memory_by_kind: Mapping[str, int] = field(default_factory=dict)
    memory_step: int | None = None
    age_s: float | None = None
    source: str = ""
    memory_by_module: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    fixes: Sequence[Fix] = ()
    no_fixes_text: str = NO_PLAN_TEXT

    def with_fixes(self, lines: Iterable[PlanLine], run: RunDir | None = None) -> OutOfMemoryReport:
        """With what the planner says would need less; of `run` with the commands that do it."""
        lines = list(lines)
        return replace(
            self,
            fixes=planned_fixes(lines, run),
            no_fixes_text=NO_SMALLER_PLAN_TEXT if lines else NO_PLAN_TEXT,
        )

    @property
    def is_over_capacity(self) -> bool:
        """Whether a rehearsal held more than its devices pretend to have, and went on."""
        return self.problem.code == _OVER_CAPACITY_CODE

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory_by_kind.values())

    @property
    def kinds(self) -> list[MemoryShare]:
        """What was held by kind, the largest first."""
        return [
            part._replace(detail="")
            for part in _memory_shares({kind: {kind: n} for kind, n in self.memory_by_kind.items()})
        ]

    @property
    def modules(self) -> list[MemoryShare]:
        """What the modules held for themselves, the largest first."""
        return _memory_shares(self.memory_by_module)[:MAX_MODULES]

    @property
    def code_line(self) -> CodeLine | None:
        """The line of the person's own code that asked for it."""
        problem = self.problem
        lines = user_lines(problem.last_lines)
        if lines:
            return lines[0]
        if problem.path and problem.line is not None and Path(problem.path).is_absolute():
            return CodeLine(problem.path, problem.line)
        return None

    @property
    def code_text(self) -> str:
        """'train.py, line 9: x = torch.empty(n)'"""
        code = self.code_line
        if code is None:
            return ""
        where = f"{code.file}, line {code.line}"
        return f"{where}: {code.text}" if code.text else where

    @property
    def headline(self) -> str:
        """'GPU 1 ran out of memory in step 6.'"""
        device = self.device or phrase("A process")
        if self.step is None:
            if self.is_over_capacity:
                return phrase(
                    "{device} held more than it pretends to have; the rehearsal went on.", device=device
                )
            return phrase("{device} ran out of memory.", device=device)
        template = (
            tr_noop("{device} held more in step {step} than it pretends to have; the rehearsal went on.")
            if self.is_over_capacity
            else tr_noop("{device} ran out of memory in step {step}.")
        )
        return phrase(template, device=device, step=format_count(self.step))

    @property
    def failed_allocation(self) -> str:
        """Which allocation it was, and what there was room for, as far as is known."""
        asked = self.allocation
        if self.is_over_capacity:
            if asked.capacity_bytes is None:
                return ""
            return phrase(
                "It held {held}, and rehearsal.capacity is {capacity}.",
                held=format_bytes(self.memory_bytes),
                capacity=format_bytes(asked.capacity_bytes),
            )
        if asked.asked_bytes is None:
            return phrase("Which allocation it was, nobody said: the process was ended from outside.")
        size = format_bytes(asked.asked_bytes)
        failed = phrase("An allocation of {size} failed.", size=size)
        if self.module is not None:
            module = module_name(self.module)
            failed = phrase("An allocation of {size} failed in {module}.", size=size, module=module)
        room = _free_memory_text(asked)
        return phrase("{failed} {room}", failed=failed, room=room) if room else failed

    @property
    def memory_time(self) -> str:
        """When what is shown by kind was on the device."""
        if not self.memory_by_kind:
            return phrase(
                "No step was sampled before it failed: what stood on the device by kind is not known."
            )
        if self.memory_step is None:
            return phrase("when it failed") if self.age_s == 0 else ""
        step = format_count(self.memory_step)
        if self.age_s == 0:
            if self.is_over_capacity:
                return phrase("at the peak of step {step}", step=step)
            return phrase("when it failed, in step {step}", step=step)
        if self.age_s is None:
            return phrase("peak of step {step}, the last one that was sampled", step=step)
        return phrase(
            "peak of step {step}, the last one that was sampled, {seconds:.1f} s before it failed",
            step=step,
            seconds=self.age_s,
        )

    @property
    def short_memory_times(self) -> list[str]:
        """The same where there is ever less room: 'step 3, 1.4 s before it failed', 'step 3'."""
        if not self.memory_by_kind:
            return [phrase("not known")]
        if self.memory_step is None:
            return []
        step = format_count(self.memory_step)
        texts: list[str] = [phrase("step {step}", step=step)]
        if self.age_s:
            texts.insert(
                0, phrase("step {step}, {seconds:.1f} s before it failed", step=step, seconds=self.age_s)
            )
        return texts


def module_name(name: str) -> str:
    """The one whose name is empty is the model."""
    return name or phrase("the model itself")


def _free_memory_text(asked: Allocation) -> str:
    """'Of 14.6 GiB, 1.6 GiB were free: this process held 966.0 MiB, others held 12.0 GiB.'"""
    known = [
        (format_bytes(size), within, first)
        for name, within, first in _USAGE_TEXTS
        if (size := getattr(asked, name))
    ]
    if asked.capacity_bytes is None or asked.free_bytes is None:
        parts = [phrase(within if at else first, size=size) for at, (size, within, first) in enumerate(known)]
        return phrase("{held}.", held=join_phrases(parts)) if parts else ""
    held = join_phrases([phrase(within, size=size) for size, within, _ in known])
    capacity, free = format_bytes(asked.capacity_bytes), format_bytes(asked.free_bytes)
    if not held:
        return phrase("Of {capacity}, {free} were free.", capacity=capacity, free=free)
    return phrase("Of {capacity}, {free} were free: {held}.", capacity=capacity, free=free, held=held)


def _memory_shares(sizes: Mapping[str, Mapping[str, int]]) -> list[MemoryShare]:
    sums = {name: sum(kinds.values()) for name, kinds in sizes.items()}
    most = max(sums.values(), default=0)
    return [
        MemoryShare(module_name(name), total, total / most, _format_kinds(sizes[name]))
        for name, total in sorted(sums.items(), key=lambda item: -item[1])
        if total
    ]


def _format_kinds(kinds: Mapping[str, int]) -> str:
    """'parameters 8.1 KiB, optimizer 16.3 KiB'"""
    return join_phrases(
        [
            phrase("{kind} {size}", kind=phrase(_KIND_TEXTS.get(kind, kind)), size=format_bytes(size))
            for kind, size in kinds.items()
            if size
        ]
    )


# From what a run reported


def load_out_of_memory(run: RunDir, fold: RunState) -> OutOfMemoryReport | None:
    """What is known of the last time that a run ran out of memory; None where it never did."""
    config = config_or_none(run)
    return find_out_of_memory(fold, None if config is None else config.capacity_bytes)


def find_out_of_memory(fold: RunState, capacity_bytes: int | None = None) -> OutOfMemoryReport | None:
    """The same, with the memory that the devices of a rehearsal pretend to have."""
    found = [problem for problem in fold.problems if is_memory_problem(problem)]
    if not found:
        return None
    problem = next((one for one in reversed(found) if one.severity == "error"), found[-1])
    if problem.code == _OVER_CAPACITY_CODE:
        return _over_capacity_report(fold, problem, capacity_bytes)
    reports = sorted(fold.out_of_memory.values(), key=lambda event: event.t)
    own = [event for event in reports if problem.rank in (None, event.rank)]
    if own:
        return _report_from_event(fold, problem, own[0])
    allocation = parse_allocation("\n".join((problem.message, *problem.last_lines)))
    device = _fullest_device(fold) if len(fold.devices) == 1 or problem.rank is None else None
    device = fold.devices.get(problem.rank, device) if problem.rank is not None else device
    return _with_sampled_step(fold, OutOfMemoryReport(problem, allocation, step=fold.step), device, None)


def _report_from_event(fold: RunState, problem: Problem, event: events.OutOfMemory) -> OutOfMemoryReport:
    device = fold.devices.get(event.device) if event.device is not None else _fullest_device(fold)
    ran = OutOfMemoryReport(
        problem,
        event.allocation,
        step=event.step or None,
        module=event.module,
        memory_by_module=event.modules,
        source=event.source or "",
    )
    place = None if device is None else device.device
    known = next((one for one in event.devices if one.device == place and one.live_by_kind), None)
    if known is None or device is None or known.live_by_kind is None:
        return _with_sampled_step(fold, ran, device, event.t)
    return replace(ran, device_index=place, device=device.label,
                   memory_by_kind=_sorted_sizes(known.live_by_kind), memory_step=ran.step,
                   age_s=0.0)  # fmt: skip


def _over_capacity_report(fold: RunState, problem: Problem, capacity_bytes: int | None) -> OutOfMemoryReport:
    """The step that needed the most, of the device that needed the most."""
    device, allocation = _fullest_device(fold), Allocation(capacity_bytes=capacity_bytes)
    ran = OutOfMemoryReport(problem, allocation, source=fold.source or "")
    if device is None or device.peak is None:
        return ran
    held = _sorted_sizes(device.peak.memory.peak_by_kind or {})
    step = device.peak.step
    return replace(ran, device_index=device.device, device=device.label, step=step, memory_by_kind=held,
                   memory_step=step, age_s=0.0)  # fmt: skip


def _with_sampled_step(
    fold: RunState, ran: OutOfMemoryReport, device: DeviceState | None, failed_at: float | None
) -> OutOfMemoryReport:
    """With the last sampled step of a device, and how long before the failure it was."""
    if device is None:
        return ran
    ran = replace(ran, device_index=device.device, device=device.label)
    if device.memory is None:
        return ran
    began, sampled_s = fold.first_started, device.peak_history.last_x
    age_s = None
    if failed_at is not None and began is not None and sampled_s is not None:
        age_s = max(0.0, failed_at - began.started - sampled_s)
    kinds = device.memory.peak_by_kind or device.memory.live_by_kind or {}
    return replace(
        ran,
        memory_by_kind=_sorted_sizes(kinds),
        memory_step=device.memory_step,
        age_s=age_s,
        source=fold.source or "",
    )


def _sorted_sizes(kinds: Mapping[str, int]) -> dict[str, int]:
    """The largest first, without those of nothing."""
    return dict(sorted(((kind, size) for kind, size in kinds.items() if size), key=lambda item: -item[1]))


def _fullest_device(fold: RunState) -> DeviceState | None:
    known = [device for device in fold.devices.values() if device.info is not None]
    return max(known, key=lambda device: device.peak_bytes or device.used_peak_bytes or 0, default=None)
