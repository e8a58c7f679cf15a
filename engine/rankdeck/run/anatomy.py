"""The anatomy of one step: what every rank told of it (events.Spans), put together on one clock.

`StepAnatomy` is what the report, the trace export and the app show: a row of phases per device, the idle time
between them, and for a pipeline the bubble. Ranks of one machine share a clock, so their Unix times may be
compared. run_state.py and export.py read it next.
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
"""In the order of a step. Strategies may add others."""
COMMUNICATION = ("all-reduce",)
"""Phases that may run under another one of the same device."""
SIMULATED_TIME = tr_noop("simulated time")
_MIN_IDLE_S = 5e-6
_MAX_PENDING_STEPS = 1024
_MAX_US = 1 << 53
_MAX_ANATOMIES = 16
_MAX_BUBBLES = 512


@dataclass(frozen=True)
class Span:
    """One phase of one device; `start_s` counts from the beginning of the step's anatomy."""

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
    """The phases of one device in the order of their starts, idle time left out.

    `step_s` is the whole step of its rank.
    """

    device: int
    rank: int
    spans: Sequence[Span]
    step_s: float = 0.0

    def idle(self, until_s: float) -> list[Span]:
        """The gaps from 0 to `until_s`, as phases named idle."""
        gaps, free_s = [], 0.0
        for span in self.spans:
            if span.start_s - free_s > _MIN_IDLE_S:
                gaps.append(Span("idle", free_s, span.start_s - free_s))
            free_s = max(free_s, span.end_s)
        if until_s - free_s > _MIN_IDLE_S:
            gaps.append(Span("idle", free_s, until_s - free_s))
        return gaps

    @property
    def is_pipeline(self) -> bool:
        return any(span.microbatch is not None for span in self.spans)

    def microbatch_work(self) -> list[Span]:
        """What a device of a pipeline computes for microbatches."""
        return [span for span in self.spans if span.microbatch is not None]


@dataclass(frozen=True)
class StepAnatomy:
    """One sampled step of all devices. `started` is Unix time."""

    step: int
    started: float
    seconds: float
    rows: Sequence[DeviceRow]
    simulated: bool = False
    is_tracked: bool = False

    def __deepcopy__(self, _memo: object) -> StepAnatomy:
        return self  # never changed

    @cached_property
    def by_rank(self) -> Mapping[int, Mapping[str, float]]:
        """Seconds of each rank's devices together by phase."""
        found: dict[int, dict[str, float]] = {}
        for row in self.rows:
            sums = found.setdefault(row.rank, {})
            for name, seconds in seconds_by_phase(row).items():
                sums[name] = sums.get(name, 0.0) + seconds
        return found

    @property
    def is_pipeline(self) -> bool:
        return any(row.is_pipeline for row in self.rows)

    @property
    def pipeline_window(self) -> tuple[float, float] | None:
        """From a pipeline's first forward to its last backward; None for what is no pipeline."""
        work = [span for row in self.rows for span in row.microbatch_work()]
        return (min(span.start_s for span in work), max(span.end_s for span in work)) if work else None

    def bubble(self, *, flushes: bool = True) -> float | None:
        """The idle share of the devices of a pipeline, from its first forward to its last backward.

        Where nothing is flushed, pipelines of consecutive steps overlap: there each device's share of its own
        step counts. None for what is no pipeline.
        """
        window = self.pipeline_window
        if window is None:
            return None
        rows = [row for row in self.rows if row.is_pipeline]
        busy_s = sum(span.duration_s for row in rows for span in row.microbatch_work())
        whole_s = len(rows) * (window[1] - window[0]) if flushes else sum(row.step_s for row in rows)
        return max(0.0, 1.0 - busy_s / whole_s) if whole_s > 0 else None


def is_valid_share(share: Spans) -> bool:
    """Whether the columns of a share fit together, and name what there is."""
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
    """The anatomy of the ranks' shares of one step, which fit; it begins with the first of them."""
    ranks = sorted(shares, key=lambda share: share.rank)
    began = min(share.began for share in ranks)
    rows = [row for share in ranks for row in _device_rows(share, share.began - began)]
    ends = [share.began - began + share.seconds for share in ranks]
    last_s = max([*ends, *(span.end_s for row in rows for span in row.spans)])
    return StepAnatomy(
        step=ranks[0].step,
        started=began,
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
    return [DeviceRow(device, share.rank, own, share.seconds) for device, own in spans.items()]


@dataclass
class AnatomyCollector:
    """Folds the shares of an attempt's ranks into whole steps as they come. `world_size` may be set late.

    A step is whole once every rank has told its share; those that stay incomplete are dropped in time.
    """

    world_size: int | None = None
    _complete_steps: dict[bool, deque[StepAnatomy]] = field(
        default_factory=lambda: {followed: deque(maxlen=_MAX_ANATOMIES) for followed in (False, True)}
    )
    _bubbles: dict[bool, deque[tuple[int, float, float]]] = field(
        default_factory=lambda: {followed: deque(maxlen=_MAX_BUBBLES) for followed in (False, True)}
    )
    _pending: dict[int, dict[int, Spans]] = field(default_factory=dict)

    @property
    def last(self) -> StepAnatomy | None:
        """The newest whole step; one that the ledger slowed down only while there is no other."""
        known = self._complete_steps[False] or self._complete_steps[True]
        return known[-1] if known else None

    @property
    def untracked(self) -> Sequence[StepAnatomy]:
        """The newest whole steps that the ledger left alone."""
        return self._complete_steps[False]

    def add(self, share: Spans) -> StepAnatomy | None:
        """Fold one share in, which fits; the step that it completes."""
        self._pending.setdefault(share.step, {})[share.rank] = share
        while len(self._pending) > _MAX_PENDING_STEPS:
            del self._pending[min(self._pending)]
        return self._complete(share.step)

    def set_world_size(self, world_size: int) -> None:
        """How many ranks there are, which may make steps whole."""
        self.world_size = world_size
        for step in sorted(self._pending):
            self._complete(step)

    def cut(self, last: int) -> None:
        """Forget the steps beyond `last`."""
        for waiting in [step for step in self._pending if step > last]:
            del self._pending[waiting]
        for whole in self._complete_steps.values():
            while whole and whole[-1].step > last:
                whole.pop()
        for bubbles in self._bubbles.values():
            while bubbles and bubbles[-1][0] > last:
                bubbles.pop()

    def _complete(self, step: int) -> StepAnatomy | None:
        ranks = self._pending.get(step, {})
        if self.world_size is None or len(ranks) < self.world_size:
            return None
        whole = merge_shares(self._pending.pop(step).values())
        if not whole.rows:
            return None  # no rank told of any span
        self._complete_steps[whole.is_tracked].append(whole)
        flushed, unflushed = whole.bubble(), whole.bubble(flushes=False)
        if flushed is not None and unflushed is not None:
            self._bubbles[whole.is_tracked].append((step, flushed, unflushed))
        return whole

    def bubbles(self, *, is_tracked: bool) -> Sequence[tuple[int, float, float]]:
        """(step, bubble with a flush, bubble without one) of whole steps."""
        return self._bubbles[is_tracked]


def median_bubble(attempts: Sequence[AnatomyCollector], *, flushes: bool = True) -> float | None:
    """The median over the sampled steps of attempts, those that the ledger left alone where there are any."""
    for followed in (False, True):
        known = [entry[1 if flushes else 2] for one in attempts for entry in one.bubbles(is_tracked=followed)]
        if known:
            return median(known)
    return None


def measured_and_theoretical_bubble(
    attempts: Sequence[AnatomyCollector], ranks: Collection[Pipeline]
) -> tuple[float | None, float | None] | None:
    """(measured, theory) of a pipeline, as its ranks told it; None for what is none."""
    if not ranks:
        return None
    theory = max((rank.theory_bubble for rank in ranks if rank.theory_bubble is not None), default=None)
    return median_bubble(attempts, flushes=bool(theory)), theory


def seconds_by_phase(row: DeviceRow) -> Mapping[str, float]:
    """Seconds by phase."""
    sums: dict[str, float] = {}
    for span in row.spans:
        sums[span.name] = sums.get(span.name, 0.0) + span.duration_s
    return sums
