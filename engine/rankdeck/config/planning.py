"""What a plan has to know of a strategy beside running it on shapes: data on its card in catalog.py, so that
the planner compares no names of strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

StrategyOptions = Mapping[str, Any]


@dataclass(frozen=True)
class StrategyPlanning:
    """Of one strategy. Options are all of its options by name, defaults included."""

    variants: Callable[[int], Sequence[StrategyOptions]] = lambda num_devices: [{}]
    """The options that a plan of all strategies asks about on so many devices."""
    less_memory: Callable[[StrategyOptions], StrategyOptions] = lambda options: {}
    """Options that need less memory than these."""
    label_option: str | None = None
    """The option that names a row of defaults."""
    equal_ranks: Literal["all", "slices", "mesh", "none"] = "none"
    """Which ranks need the same: all, those with equal slices of weights, those of a mesh that differ along
    data and tensor only, or none."""
    extra_steps: int = 0
    """Steps more than usual before one is like the next: collectives are counted in the second."""
    is_sequential: bool = False
    """Whether devices compute one after another."""
    has_one_thread: bool = False
    """Whether one thread launches the kernels of all devices."""
    waits_for_sends: bool = False
    """Whether the next operation waits for what is sent."""
    has_side_streams: bool = False
    """Whether what is sent is allocated on a stream of its own."""
    uses_nccl: bool = True
    """Whether devices hold NCCL's buffers."""
    batch_split: Callable[[StrategyOptions, int], tuple[int, int]] | None = None
    """(slices of the batch, stages with microbatches between them) on so many devices, where the card's
    `batch_shards` does not say it."""
    stand_in: Callable[[StrategyOptions], str | None] = lambda options: None
    """The strategy whose figures, with a set of buckets, serve where torch's wrapper cannot be followed."""


def candidate_meshes(num_devices: int) -> list[dict[str, int]]:
    """Pairs of axes over an even number of devices: replicas of pipelines, of slices, and split layers."""
    half = num_devices // 2
    if num_devices < 4 or num_devices % 2:
        return []
    return [
        {"data": 2, "stage": half},
        {"data": 2, "shard": half},
        {"data": half, "tensor": 2},
        {"shard": half, "tensor": 2},
    ]


def uses_native_ddp(options: StrategyOptions) -> bool:
    """Of ddp: every other sync starts after backward, over gradients of its own."""
    return bool(options["sync"] == "native")
