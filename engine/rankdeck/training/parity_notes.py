"""Report, before a run's first step and in plans, why the final weights will differ from those on one device.

Each device and each microstep processes only a part of what a single device would process at once. Sums of
losses and gradients do not depend on this split. Operations across samples do (a batch norm's statistics, the
balancing of a router inside a loss), and so do random numbers. A run on one device also splits the batch into
microsteps (train.accumulate). Read assembly.py first.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.modules import BatchNorm, Dropout
from rankdeck.training.workload import Workload


def has_batch_norm(model: nn.Module) -> bool:
    """Put the model in training mode and check for a batch norm that normalizes over the batch.

    A frozen batch norm does not count: it stays in eval mode and has running statistics.
    """
    model.train()
    return any(
        isinstance(module, BatchNorm) and (module.training or module.running_mean is None)
        for module in model.modules()
    )


@dataclass(frozen=True)
class ModelTraits:
    """Properties that make a model's results depend on how batches are split."""

    has_batch_norm: bool = False
    has_dropout: bool = False


def model_traits(model: nn.Module) -> ModelTraits:
    return ModelTraits(has_batch_norm(model), any(map(_has_dropout, model.modules())))


def _has_dropout(module: nn.Module) -> bool:
    """Check whether a module is one of torch's dropouts, or has an attribute such as attention_dropout, with
    a rate above 0."""
    if isinstance(module, Dropout):
        return module.p > 0
    rates = (value for name, value in vars(module).items() if "drop" in name and isinstance(value, float))
    return any(rate > 0 for rate in rates)


def find_parity_notes(workload: Workload, strategy: Strategy, traits: ModelTraits) -> list[Problem]:
    """Return notes on the differences from one device that can be predicted once the model is built."""
    if strategy.owns_optimizer_step:  # stale weights never equal those of one device
        return []
    notes = []
    is_joint = getattr(strategy.options, "sync_batchnorm", False)
    if traits.has_batch_norm and _is_batch_split(strategy) and not is_joint:
        microstep_samples = strategy.setup.microstep_samples
        num = strategy.min_forward_samples(microstep_samples // strategy.data_shard()[1])
        notes.append(batch_norm_note(workload.config, num, microstep_samples))
    num_devices = len(strategy.setup.devices) * strategy.setup.world_size
    # Virtual devices that compute in turn draw from one generator, as one device does.
    in_turn = workload.config.strategy_spec.planning.is_sequential and strategy.setup.is_rehearsal
    if traits.has_dropout and num_devices > 1 and not in_turn:
        notes.append(dropout_note())
    return notes


def dropout_note() -> Problem:
    """Return the note for a run whose devices draw their own random numbers."""
    return Problem(
        "dropout-differs",
        phrase(
            "Dropout draws different random numbers on each device, so the final weights "
            "differ from those on one device."
        ),
        advice=phrase(
            "Training quality is not affected. Set dropout to 0 to compare strategies numerically."
        ),
        severity="info",
    )


def loss_note(workload: Workload, strategy: Strategy) -> Problem | None:
    """Return the note about a loss that does not add up over microsteps; None as long as training steps have
    not shown such a loss."""
    trouble = workload.loss.mismatch()
    if trouble is None or (workload.config.train.accumulate == 1 and not _is_batch_split(strategy)):
        return None
    return Problem(
        "loss-differs",
        trouble,
        path="loss.use",
        advice=phrase(
            "To compare numerically, disable that part of the loss, or add a `count` to the output."
        ),
        severity="info",
    )


def _is_batch_split(strategy: Strategy) -> bool:
    """Check whether a forward pass processes fewer samples than a forward pass on one device would."""
    microstep_samples = strategy.setup.microstep_samples
    return strategy.min_forward_samples(microstep_samples // strategy.data_shard()[1]) < microstep_samples


def batch_norm_note(config: RunConfig, num: int, part_batch: int) -> Problem:
    """Return the note for a run whose batch norms normalize over `num` samples at a time instead of
    `part_batch`."""
    has_option = "sync_batchnorm" in config.strategy_spec.options.model_fields
    return Problem(
        "batch-norm-differs",
        phrase(
            "Batch norms normalise over {num} samples at a time instead of {part_batch}, so "
            "the final weights differ from those on one device.",
            num=num,
            part_batch=part_batch,
        ),
        path="strategy.sync_batchnorm" if has_option else "strategy.use",
        advice=phrase("Set strategy.sync_batchnorm = true.")
        if has_option
        else phrase('Set strategy.use = "model", or "ddp" or "fsdp" with strategy.sync_batchnorm = true.'),
        severity="info",
    )
