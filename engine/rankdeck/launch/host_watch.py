"""Watch the ranks of a multi-host run for hangs.

No single host can determine which rank all others are waiting for. So when a node's ranks make no progress,
the node reports where they are (events.StoodStill), and the coordinator decides. The guards relay the reports
into files of the coordinator's run directory (event_relay.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.hang import HangState
from rankdeck.diagnose.rank_evidence import RankEvidence
from rankdeck.diagnose.stacks import MICROBATCH_TEXT, CollectiveCall, Frame
from rankdeck.events import StoodStill
from rankdeck.launch.watch import RECHECK_INTERVAL_S, Watch
from rankdeck.run_dir import EventReader, parse_attempt

REPORT_INTERVAL_S = 5.0
"""Time without progress after which a node reports on its ranks to the coordinator, and time between two
reports."""
_REPORT_WAIT_S = 8.0
"""Time by which the coordinator delays a hang warning if nodes' reports about some ranks are missing."""
_MAX_REPORT_AGE_S = 3 * REPORT_INTERVAL_S
_MAX_FRAMES, _MAX_CALLS, _MAX_TEXT_LENGTH = 40, 16, 300


class NodeWatch(Watch):
    """A node's watch, which only reports: it neither warns nor ends the run. `report` writes an event."""

    def __init__(self, *args: Any, report: Callable[[StoodStill], object], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._report = report
        self._reported_s = self._inspected_s = 0.0

    def _check(self, beats: dict[int, Beat], now_s: float, since_s: float) -> bool:
        super()._check(beats, now_s, since_s)
        is_late = self._work is not None or self._hang_s > REPORT_INTERVAL_S
        if is_late and now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s, is_excused = now_s, self._excused_s >= now_s
            for rank, beat in beats.items():
                self._report(self._make_report(rank, beat, now_s, is_excused=is_excused))
        return False

    def judge(self, beats: dict[int, Beat], now_s: float, still_s: float, until_ended_s: float) -> bool:
        """Inspect the ranks in as much detail as the coordinator inspects its own. Always return False, so
        that a node does not end the run."""
        key = min((beat.step, rank) for rank, beat in beats.items())
        if key != self._suspected or now_s - self._inspected_s > RECHECK_INTERVAL_S:
            self._suspected, self._inspected_s, self._reported_s = key, now_s, 0.0
            self._hang_state = self._inspect(beats, now_s)
            if self._is_debugged(beats):
                self._excused_s = now_s
        return False

    def _make_report(self, rank: int, beat: Beat, now_s: float, *, is_excused: bool) -> StoodStill:
        report = StoodStill(
            rank=rank,
            pid=self._pid(rank),
            step=beat.step,
            phase=beat.phase,
            silent_s=now_s - beat.at_s,
            until_told_s=self.warning_after_s({rank: beat}),
            is_excused=is_excused,
        )
        hang_state = self._hang_state
        if hang_state.beats.get(rank) != beat:
            return report
        report.is_close, report.suspended = True, rank in hang_state.suspended
        report.cores = hang_state.cores.get(rank, 0.0)
        report.frames = [
            (frame.file[-_MAX_TEXT_LENGTH:], frame.line, frame.function[:_MAX_TEXT_LENGTH])
            for frame in hang_state.stacks.get(rank, ())[:_MAX_FRAMES]
        ]
        report.calls = [
            (
                call.group,
                call.number,
                call.kind[:_MAX_TEXT_LENGTH],
                call.shape[:_MAX_TEXT_LENGTH],
                call.is_finished,
            )
            for call in hang_state.calls.get(rank, ())[-_MAX_CALLS:]
        ]
        if rank in hang_state.microbatches:
            arguments = hang_state.microbatches[rank].arguments
            report.work = str(arguments["phase"]), int(arguments["number"])
        return report


@dataclass(frozen=True)
class _RankReport:
    """A node's report about a rank, and the rank's heartbeat with its time on this host's clock."""

    event: StoodStill
    beat: Beat
    received_s: float


class CoordinatorWatch(Watch):
    """The watch that runs on the coordinator: covers its own ranks and, through the nodes' reports, all other
    ranks. `hosts` lists the host name of each rank."""

    def __init__(self, *args: Any, hosts: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._hosts = dict(enumerate(hosts))
        self._reader = EventReader(self._run)
        self._reports: dict[int, _RankReport] = {}

    def living_beats(self) -> dict[int, Beat]:
        now_s = time.monotonic()
        self._read_reports(now_s)
        self._reports = {
            rank: report
            for rank, report in self._reports.items()
            if now_s - report.received_s < _MAX_REPORT_AGE_S
        }
        if any(report.event.is_excused for report in self._reports.values()):
            self._excused_s = now_s
        newest_s = max((report.beat.at_s for report in self._reports.values()), default=0.0)
        if newest_s > self._hang_start_s:  # an old heartbeat, reported only now
            # A report that arrives late must not restart the count, or the coordinator would wait forever.
            self._hang_start_s, self._hang_s = newest_s, min(self._hang_s, now_s - newest_s)
        return super().living_beats() | {rank: report.beat for rank, report in self._reports.items()}

    def _read_reports(self, now_s: float) -> None:
        for name in self._reader.file_names():
            if not name.startswith("supervisor-") or parse_attempt(name) != self._attempt:
                continue
            while batch := self._reader.read_file(name):
                for event in batch:
                    if isinstance(event, StoodStill) and self._is_remote(event.rank):
                        self._on_report(event, now_s)

    def _is_remote(self, rank: int) -> bool:
        return 0 <= rank < self._num_ranks and all(process.rank != rank for process in self.ranks)

    def _on_report(self, report: StoodStill, now_s: float) -> None:
        """Store a report. If the rank's previous report was about the same heartbeat, keep the heartbeat time
        computed from that report, since delivery times vary."""
        at_s, before = now_s - max(0.0, report.silent_s), self._reports.get(report.rank)
        is_same = before is not None and before.beat[:2] == (report.step, report.phase)
        if is_same and before is not None and abs(before.beat.at_s - at_s) < REPORT_INTERVAL_S / 2:
            at_s = before.beat.at_s
        self._reports[report.rank] = _RankReport(report, Beat(report.step, report.phase, at_s), now_s)

    def warning_after_s(self, beats: Mapping[int, Beat]) -> float:
        """Return the longest time without progress that any host allows before a warning, extended while
        detailed reports about some ranks are missing."""
        others = [report.event for report in self._reports.values()]
        limit_s = max([super().warning_after_s(beats), *(event.until_told_s for event in others)])
        close = sum(event.is_close for event in others)
        return limit_s if close + len(self.ranks) >= self._num_ranks else limit_s + _REPORT_WAIT_S

    def _pid(self, rank: int) -> int:
        return self._reports[rank].event.pid if rank in self._reports else super()._pid(rank)

    def _pids(self, beats: Mapping[int, Beat]) -> dict[int, int]:
        return {rank: pid for rank, pid in super()._pids(beats).items() if rank not in self._reports}

    def _inspect(self, beats: dict[int, Beat], now_s: float) -> HangState:
        local_state = super()._inspect(beats, now_s)
        reports = {rank: report.event for rank, report in self._reports.items() if rank in beats}
        return replace(
            local_state,
            stacks={
                **local_state.stacks,
                **{rank: _frames(report) for rank, report in reports.items() if report.frames},
            },
            suspended=sorted(
                [*local_state.suspended, *(rank for rank, report in reports.items() if report.suspended)]
            ),
            calls={
                **local_state.calls,
                **{rank: _calls(report) for rank, report in reports.items() if report.calls},
            },
            microbatches={
                **local_state.microbatches,
                **{
                    rank: phrase(MICROBATCH_TEXT, phase=report.work[0], number=report.work[1])
                    for rank, report in reports.items()
                    if report.work is not None
                },
            },
            cores={**local_state.cores, **{rank: report.cores for rank, report in reports.items()}},
            hosts=self._hosts,
        )

    def evidence(self) -> list[RankEvidence]:
        """Return the evidence about each rank, including ranks for which a node has reported a lack of
        progress."""
        hang_state = self._hang_state
        others = [rank for rank in hang_state.beats if self._is_remote(rank)]
        every = super().evidence() + [
            RankEvidence(
                rank=rank,
                exit_code=None,
                beat=hang_state.beats[rank],
                is_suspended=rank in hang_state.suspended,
                frames=hang_state.stacks.get(rank, ()),
                calls=hang_state.calls.get(rank, ()),
                microbatch=hang_state.microbatches.get(rank),
            )
            for rank in others
        ]
        return [replace(entry, host=self._hosts.get(entry.rank, "")) for entry in every]


def _frames(event: StoodStill) -> list[Frame]:
    return [Frame(*frame) for frame in event.frames]


def _calls(event: StoodStill) -> list[CollectiveCall]:
    return [CollectiveCall(*call) for call in event.calls]
