"""Pipeline schedules: the rank of each stage, and torch's schedule classes, which order the microbatches.

"1f1b-by-hand" has the same order and memory use as 1f1b, but one_forward_one_backward.py runs it, not torch.

    (p - 1) / (m + p - 1)    the bubble of gpipe and 1f1b for p stages and m microbatches

Source: torch.distributed.pipelining.schedules; Huang et al., GPipe, 2018; Narayanan et al., Efficient
Large-Scale Language Model Training on GPU Clusters, 2021; Lamy-Poirier, Breadth-First Pipeline Parallelism,
2022; Qi et al., Zero Bubble Pipeline Parallelism, 2023; DeepSeek-V3, 2024, for DualPipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.distributed.pipelining.schedules import get_schedule_class

from rankdeck.config.microbatches import STAGES_PER_DEVICE

HAND_WRITTEN = "1f1b-by-hand"
_TORCH_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    HAND_WRITTEN: "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_V_SCHEDULES = ("zbv", "dualpipev")


def stage_ranks(schedule: str, num_ranks: int) -> list[int]:
    """Return the rank of each stage: round-robin, or in a V (through all ranks in ascending order, then in
    descending order)."""
    num_stages = num_ranks * STAGES_PER_DEVICE[schedule]
    if schedule in _V_SCHEDULES:
        return [stage if stage < num_ranks else num_stages - 1 - stage for stage in range(num_stages)]
    return [stage % num_ranks for stage in range(num_stages)]


def make_schedule(schedule: str, stages: Sequence[Any], microbatches: int, loss: Any = None) -> Any:
    """Create torch's schedule for a rank's stages. Losses are sums, so gradients are not scaled."""
    schedule_class: Any = get_schedule_class(_TORCH_NAMES[schedule])
    # torch's schedules for one stage per rank take the stage itself, the others a list.
    chosen = stages[0] if STAGES_PER_DEVICE[schedule] == 1 else list(stages)
    return schedule_class(chosen, n_microbatches=microbatches, loss_fn=loss, scale_grads=False)


def theory_bubble(num_ranks: int, microbatches: int, schedule: str = "gpipe") -> float:
    """Return a rank's idle share of a step if all stages have equal forward times and equal backward times.

    With v stages per rank, each idle slot of the filling pipeline is 1/v as long as with v = 1. Zero-bubble
    schedules fill the remaining idle time with weight gradients, so the result is an upper bound for them.
    """
    per_rank = STAGES_PER_DEVICE[schedule]
    return (num_ranks - 1) / (per_rank * microbatches + num_ranks - 1)
