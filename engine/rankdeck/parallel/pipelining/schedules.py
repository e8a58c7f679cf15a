"""The seven pipeline schedules, as data: which stage runs which microbatch when, on each rank.

`actions` lays a schedule out without running it; torch's own schedule classes decide the order, so that what
is drawn and tested is what runs. A rank's list has a None where it waits, one slot per action. "1f1b-by-hand"
is 1f1b in order and memory, run by one_forward_one_backward.py.

    (p - 1) / (m + p - 1)    the bubble of gpipe and 1f1b for p stages and m microbatches

Source: torch.distributed.pipelining.schedules; Huang et al., GPipe, 2018; Narayanan et al., Efficient
Large-Scale Language Model Training on GPU Clusters, 2021; Lamy-Poirier, Breadth-First Pipeline Parallelism,
2022; Qi et al., Zero Bubble Pipeline Parallelism, 2023; DeepSeek-V3, 2024, for DualPipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch.distributed.pipelining.schedules import get_schedule_class

from rankdeck.config.microbatches import stages_per_device
from rankdeck.torch_compat.pipelining import slots

BY_HAND = "1f1b-by-hand"
_TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    BY_HAND: "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_V_SHAPED = ("zbv", "dualpipev")
_KINDS = {"F": "forward", "B": "backward", "I": "backward-input", "W": "backward-weight"}


class Action(NamedTuple):
    """One slot of one rank. `kind`: forward, backward, backward-input or backward-weight."""

    kind: str
    stage: int
    microbatch: int


def is_single(schedule: str) -> bool:
    """Whether each rank holds one stage."""
    return stages_per_device[schedule] == 1


def rank_of_stages(schedule: str, num_ranks: int) -> list[int]:
    """Where each stage lives: around and around, or down and up again in a V."""
    num_stages = num_ranks * stages_per_device[schedule]
    if schedule in _V_SHAPED:
        return [stage if stage < num_ranks else num_stages - 1 - stage for stage in range(num_stages)]
    return [stage % num_ranks for stage in range(num_stages)]


def make_schedule(schedule: str, stages: Sequence[Any], microbatches: int, loss: Any = None) -> Any:
    """torch's schedule over a rank's stages. Losses are sums, so gradients are not scaled."""
    schedule_class: Any = get_schedule_class(_TORCH_NAMES[schedule])
    chosen = stages[0] if is_single(schedule) else list(stages)
    return schedule_class(chosen, n_microbatches=microbatches, loss_fn=loss, scale_grads=False)


def actions(schedule: str, num_ranks: int, microbatches: int) -> list[list[Action | None]]:
    """What each rank does, slot by slot."""
    rank_of = rank_of_stages(schedule, num_ranks)
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
    return [list(_named(slots(order[rank]))) for rank in range(num_ranks)]


def _named(slots: Iterable[tuple[str, int, int] | None]) -> Iterable[Action | None]:
    """torch's slots as ours, without what only talks."""
    for slot in slots:
        if slot is None:
            yield None
        elif slot[0] in _KINDS:
            yield Action(_KINDS[slot[0]], *slot[1:])


def in_flight(slots: Sequence[Action | None]) -> int:
    """The most microbatches that a rank holds activations of at once, counted once per stage."""
    now = most = 0
    for slot in slots:
        kind = "" if slot is None else slot.kind
        now += (kind == "forward") - (kind in ("backward", "backward-weight"))
        most = max(most, now)
    return most


def theory_bubble(num_ranks: int, microbatches: int, schedule: str = "gpipe") -> float:
    """The share of a step in which a rank waits, where forward and backward take the same time on each stage.

    With v stages per rank a filling slot is v times shorter; zero-bubble schedules fill the rest with weight
    gradients, so that for them this is an upper bound.
    """
    per_rank = stages_per_device[schedule]
    return (num_ranks - 1) / (per_rank * microbatches + num_ranks - 1)
