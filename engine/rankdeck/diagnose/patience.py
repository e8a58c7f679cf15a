"""How long ranks may make no progress before that is told, and before it ends their run.

What a run has shown to take long may take three times as long. What happens once, or writes to a disk, has a
limit of its own; nothing is ended before twice the time after which it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rankdeck.base.heartbeat import CHECK_STEP, FIRST_STEP, STEP, VERIFYING, Beat

STEP_S = 15.0
OTHER_S = 60.0
"""The first step and all before it, an evaluation, a save."""
COMPILE_S = 300.0
"""The first step where torch.compile is at work."""
_SLOW = 3


@dataclass(frozen=True)
class Patience:
    """`timeout_s` is launch.timeout_s: a run is never ended sooner, and steps are told of within half of
    it."""

    timeout_s: float
    compiles: bool = False

    def until_told_s(self, beats: Mapping[int, Beat], slowest_s: Mapping[int, float]) -> float:
        """Of those that the others wait for, the rank with the longest limit. `slowest_s`: the longest that
        each was in its phase so far."""
        return max(self._of(beat, slowest_s.get(rank, 0.0)) for rank, beat in waited_for(beats).items())

    def until_ended_s(self, until_told_s: float) -> float:
        return max(self.timeout_s, 2 * until_told_s)

    def _of(self, beat: Beat, slowest_s: float) -> float:
        own_s = OTHER_S
        if beat.step > 0 if beat.is_after else beat.phase in (STEP, CHECK_STEP):
            own_s = min(STEP_S, self.timeout_s / 2)
        elif beat.phase == FIRST_STEP and self.compiles:
            own_s = COMPILE_S
        return max(own_s, _SLOW * slowest_s)


def waited_for(beats: Mapping[int, Beat]) -> Mapping[int, Beat]:
    """Who is in the earliest step, and there in the step itself, after which it evaluates and saves; in the
    check before the first one whoever takes a step of it. Of a script's phases nothing is known: all of
    them."""
    if any(beat.is_after for beat in beats.values()):
        return beats
    first = min(beat.step for beat in beats.values())
    there = {rank: beat for rank, beat in beats.items() if beat.step == first}
    taken = STEP
    if all(beat.phase in (VERIFYING, CHECK_STEP) for beat in there.values()):
        taken = CHECK_STEP
    return {rank: beat for rank, beat in there.items() if beat.phase == taken} or there
