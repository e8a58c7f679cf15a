"""Explain why a run ran out of memory: what was on the device, and which allocation failed.

Before it ends, a rank reports the size of the failed allocation, the module that made it, and how much memory
each of the model's modules uses (events.OutOfMemory). Memory by kind at that moment is always known on a GPU,
where torch's allocator counts it, and in a rehearsal if the ledger tracked the step. Otherwise the last
sampled step is shown, with its age. The terminal, the report page and the app show the same
`OutOfMemoryReport`. Fixes come from the planner (fixes.py).
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
NO_PLAN_TEXT = tr_noop("No fixes were planned: a script has no configuration that Rankdeck could change.")
NO_SMALLER_PLAN_TEXT = tr_noop(
    "None of the planned changes saves memory: use more or larger devices, or a smaller model."
)
_OVER_CAPACITY_CODE = "over-capacity"
_KIND_TEXTS = {"gathered": tr_noop("gathered")}
"""Texts of this report for memory kinds that have other names elsewhere in the app."""
_USAGE_TEXTS = (
    ("in_use_bytes", tr_noop("this process held {size}"), tr_noop("This process held {size}")),
    ("allocated_bytes", tr_noop("torch's tensors took {size}"), tr_noop("Torch's tensors took {size}")),
    (
        "unused_bytes",
        tr_noop("torch's allocator had reserved {size} without using it"),
        tr_noop("Torch's allocator had reserved {size} without using it"),
    ),
    ("others_bytes", tr_noop("other processes held {size}"), tr_noop("Other processes held {size}")),
)
"""(attribute of a failed allocation, its text within a sentence, its text at the start of a sentence)."""


class MemoryShare(NamedTuple):
    """Bytes of one memory kind or module, and their ratio to the bytes of the largest entry."""

    name: str
    num_bytes: int
    share: float
    detail: str = ""

    @property
    def size(self) -> str:
        return format_bytes(self.num_bytes)


@dataclass(frozen=True)
class OutOfMemoryReport:
    """A report on a run that ran out of memory.

    `device_index` is the device's index in the run, None if unknown. `memory_by_kind` is from the moment of
    the failure if `age_s` is 0, otherwise from the peak of step `memory_step`, `age_s` seconds earlier.
    `memory_by_module` (bytes by kind) is always from the moment of the failure. `fixes` is empty until they
    are planned.
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
        """Return the report with the fixes that the planner found. If `run` is not None, the fixes include
        commands."""
        # The iterable may be a generator, but is used twice.
        lines = list(lines)
        return replace(
            self,
            fixes=planned_fixes(lines, run),
            no_fixes_text=NO_SMALLER_PLAN_TEXT if lines else NO_PLAN_TEXT,
        )

    @property
    def is_over_capacity(self) -> bool:
        """Whether the run is a rehearsal that exceeded its simulated capacity and continued."""
        return self.problem.code == _OVER_CAPACITY_CODE

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory_by_kind.values())

    @property
    def kinds(self) -> list[MemoryShare]:
        """Memory by kind, the largest first."""
        return [
            share._replace(detail="")
            for share in _memory_shares({kind: {kind: n} for kind, n in self.memory_by_kind.items()})
        ]

    @property
    def modules(self) -> list[MemoryShare]:
        """Memory that each module itself uses, the largest first."""
        return _memory_shares(self.memory_by_module)[:MAX_MODULES]

    @property
    def code_line(self) -> CodeLine | None:
        """The line of the user's own code that made the allocation."""
        problem = self.problem
        lines = user_lines(problem.last_lines)
        if lines:
            return lines[0]
        # A relative path is a configuration key such as train.global_batch, not a file.
        if problem.path and problem.line is not None and Path(problem.path).is_absolute():
            return CodeLine(problem.path, problem.line)
        return None

    @property
    def code_text(self) -> str:
        """The code line as text: 'train.py, line 9: x = torch.empty(n)'."""
        code = self.code_line
        if code is None:
            return ""
        where = f"{code.file}, line {code.line}"
        return f"{where}: {code.text}" if code.text else where

    @property
    def headline(self) -> str:
        """A headline such as 'GPU 1 ran out of memory in step 6.'"""
        device = self.device or phrase("A process")
        if self.step is None:
            if self.is_over_capacity:
                return phrase(
                    "{device} exceeded its simulated capacity; the rehearsal continued.", device=device
                )
            return phrase("{device} ran out of memory.", device=device)
        template = (
            tr_noop("{device} exceeded its simulated capacity in step {step}; the rehearsal continued.")
            if self.is_over_capacity
            else tr_noop("{device} ran out of memory in step {step}.")
        )
        return phrase(template, device=device, step=format_count(self.step))

    @property
    def failed_allocation(self) -> str:
        """Text that names the failed allocation and the free memory, if known."""
        allocation = self.allocation
        if self.is_over_capacity:
            if allocation.capacity_bytes is None:
                return ""
            return phrase(
                "It held {held}, but rehearsal.capacity is {capacity}.",
                held=format_bytes(self.memory_bytes),
                capacity=format_bytes(allocation.capacity_bytes),
            )
        if allocation.asked_bytes is None:
            return phrase("The failed allocation is unknown: the process was killed from outside.")
        size = format_bytes(allocation.asked_bytes)
        failed = phrase("An allocation of {size} failed.", size=size)
        if self.module is not None:
            module = module_name(self.module)
            failed = phrase("An allocation of {size} failed in {module}.", size=size, module=module)
        room = _free_memory_text(allocation)
        return phrase("{failed} {room}", failed=failed, room=room) if room else failed

    @property
    def memory_time(self) -> str:
        """Text that names the time of `memory_by_kind`, or states that memory by kind is unknown."""
        if not self.memory_by_kind:
            return phrase("No step was sampled before the failure: memory by kind is not known.")
        if self.memory_step is None:
            return phrase("when it failed") if self.age_s == 0 else ""
        step = format_count(self.memory_step)
        if self.age_s == 0:
            if self.is_over_capacity:
                return phrase("at the peak of step {step}", step=step)
            return phrase("when it failed, in step {step}", step=step)
        if self.age_s is None:
            return phrase("peak of step {step}, the last sampled step", step=step)
        return phrase(
            "peak of step {step}, the last sampled step, {seconds:.1f} s before the failure",
            step=step,
            seconds=self.age_s,
        )

    @property
    def short_memory_times(self) -> list[str]:
        """Shorter forms of `memory_time`, longest first: 'step 3, 1.4 s before the failure', 'step 3'."""
        if not self.memory_by_kind:
            return [phrase("not known")]
        if self.memory_step is None:
            return []
        step = format_count(self.memory_step)
        texts: list[str] = [phrase("step {step}", step=step)]
        if self.age_s:
            texts.insert(
                0, phrase("step {step}, {seconds:.1f} s before the failure", step=step, seconds=self.age_s)
            )
        return texts


def module_name(name: str) -> str:
    """Return the module's display name; the empty name is the model itself."""
    return name or phrase("the model itself")


def _free_memory_text(allocation: Allocation) -> str:
    """Format free memory: 'Of 14.6 GiB, 1.6 GiB was free: this process held 966.0 MiB, other processes held
    12.0 GiB.'"""
    usages = [
        (format_bytes(size), within, first)
        for name, within, first in _USAGE_TEXTS
        if (size := getattr(allocation, name))
    ]
    if allocation.capacity_bytes is None or allocation.free_bytes is None:
        texts = [
            phrase(within if at else first, size=size) for at, (size, within, first) in enumerate(usages)
        ]
        return phrase("{held}.", held=join_phrases(texts)) if texts else ""
    usage_text = join_phrases([phrase(within, size=size) for size, within, _ in usages])
    capacity, free = format_bytes(allocation.capacity_bytes), format_bytes(allocation.free_bytes)
    if not usage_text:
        return phrase("Of {capacity}, {free} was free.", capacity=capacity, free=free)
    return phrase("Of {capacity}, {free} was free: {held}.", capacity=capacity, free=free, held=usage_text)


def _memory_shares(sizes: Mapping[str, Mapping[str, int]]) -> list[MemoryShare]:
    sums = {name: sum(kinds.values()) for name, kinds in sizes.items()}
    largest = max(sums.values(), default=0)
    return [
        MemoryShare(module_name(name), total, total / largest, _format_kinds(sizes[name]))
        for name, total in sorted(sums.items(), key=lambda item: -item[1])
        if total
    ]


def _format_kinds(kinds: Mapping[str, int]) -> str:
    """Format bytes by kind: 'parameters 8.1 KiB, optimizer 16.3 KiB'."""
    return join_phrases(
        [
            phrase("{kind} {size}", kind=phrase(_KIND_TEXTS.get(kind, kind)), size=format_bytes(size))
            for kind, size in kinds.items()
            if size
        ]
    )


# Building the report from a run's events.


def load_out_of_memory(run: RunDir, state: RunState) -> OutOfMemoryReport | None:
    """Return the report on the last time that a run ran out of memory; None if it never did."""
    config = config_or_none(run)
    return find_out_of_memory(state, None if config is None else config.capacity_bytes)


def find_out_of_memory(state: RunState, capacity_bytes: int | None = None) -> OutOfMemoryReport | None:
    """Return the report from a run state; None if memory never ran out.

    `capacity_bytes` is the simulated memory of a rehearsal's devices.
    """
    problems = [problem for problem in state.problems if is_memory_problem(problem)]
    if not problems:
        return None
    # Errors of earlier attempts are warnings by now (RunState.problems), so the last error is the one that
    # ended the run.
    problem = next(
        (candidate for candidate in reversed(problems) if candidate.severity == "error"), problems[-1]
    )
    if problem.code == _OVER_CAPACITY_CODE:
        return _over_capacity_report(state, problem, capacity_bytes)
    reports = sorted(state.out_of_memory.values(), key=lambda event: event.t)
    rank_reports = [event for event in reports if problem.rank in (None, event.rank)]
    if rank_reports:
        return _report_from_event(state, problem, rank_reports[0])
    allocation = parse_allocation("\n".join((problem.message, *problem.last_lines)))
    device = _fullest_device(state) if len(state.devices) == 1 or problem.rank is None else None
    device = state.devices.get(problem.rank, device) if problem.rank is not None else device
    # The rank sent no event, perhaps because it was killed: only its log and the samples remain.
    return _with_sampled_step(state, OutOfMemoryReport(problem, allocation, step=state.step), device, None)


def _report_from_event(state: RunState, problem: Problem, event: events.OutOfMemory) -> OutOfMemoryReport:
    device = state.devices.get(event.device) if event.device is not None else _fullest_device(state)
    ran = OutOfMemoryReport(
        problem,
        event.allocation,
        step=event.step or None,
        module=event.module,
        memory_by_module=event.modules,
        source=event.source or "",
    )
    device_index = None if device is None else device.device
    device_memory = next(
        (entry for entry in event.devices if entry.device == device_index and entry.live_by_kind), None
    )
    if device_memory is None or device is None or device_memory.live_by_kind is None:
        return _with_sampled_step(state, ran, device, event.t)
    return replace(ran, device_index=device_index, device=device.label,
                   memory_by_kind=_sorted_sizes(device_memory.live_by_kind), memory_step=ran.step,
                   age_s=0.0)  # fmt: skip


def _over_capacity_report(state: RunState, problem: Problem, capacity_bytes: int | None) -> OutOfMemoryReport:
    """Return a report on the fullest device of a rehearsal, at its peak step."""
    device, allocation = _fullest_device(state), Allocation(capacity_bytes=capacity_bytes)
    ran = OutOfMemoryReport(problem, allocation, source=state.source or "")
    if device is None or device.peak is None:
        return ran
    sizes = _sorted_sizes(device.peak.memory.peak_by_kind or {})
    step = device.peak.step
    return replace(ran, device_index=device.device, device=device.label, step=step, memory_by_kind=sizes,
                   memory_step=step, age_s=0.0)  # fmt: skip


def _with_sampled_step(
    state: RunState, ran: OutOfMemoryReport, device: DeviceState | None, failed_at: float | None
) -> OutOfMemoryReport:
    """Return the report with the memory of a device's last sampled step, and the time from that step to the
    failure."""
    if device is None:
        return ran
    ran = replace(ran, device_index=device.device, device=device.label)
    if device.memory is None:
        return ran
    first_start, sampled_s = state.first_started, device.peak_history.last_x
    age_s = None
    if failed_at is not None and first_start is not None and sampled_s is not None:
        age_s = max(0.0, failed_at - first_start.started - sampled_s)
    kinds = device.memory.peak_by_kind or device.memory.live_by_kind or {}
    return replace(
        ran,
        memory_by_kind=_sorted_sizes(kinds),
        memory_step=device.memory_step,
        age_s=age_s,
        source=state.source or "",
    )


def _sorted_sizes(kinds: Mapping[str, int]) -> dict[str, int]:
    """Return the nonzero sizes, the largest first."""
    return dict(sorted(((kind, size) for kind, size in kinds.items() if size), key=lambda item: -item[1]))


def _fullest_device(state: RunState) -> DeviceState | None:
    devices = [device for device in state.devices.values() if device.info is not None]
    return max(devices, key=lambda device: device.peak_bytes or device.used_peak_bytes or 0, default=None)
