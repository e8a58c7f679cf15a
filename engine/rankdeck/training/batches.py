"""Read batches in training order, for a run or for the check before the run.

Read ../data/loader.py first.
"""

from __future__ import annotations

from collections.abc import Callable

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.data.loader import Loader, build_loader
from rankdeck.data.samplers import TrainBatchSampler, local_range
from rankdeck.strategies.base import Strategy
from rankdeck.training.workload import Workload


def training_loader(
    workload: Workload,
    shard: tuple[int, int],
    after_step: int = 0,
    report: Callable[[Problem], None] | None = None,
) -> Loader:
    """Return a loader for one data shard (index, count) that starts after `after_step`, with one batch per
    microstep. The caller closes it."""
    data = workload.config.data
    sampler = training_sampler(workload, shard, after_step)
    return build_loader(
        workload.train, sampler, workers=data.workers, pin_memory=data.pin_memory, report=report
    )


def training_sampler(workload: Workload, shard: tuple[int, int], after_step: int = 0) -> TrainBatchSampler:
    """Return the sampler that selects the samples for the batches of `training_loader`."""
    train, data = workload.config.train, workload.config.data
    index, count = shard
    return TrainBatchSampler(
        len(workload.train),
        train.global_batch,
        accumulate=train.accumulate,
        shard_index=index,
        shard_count=count,
        seed=train.seed,
        steps=workload.steps,
        start_step=after_step,
        keep_last=data.last == "keep",
        keep_order=data.order == "given",
    )


# Check whether a run can take the shorter last step of an epoch (data.last = "keep"). Ranks and plans check
# it once the model is built: earlier, neither the number of samples nor the layers are known.
#
# A share that is empty, or too small for the stages, is padded with samples that do not count. A loss leaves
# them out; a batch norm would see them, and so would a loss that the model computes itself. A single sample
# gives a batch norm no variance.

_LOSS_INCLUDES_PADDING = tr_noop(
    'data.last = "keep" leaves {tail} of {num_samples} samples for an epoch\'s last step, which the '
    "strategy {strategy} pads to whole micro-batches. The model computes its own loss (loss.use = "
    "{loss}), which would count the padding."
)
_NORMS_INCLUDE_PADDING = tr_noop(
    'data.last = "keep" leaves {tail} of {num_samples} samples for an epoch\'s last step, which the '
    "strategy {strategy} pads to whole micro-batches. The model's batch norms would include the "
    "padding."
)
_NORMS_GET_EMPTY_SLICES = tr_noop(
    'data.last = "keep" leaves {tail} of {num_samples} samples for an epoch\'s last step, fewer than the'
    " slices that the strategy {strategy} needs. The model's batch norms would include padding."
)
_NORMS_GET_ONE_SAMPLE = tr_noop(
    'data.last = "keep" leaves {tail} of {num_samples} samples for an epoch\'s last step, and the '
    "strategy {strategy} gives one device a single sample. A batch norm needs at least two."
)


def check_last_step(workload: Workload, strategy: Strategy, *, with_batch_norm: bool) -> None:
    """Check an epoch's last step, which can have fewer samples than the epoch's other steps.

    Raises: ConfigError if padding, or a batch norm over a single sample, would change the result.
    """
    epochs, num_parts = workload.epochs, workload.config.train.accumulate
    # No shorter step, or the run ends before the first one.
    if not epochs.keep_last or not epochs.num_tail or workload.steps < epochs.steps:
        return
    _, num_shards = strategy.data_shard()
    largest = len(local_range(epochs.num_tail, 0, num_parts, 0, num_shards))
    smallest = len(local_range(epochs.num_tail, num_parts - 1, num_parts, num_shards - 1, num_shards))
    if strategy.pads_batches and workload.loss.is_in_model:
        raise _last_step_error(_LOSS_INCLUDES_PADDING, workload, strategy)
    if with_batch_norm and (strategy.pads_batches or not smallest):
        why = _NORMS_INCLUDE_PADDING if strategy.pads_batches else _NORMS_GET_EMPTY_SLICES
        raise _last_step_error(why, workload, strategy)
    # Synchronized norms see the samples of all ranks.
    is_joint = getattr(strategy.options, "sync_batchnorm", False)
    if with_batch_norm and not is_joint and 1 in map(strategy.min_forward_samples, (smallest, largest)):
        raise _last_step_error(_NORMS_GET_ONE_SAMPLE, workload, strategy)


def _last_step_error(template: str, workload: Workload, strategy: Strategy) -> ConfigError:
    epochs, num = workload.epochs, workload.epochs.num_samples
    return ConfigError(
        phrase(
            template,
            tail=epochs.num_tail,
            num_samples=num,
            strategy=strategy.name,
            loss=workload.loss.name,
        ),
        path="data.last",
        advice=phrase('Set data.last = "drop", or choose a train.global_batch that divides {num}.', num=num),
    )
