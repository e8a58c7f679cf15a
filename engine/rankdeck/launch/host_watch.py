"""Watches of a run of several hosts. No host alone can tell whom all wait for: each tells where its ranks
stand when they make no progress (events.StoodStill), and the first one judges.

What the others tell comes by their guards into files of the run's directory (event_relay.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.cause import RankEvidence
from rankdeck.diagnose.hang import HangState
from rankdeck.diagnose.stacks import MICROBATCH_TEXT, CollectiveCall, Frame
from rankdeck.events import StoodStill
from rankdeck.launch.watch import RECHECK_INTERVAL_S, Watch
from rankdeck.run_dir import EventReader, parse_attempt

REPORT_INTERVAL_S = 5.0
"""How long ranks stand still before that is told to the first host, and told again."""
_REPORT_WAIT_S = 8.0
"""How much longer the first host waits where it has not heard where all stand."""
_MAX_REPORT_AGE_S = 3 * REPORT_INTERVAL_S
_MAX_FRAMES, _MAX_CALLS, _MAX_TEXT_LENGTH = 40, 16, 300


class NodeWatch(Watch):
    """Of any but the first host: it warns of nothing, and ends nothing. `tell` writes an event."""

    def __init__(self, *given: Any, report: Callable[[StoodStill], object], **more: Any) -> None:
        super().__init__(*given, **more)
        self._report = report
        self._reported_s = self._inspected_s = 0.0

    def _check(self, beats: dict[int, Beat], now_s: float, since_s: float) -> bool:
        super()._check(beats, now_s, since_s)
        is_late = self._cpu is not None or self._hang_s > REPORT_INTERVAL_S
        if is_late and now_s - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s, is_excused = now_s, self._excused_s >= now_s
            for rank, beat in beats.items():
                self._report(self._make_report(rank, beat, now_s, is_excused=is_excused))
        return False

    def judge(self, beats: dict[int, Beat], now_s: float, still_s: float, until_ended_s: float) -> bool:
        """As closely as the first host looks at its own."""
        key = min((beat.step, rank) for rank, beat in beats.items())
        if key != self._suspected or now_s - self._inspected_s > RECHECK_INTERVAL_S:
            self._suspected, self._inspected_s, self._reported_s = key, now_s, 0.0
            self._hang_state = self._inspect(beats, now_s)
            if self._is_debugged(beats):
                self._excused_s = now_s
        return False

    def _make_report(self, rank: int, beat: Beat, now_s: float, *, is_excused: bool) -> StoodStill:
        told = StoodStill(
            rank=rank,
            pid=self._pid(rank),
            step=beat.step,
            phase=beat.phase,
            silent_s=now_s - beat.at_s,
            until_told_s=self.warning_after_s({rank: beat}),
            is_excused=is_excused,
        )
        standing = self._hang_state
        if standing.beats.get(rank) != beat:
            return told
        told.is_close, told.suspended = True, rank in standing.suspended
        told.cores = standing.cores.get(rank, 0.0)
        told.frames = [
            (frame.file[-_MAX_TEXT_LENGTH:], frame.line, frame.function[:_MAX_TEXT_LENGTH])
            for frame in standing.stacks.get(rank, ())[:_MAX_FRAMES]
        ]
        told.calls = [
            (
                call.group,
                call.number,
                call.kind[:_MAX_TEXT_LENGTH],
                call.shape[:_MAX_TEXT_LENGTH],
                call.is_finished,
            )
            for call in standing.calls.get(rank, ())[-_MAX_CALLS:]
        ]
        if rank in standing.microbatches:
            arguments = standing.microbatches[rank].arguments
            told.work = str(arguments["phase"]), int(arguments["number"])
        return told


@dataclass(frozen=True)
class _RankReport:
    """What a host told of a rank: `beat` by the clock here."""

    event: StoodStill
    beat: Beat
    received_s: float


class CoordinatorWatch(Watch):
    """Of the first host: its own ranks, and what it hears of the others. `hosts`: the name of each rank's."""

    def __init__(self, *given: Any, hosts: Sequence[str] = (), **more: Any) -> None:
        super().__init__(*given, **more)
        self._hosts = dict(enumerate(hosts))
        self._reader = EventReader(self._run)
        self._reports: dict[int, _RankReport] = {}

    def living_beats(self) -> dict[int, Beat]:
        now_s = time.monotonic()
        self._read_reports(now_s)
        self._reports = {
            rank: one for rank, one in self._reports.items() if now_s - one.received_s < _MAX_REPORT_AGE_S
        }
        if any(one.event.is_excused for one in self._reports.values()):
            self._excused_s = now_s
        newest_s = max((one.beat.at_s for one in self._reports.values()), default=0.0)
        if newest_s > self._hang_start_s:  # news of then, and not a beat of now
            self._hang_start_s, self._hang_s = newest_s, min(self._hang_s, now_s - newest_s)
        return super().living_beats() | {rank: one.beat for rank, one in self._reports.items()}

    def _read_reports(self, now_s: float) -> None:
        for name in self._reader.file_names():
            if not name.startswith("supervisor-") or parse_attempt(name) != self._attempt:
                continue
            while found := self._reader.read_file(name):
                for event in found:
                    if isinstance(event, StoodStill) and self._is_remote(event.rank):
                        self._on_report(event, now_s)

    def _is_remote(self, rank: int) -> bool:
        return 0 <= rank < self._num_ranks and all(one.rank != rank for one in self.ranks)

    def _on_report(self, told: StoodStill, now_s: float) -> None:
        """The way takes its time: of one beat what was told first counts."""
        at_s, before = now_s - max(0.0, told.silent_s), self._reports.get(told.rank)
        is_same = before is not None and before.beat[:2] == (told.step, told.phase)
        if is_same and before is not None and abs(before.beat.at_s - at_s) < REPORT_INTERVAL_S / 2:
            at_s = before.beat.at_s
        self._reports[told.rank] = _RankReport(told, Beat(told.step, told.phase, at_s), now_s)

    def warning_after_s(self, beats: Mapping[int, Beat]) -> float:
        """Of all hosts the longest; a while longer where not all have told where exactly their ranks are."""
        others = [one.event for one in self._reports.values()]
        limit_s = max([super().warning_after_s(beats), *(told.until_told_s for told in others)])
        close = sum(told.is_close for told in others)
        return limit_s if close + len(self.ranks) >= self._num_ranks else limit_s + _REPORT_WAIT_S

    def _pid(self, rank: int) -> int:
        return self._reports[rank].event.pid if rank in self._reports else super()._pid(rank)

    def _pids(self, beats: Mapping[int, Beat]) -> dict[int, int]:
        return {rank: pid for rank, pid in super()._pids(beats).items() if rank not in self._reports}

    def _inspect(self, beats: dict[int, Beat], now_s: float) -> HangState:
        own = super()._inspect(beats, now_s)
        told = {rank: one.event for rank, one in self._reports.items() if rank in beats}
        return replace(
            own,
            stacks={**own.stacks, **{rank: _frames(one) for rank, one in told.items() if one.frames}},
            suspended=sorted([*own.suspended, *(rank for rank, one in told.items() if one.suspended)]),
            calls={**own.calls, **{rank: _calls(one) for rank, one in told.items() if one.calls}},
            microbatches={
                **own.microbatches,
                **{
                    rank: phrase(MICROBATCH_TEXT, phase=one.work[0], number=one.work[1])
                    for rank, one in told.items()
                    if one.work is not None
                },
            },
            cores={**own.cores, **{rank: one.cores for rank, one in told.items()}},
            hosts=self._hosts,
        )

    def evidence(self) -> list[RankEvidence]:
        """With the ranks of other hosts that were seen to stand still."""
        standing = self._hang_state
        others = [rank for rank in standing.beats if self._is_remote(rank)]
        every = super().evidence() + [
            RankEvidence(
                rank=rank,
                exit_code=None,
                beat=standing.beats[rank],
                is_suspended=rank in standing.suspended,
                frames=standing.stacks.get(rank, ()),
                calls=standing.calls.get(rank, ()),
                microbatch=standing.microbatches.get(rank),
            )
            for rank in others
        ]
        return [replace(one, host=self._hosts.get(one.rank, "")) for one in every]


def _frames(told: StoodStill) -> list[Frame]:
    return [Frame(*frame) for frame in told.frames]


def _calls(told: StoodStill) -> list[CollectiveCall]:
    return [CollectiveCall(*call) for call in told.calls]
