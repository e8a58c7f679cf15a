"""Find out how many events ranks could not write, since which step, and why.

A rank that can no longer write to its file reports this in its last heartbeat (base/heartbeat.py). Once it
can write again, it reports the loss in an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.base.heartbeat import Beat, parse_lost_lines
from rankdeck.base.phrases import Phrase, join_phrases, phrase, plural_phrase, tr_noop
from rankdeck.diagnose.exceptions import advice_for, match_disk_error
from rankdeck.run_dir import RunDir, events_from_end

NUM_TAIL = 2_000
"""Number of events to search at the end of a rank's file."""
_MAX_NAMED = 4


@dataclass(frozen=True)
class LostEvents:
    """Lines that one rank could not write. `after_step` is the last step in the rank's file before the loss;
    None if there is no step before it."""

    rank: int
    lines: int
    reason: str
    after_step: int | None

    def location_text(self) -> Phrase:
        if self.after_step is None:
            return phrase("rank {rank} before its first step", rank=self.rank)
        return phrase("rank {rank} after step {step}", rank=self.rank, step=self.after_step)


def find_lost_events(run: RunDir, attempt: int, beats: Mapping[int, Beat]) -> list[LostEvents]:
    """Return each affected rank's lost events, as the rank's last events and last heartbeat report them."""
    lost: dict[int, LostEvents] = {}
    for path in run.events_folder.glob(f"rank-*.{attempt}.jsonl"):
        rank = int(path.name.removeprefix("rank-").partition(".")[0])
        tail = list(islice(events_from_end(path), NUM_TAIL))
        dropped = [(at, event) for at, event in enumerate(tail) if isinstance(event, events.Dropped)]
        beat = parse_lost_lines(beats[rank].phase) if rank in beats else None
        num_lines = sum(event.lines for _, event in dropped) + (beat[0] if beat else 0)
        if num_lines:
            reason = beat[1] if beat else dropped[0][1].reason
            # The tail is ordered newest first, so the last entry is the earliest loss.
            first_at = dropped[-1][0] if dropped else 0
            lost[rank] = LostEvents(rank, num_lines, reason, _last_step(tail[first_at:]))
    return [lost[rank] for rank in sorted(lost)]


def _last_step(tail: Sequence[events.AnyEvent]) -> int | None:
    """Return the latest step that has ended; the events in `tail` are ordered newest first."""
    steps = (event for event in tail if isinstance(event, events.Steps) and event.ended)
    return next((event.first + len(event.ended) - 1 for event in steps), None)


def disk_problem(disk: str, num_lines: int, lost: Sequence[LostEvents] = ()) -> Problem:
    """Return the warning that events were lost. `disk` is the disk error; `num_lines` includes the lines in
    `lost`."""
    message = phrase("{disk}: some of the run's events could not be written.", disk=disk)
    if num_lines:
        message = plural_phrase(
            tr_noop("{disk}: 1 line of the run's events could not be written."),
            tr_noop("{disk}: {n} lines of the run's events could not be written."),
            num_lines,
            disk=disk,
        )
    if lost:
        ranks = [entry.location_text() for entry in lost[:_MAX_NAMED]]
        if len(lost) > _MAX_NAMED:
            more = len(lost) - _MAX_NAMED
            ranks.append(plural_phrase(tr_noop("1 more rank"), tr_noop("{n} more ranks"), more))
        message = plural_phrase(
            tr_noop("{disk}: 1 line of the run's events could not be written ({ranks})."),
            tr_noop("{disk}: {n} lines of the run's events could not be written ({ranks})."),
            num_lines,
            disk=disk,
            ranks=join_phrases(ranks),
        )
    advice = phrase("This run's curves have gaps.")
    named = match_disk_error(disk)
    if (next_step := advice_for(named)) is not None:
        advice = phrase("{next_step} This run's curves have gaps.", next_step=next_step)
    return Problem(named.code, message, advice=advice, severity="warning")
