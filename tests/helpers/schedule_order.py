"""torch's pipeline schedules laid out without running them: what each rank does, slot by slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from rankdeck.parallel.pipelining.schedules import make_schedule, stage_ranks

_KINDS = {"F": "forward", "B": "backward", "I": "backward-input", "W": "backward-weight"}


class Action(NamedTuple):
    """One slot of one rank. `kind`: forward, backward, backward-input or backward-weight."""

    kind: str
    stage: int
    microbatch: int


def actions(schedule: str, num_ranks: int, microbatches: int) -> list[list[Action | None]]:
    """What each rank does; None where it waits."""
    rank_of = stage_ranks(schedule, num_ranks)
    stages = [
        SimpleNamespace(
            stage_index=stage,
            num_stages=len(rank_of),
            group_size=num_ranks,
            group_rank=0,
            is_first=stage == 0,
            is_last=stage == len(rank_of) - 1,
            submod=None,
        )
        for stage, rank in enumerate(rank_of)
        if rank == 0
    ]
    order = make_schedule(schedule, stages, microbatches).pipeline_order
    return [list(_slots(order[rank])) for rank in range(num_ranks)]


def _slots(order: Sequence[Any]) -> Iterator[Action | None]:
    """One rank's `pipeline_order` without what only sends. Two actions that overlap take a slot each."""
    for action in order:
        for sub_action in [action] if action is None or action.sub_actions is None else action.sub_actions:
            if sub_action is None:
                yield None
            elif sub_action.computation_type.value in _KINDS:
                kind = _KINDS[sub_action.computation_type.value]
                yield Action(kind, sub_action.stage_index, sub_action.microbatch_index)


def in_flight(slots: Sequence[Action | None]) -> int:
    """The most microbatches that a rank holds activations of at once, counted once per stage."""
    now = peak = 0
    for slot in slots:
        kind = "" if slot is None else slot.kind
        now += (kind == "forward") - (kind in ("backward", "backward-weight"))
        peak = max(peak, now)
    return peak
