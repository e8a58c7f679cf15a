"""Properties of a strategy that the planner needs, stored in the strategy's spec in catalog.py.

The planner reads these properties instead of comparing strategy names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

StrategyOptions = Mapping[str, Any]


@dataclass(frozen=True)
class StrategyPlanning:
    """A strategy's properties for the planner. Its functions take complete mappings of options,
    including the defaults."""

    variants: Callable[[int], Sequence[StrategyOptions]] = lambda num_devices: [{}]
    """Function that maps the number of devices to the option sets that are planned for this strategy when all
    strategies are compared."""
    less_memory: Callable[[StrategyOptions], StrategyOptions] = lambda options: {}
    """Function that maps options to changes that save memory; empty if there are none."""
    label_option: str | None = None
    """The option that a candidate's label shows even if all options have their defaults."""
    equal_ranks: Literal["all", "slices", "mesh", "none"] = "none"
    """Ranks that use the same amount of memory: all ranks, ranks with weight slices of equal shapes, ranks of
    one pipeline stage with slices of equal shapes, or none."""
    extra_steps: int = 0
    """Number of steps to trace after the usual two, so that the last traced step is like all later steps: 1
    for strategies that count collectives in the second step."""
    is_sequential: bool = False
    """Whether devices compute one after the other."""
    has_one_thread: bool = False
    """Whether one thread launches the kernels of all devices."""
    waits_for_sends: bool = False
    """Whether computation waits for communication."""
    has_side_streams: bool = False
    """Whether communication buffers are allocated on their own stream."""
    uses_nccl: bool = True
    """Whether NCCL allocates buffers on the devices."""
    batch_split: Callable[[StrategyOptions, int], tuple[int, int]] | None = None
    """Function of options and device count that returns (number of batch slices, number of stages that
    exchange microbatches); None if the spec's `is_batch_sharded` determines both."""
    stand_in: Callable[[StrategyOptions], str | None] = lambda options: None
    """Function that maps options to the strategy that is planned instead, with gradient buckets added, if
    torch's wrapper cannot be traced; None if there is no such strategy."""


def candidate_meshes(num_devices: int) -> list[dict[str, int]]:
    """Return the two-axis meshes for an even device count: data parallelism with pipelines or shards, and
    tensor parallelism with replicas or shards."""
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
    """Return whether ddp uses torch's wrapper; other sync modes run after the backward pass, with their own
    buffers."""
    return bool(options["sync"] == "native")
