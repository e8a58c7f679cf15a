"""Merge the phases that each rank reports for one step (events.Spans) into an anatomy on one clock.

The report, the trace export and the app show `StepAnatomy`: a row of phases per device, the idle time between
the phases, and the bubble of a pipeline. Ranks on one machine share a clock, so their Unix times are
comparable. run_state.py and export.py use this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

from rankdeck.base.phrases import tr_noop
from rankdeck.events import Pipeline, Spans
from rankdeck.run.bounds import MAX_DURATION_S, MAX_RANKS, MAX_STEP

PHASES = (
    tr_noop("data"),
    tr_noop("scatter"),
    tr_noop("replicate"),
    tr_noop("forward"),
    tr_noop("gather"),
    tr_noop("loss"),
    tr_noop("backward"),
    tr_noop("backward-input"),
    tr_noop("backward-weight"),
    tr_noop("all-reduce"),
    tr_noop("reduce"),
    tr_noop("step"),
)
"""Phases in their order within a step. Strategies may add other phases."""
COMMUNICATION = ("all-reduce",)
"""Phases that may overlap another phase of the same device."""
SIMULATED_TIME = tr_noop("simulated time")
_MIN_IDLE_S = 5e-6
_MAX_PENDING_STEPS = 1024
# Doubles are exact up to here.
_MAX_US = 1 << 53
_MAX_ANATOMIES = 16
_MAX_BUBBLES = 512


@dataclass(frozen=True)
class Span:
    """One phase of one device; `start_s` is relative to the start of the step's anatomy."""

    name: str
    start_s: float
    duration_s: float
    stage: int | None = None
    microbatch: int | None = None
    num_bytes: int | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s


@dataclass(frozen=True)
class DeviceRow:
    """The phases of one device in start order, without idle time.

    `step_s` is the duration of the whole step on the device's rank.
    """

    device: int
    rank: int
    spans: Sequence[Span]
    step_s: float = 0.0

    def idle(self, until_s: float) -> list[Span]:
        """Return the gaps from 0 to `until_s` as spans named "idle"."""
        gaps, free_s = [], 0.0
        for span in self.spans:
            if span.start_s - free_s > _MIN_IDLE_S:
                gaps.append(Span("idle", free_s, span.start_s - free_s))
            # Spans may overlap (COMMUNICATION): idle time starts after the latest end.
            free_s = max(free_s, span.end_s)
        if until_s - free_s > _MIN_IDLE_S:
            gaps.append(Span("idle", free_s, until_s - free_s))
        return gaps

    @property
    def is_pipeline(self) -> bool:
        return any(span.microbatch is not None for span in self.spans)

    def microbatch_work(self) -> list[Span]:
        """Return the spans in which a pipeline device processes microbatches."""
        return [span for span in self.spans if span.microbatch is not None]


@dataclass(frozen=True)
class StepAnatomy:
    """One sampled step on all devices. `started` is Unix time."""

    step: int
    started: float
    seconds: float
    rows: Sequence[DeviceRow]
    simulated: bool = False
    is_tracked: bool = False

    def __deepcopy__(self, _memo: object) -> StepAnatomy:
        return self  # immutable, so copies share it

    @cached_property
    def by_rank(self) -> Mapping[int, Mapping[str, float]]:
        """Seconds by rank and phase, summed over the rank's devices."""
        seconds_by_rank: dict[int, dict[str, float]] = {}
        for row in self.rows:
            sums = seconds_by_rank.setdefault(row.rank, {})
            for name, seconds in seconds_by_phase(row).items():
                sums[name] = sums.get(name, 0.0) + seconds
        return seconds_by_rank

    @property
    def is_pipeline(self) -> bool:
        return any(row.is_pipeline for row in self.rows)

    @property
    def pipeline_window(self) -> tuple[float, float] | None:
        """Start of the first forward pass and end of the last backward pass in a pipeline, in seconds since
        the step's start; None without a pipeline."""
        work = [span for row in self.rows for span in row.microbatch_work()]
        return (min(span.start_s for span in work), max(span.end_s for span in work)) if work else None

    def bubble(self, *, flushes: bool = True) -> float | None:
        """Return a pipeline's bubble; None without a pipeline.

        The bubble is the share of the time between the first forward and the last backward pass in which
        devices are idle. If `flushes` is False, the pipelines of consecutive steps overlap, so
        the result is the idle share of each device's own step instead.
        """
        window = self.pipeline_window
        if window is None:
            return None
        rows = [row for row in self.rows if row.is_pipeline]
        busy_s = sum(span.duration_s for row in rows for span in row.microbatch_work())
        whole_s = len(rows) * (window[1] - window[0]) if flushes else sum(row.step_s for row in rows)
        return max(0.0, 1.0 - busy_s / whole_s) if whole_s > 0 else None


def is_valid_share(share: Spans) -> bool:
    """Check whether a rank's reported columns have equal lengths, valid name indices and plausible values."""
    times_us = (*share.start_us, *share.duration_us)
    lengths = {len(share.name), len(share.device), len(share.start_us), len(share.duration_us)}
    lengths |= {len(column) for column in (share.stage, share.microbatch, share.num_bytes) if column}
    return (
        len(lengths) == 1
        and all(0 <= name < len(share.names) for name in share.name)
        and all(0 <= device < MAX_RANKS for device in share.device)
        and all(abs(us) < _MAX_US for us in times_us)
        and 0 <= share.step <= MAX_STEP
        and 0 <= share.seconds < MAX_DURATION_S
    )


def merge_shares(shares: Iterable[Spans]) -> StepAnatomy:
    """Merge the valid spans of all ranks for one step; time 0 is when the earliest rank started the step."""
    ranks = sorted(shares, key=lambda share: share.rank)
    start_time = min(share.began for share in ranks)
    rows = [row for share in ranks for row in _device_rows(share, share.began - start_time)]
    ends = [share.began - start_time + share.seconds for share in ranks]
    last_s = max([*ends, *(span.end_s for row in rows for span in row.spans)])
    return StepAnatomy(
        step=ranks[0].step,
        started=start_time,
        seconds=last_s,
        rows=sorted(rows, key=lambda row: row.device),
        simulated=any(share.simulated for share in ranks),
        is_tracked=any(share.followed for share in ranks),
    )


def _device_rows(share: Spans, offset_s: float) -> list[DeviceRow]:
    spans: dict[int, list[Span]] = {}
    num_spans = len(share.name)
    columns = zip(
        share.name,
        share.device,
        share.start_us,
        share.duration_us,
        share.stage or [None] * num_spans,
        share.microbatch or [None] * num_spans,
        share.num_bytes or [None] * num_spans,
        strict=True,
    )
    for name, device, start_us, duration_us, stage, microbatch, num_bytes in columns:
        span = Span(
            share.names[name], offset_s + start_us / 1e6, duration_us / 1e6, stage, microbatch, num_bytes
        )
        spans.setdefault(device, []).append(span)
    return [
        DeviceRow(device, share.rank, device_spans, share.seconds) for device, device_spans in spans.items()
    ]


@dataclass
class AnatomyCollector:
    """Collector of the spans of an attempt's ranks, which merges them into complete steps.

    `world_size` may be set later. A step is complete once every rank has reported its spans; the oldest
    incomplete steps are dropped.
    """

    world_size: int | None = None
    # By whether the ledger tracked the step: tracked steps are slower and kept apart.
    _complete_steps: dict[bool, deque[StepAnatomy]] = field(
        default_factory=lambda: {followed: deque(maxlen=_MAX_ANATOMIES) for followed in (False, True)}
    )
    _bubbles: dict[bool, deque[tuple[int, float, float]]] = field(
        default_factory=lambda: {followed: deque(maxlen=_MAX_BUBBLES) for followed in (False, True)}
    )
    _pending: dict[int, dict[int, Spans]] = field(default_factory=dict)

    @property
    def last(self) -> StepAnatomy | None:
        """The newest complete step that the ledger did not track; if there is none, the newest tracked
        step."""
        anatomies = self._complete_steps[False] or self._complete_steps[True]
        return anatomies[-1] if anatomies else None

    @property
    def untracked(self) -> Sequence[StepAnatomy]:
        """The newest complete steps that the ledger did not track."""
        return self._complete_steps[False]

    def add(self, share: Spans) -> StepAnatomy | None:
        """Add a rank's valid spans; return the step if these spans complete it."""
        self._pending.setdefault(share.step, {})[share.rank] = share
        # A rank that never reports must not make incomplete steps pile up.
        while len(self._pending) > _MAX_PENDING_STEPS:
            del self._pending[min(self._pending)]
        return self._complete(share.step)

    def set_world_size(self, world_size: int) -> None:
        """Set the number of ranks; pending steps that all ranks have reported become complete."""
        self.world_size = world_size
        # `sorted` also makes the copy that this loop needs, because `_complete` removes steps.
        for step in sorted(self._pending):
            self._complete(step)

    def cut(self, last: int) -> None:
        """Discard the steps after `last`."""
        for waiting in [step for step in self._pending if step > last]:
            del self._pending[waiting]
        for anatomies in self._complete_steps.values():
            while anatomies and anatomies[-1].step > last:
                anatomies.pop()
        for bubbles in self._bubbles.values():
            while bubbles and bubbles[-1][0] > last:
                bubbles.pop()

    def _complete(self, step: int) -> StepAnatomy | None:
        ranks = self._pending.get(step, {})
        if self.world_size is None or len(ranks) < self.world_size:
            return None
        anatomy = merge_shares(self._pending.pop(step).values())
        if not anatomy.rows:
            return None  # no rank reported any span
        self._complete_steps[anatomy.is_tracked].append(anatomy)
        flushed, unflushed = anatomy.bubble(), anatomy.bubble(flushes=False)
        if flushed is not None and unflushed is not None:
            self._bubbles[anatomy.is_tracked].append((step, flushed, unflushed))
        return anatomy

    def bubbles(self, *, is_tracked: bool) -> Sequence[tuple[int, float, float]]:
        """Return (step, bubble with a flush, bubble without a flush) for each complete step with a bubble.

        If `is_tracked` is true, include only steps that the memory ledger tracked, else only other steps.
        """
        return self._bubbles[is_tracked]


def median_bubble(attempts: Sequence[AnatomyCollector], *, flushes: bool = True) -> float | None:
    """Return the median bubble of the attempts' sampled steps; None if no step has a bubble.

    If `flushes` is False, the pipelines of consecutive steps overlap (see `StepAnatomy.bubble`). Steps that
    the memory ledger tracked are used only if there are no others.
    """
    for followed in (False, True):
        bubbles = [
            entry[1 if flushes else 2]
            for collector in attempts
            for entry in collector.bubbles(is_tracked=followed)
        ]
        if bubbles:
            return median(bubbles)
    return None


def measured_and_theoretical_bubble(
    attempts: Sequence[AnatomyCollector], ranks: Collection[Pipeline]
) -> tuple[float | None, float | None] | None:
    """Return (measured, theoretical) bubble of a pipeline from its ranks' reports; None without a
    pipeline."""
    if not ranks:
        return None
    theory = max((rank.theory_bubble for rank in ranks if rank.theory_bubble is not None), default=None)
    # theory_bubble is None if the schedule never flushes.
    return median_bubble(attempts, flushes=bool(theory)), theory


def seconds_by_phase(row: DeviceRow) -> Mapping[str, float]:
    """Return the device's seconds by phase."""
    sums: dict[str, float] = {}
    for span in row.spans:
        sums[span.name] = sums.get(span.name, 0.0) + span.duration_s
    return sums
