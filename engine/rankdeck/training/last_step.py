"""Whether a run can take the shorter last step of an epoch that data.last = "keep" asks for. Said once the
model is built and before any step, by every rank and by plans.

A share that is empty, or that stages are too large for, is filled up with samples that count nothing. A loss
leaves them out; a batch norm would see them, and so would a loss that the model computes inside. Read
data/sampling.py before.
"""

from __future__ import annotations

from rankdeck.base.errors import ConfigError
from rankdeck.data.sampling import own_share
from rankdeck.strategies.base import Strategy
from rankdeck.training.workload import Workload


def check_last_step(workload: Workload, strategy: Strategy, *, with_batch_norm: bool) -> None:
    """Raises: ConfigError where padding, or a lone sample under batch norm, would change what is trained."""
    epochs, num_parts = workload.epochs, workload.config.train.accumulate
    if not epochs.keep_last or not epochs.tail or workload.steps < epochs.steps:
        return
    _, num_shards = strategy.data_shard()
    most = len(own_share(epochs.tail, 0, num_parts, 0, num_shards))
    fewest = len(own_share(epochs.tail, num_parts - 1, num_parts, num_shards - 1, num_shards))
    steps = (
        f'data.last = "keep" leaves {epochs.tail} of {epochs.num_samples} samples for the last step of an '
        f"epoch, and strategy.use = {strategy.name} "
    )
    if strategy.pads and workload.loss.inside:
        raise _refusal(
            f"{steps}fills them up to whole microbatches: loss.use = {workload.loss.name}, which the model "
            "computes inside, would count the padding.",
            workload,
        )
    if with_batch_norm and (strategy.pads or not fewest):
        what = (
            "fills them up to whole microbatches" if strategy.pads else "has fewer samples than slices there"
        )
        raise _refusal(f"{steps}{what}: the model's batch norms would see padding.", workload)
    is_joint = getattr(strategy.options, "sync_batchnorm", False)
    if with_batch_norm and not is_joint and 1 in map(strategy.fewest_together, (fewest, most)):
        raise _refusal(
            f"{steps}gives a device a single one of them: a batch norm needs two to normalise.", workload
        )


def _refusal(message: str, workload: Workload) -> ConfigError:
    num = workload.epochs.num_samples
    return ConfigError(
        message,
        path="data.last",
        advice=f'Set data.last = "drop", or a train.global_batch that divides {num}.',
    )
