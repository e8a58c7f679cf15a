"""The batches of a run, or of the check before it, in the order in which they are trained.

Read ../data/loader.py before.
"""

from __future__ import annotations

from collections.abc import Callable

from rankdeck.base.errors import Problem
from rankdeck.data.loader import Loader, build_loader
from rankdeck.data.sampling import StepBatches
from rankdeck.training.workload import Workload


def training_loader(
    workload: Workload,
    shard: tuple[int, int],
    after_step: int = 0,
    tell: Callable[[Problem], None] | None = None,
) -> Loader:
    """The batches of one data shard (index, count) after a step, one for each part of each step. Close it."""
    data = workload.config.data
    sampler = training_samples(workload, shard, after_step)
    return build_loader(workload.train, sampler, workers=data.workers, pin_memory=data.pin_memory, tell=tell)


def training_samples(workload: Workload, shard: tuple[int, int], after_step: int = 0) -> StepBatches:
    """Which samples these batches hold."""
    train, data = workload.config.train, workload.config.data
    index, count = shard
    return StepBatches(
        len(workload.train),
        train.global_batch,
        accumulate=train.accumulate,
        shard_index=index,
        shard_count=count,
        seed=train.seed,
        steps=workload.steps,
        start_step=after_step,
        keep_last=data.last == "keep",
        in_order=data.order == "given",
    )
