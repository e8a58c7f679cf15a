"""What the check compares: the run's own model, loss, optimizer and data, on few samples and in a precision
that leaves no room for doubt.

Samples: two for each forward that the strategy makes, where the batch has as many, and no more microbatches
than keep all stages busy. Layers: a few of each kind where the whole model is too large. Precision: fp64, in
which rounding is far below any fault; where fp64 is out of reach in fp32, then in the run's own. The learning
rate is the schedule's peak, because a warm-up that starts at 0 would hide what the optimizer does. Read
reference.py next.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from rankdeck.base.errors import RankdeckError
from rankdeck.config import RunConfig
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.microbatches import can_schedule
from rankdeck.config.microbatches import default_microbatches as default_microbatches
from rankdeck.config.rules import batch_problems
from rankdeck.config.schema import Choice
from rankdeck.models.base import repeated_blocks
from rankdeck.torch_compat.modules import BatchNorm
from rankdeck.training.workload import Workload, make_loss

NUM_STEPS = 2
"""A weight that starts at zero in front of others hides their gradients until it has moved once."""
_SAMPLES_PER_FORWARD = 2
_MAX_MICROSTEPS = 2
"""Of an accumulated batch."""
_LAYERS_PER_STAGE = 2
_ASYNC_PIPELINE, _MODEL_PARALLEL = "pipeline-async", "model"
Norms = Literal["none", "whole", "slices"]


@dataclass(frozen=True)
class CheckScope:
    """A workload to compare. `num_samples` of a batch are compared, of the `batch_samples` that the run's
    have. `num_shards` ranks read a part of a batch each, and each forward sees one of `num_forwards` of what
    was read. Running statistics of batch norms are those of the first `num_norm_slices` forwards. `norms`
    says whether the model has batch norms that are not frozen: that normalise by whole parts, or by the
    slices of forwards. `excluded` are options of the strategy that change results by nature."""

    workload: CheckedWorkload
    precision: str
    num_samples: int
    batch_samples: int
    num_shards: int = 1
    num_forwards: int = 1
    num_norm_slices: int = 1
    norms: Norms = "none"
    excluded: tuple[str, ...] = ()

    @property
    def is_batch_split(self) -> bool:
        return self.num_shards * self.num_forwards > 1

    @property
    def is_full_batch(self) -> bool:
        """Whether whole batches are compared."""
        return self.num_samples == self.batch_samples


@dataclass
class CheckedWorkload(Workload):
    """Has a model with at most so many layers of a kind, or all, and with batch norms that may be frozen.
    `build_error` is what the person's factory raised."""

    max_layers: int | None = None
    has_frozen_norms: bool = False
    build_error: RankdeckError | None = None

    def build_model(self) -> nn.Module:
        try:
            model = super().build_model()
        except RankdeckError as error:
            self.build_error = error
            raise
        if self.max_layers is not None:
            drop_layers(model, self.max_layers)
        if self.has_frozen_norms:
            freeze_norms(model)
        return model


def make_scope(
    workload: Workload,
    num_devices: int,
    *,
    precision: str,
    whole_batch: bool,
    has_batch_norm: bool,
    own_norms: bool = False,
    max_layers: int | None = None,
) -> CheckScope:
    """The workload as it is compared on so many devices, with at most so many layers of a kind. Batch norms
    that would see slices of a batch are frozen, unless they are compared as their `own_norms`."""
    config = workload.config
    strategy, left_out = _comparable_strategy(config.strategy)
    if not whole_batch:
        strategy = _with_fewer_microbatches(strategy, num_devices)
    train = config.train
    has_all_parts = (
        whole_batch or strategy.use == _ASYNC_PIPELINE
    )  # of which an update needs as many as stages
    accumulate = train.accumulate if has_all_parts else min(train.accumulate, _MAX_MICROSTEPS)
    batch = train.global_batch if whole_batch else _fewest_samples(config, strategy, accumulate, num_devices)
    if batch == train.global_batch:
        accumulate = train.accumulate
    checked = config.model_copy(
        update={
            "strategy": strategy,
            "train": train.model_copy(
                update={
                    "global_batch": batch,
                    "accumulate": accumulate,
                    "precision": precision,
                    "compile": False,
                }
            ),
            "data": config.data.model_copy(update={"workers": min(config.data.workers, 1), "last": "drop"}),
            "rehearsal": config.rehearsal.model_copy(update={"pace": "real"}),
        }
    )
    variant = CheckedWorkload(
        config=checked,
        data_spec=workload.data_spec,
        train=workload.train,
        heldout=None,
        loss=make_loss(checked, workload.data_spec),
        steps=NUM_STEPS,
        schedule=lambda step: 1.0,
        max_layers=max_layers,
    )
    shards, pieces = _split_counts(checked, num_devices)
    num_normed = 1 if config.strategy_spec.one_process else pieces
    norms: Norms = "whole" if has_batch_norm else "none"
    if has_batch_norm and shards * pieces > 1 and not strategy.options.get("sync_batchnorm"):
        left_out = (*left_out, "batch-norm")
        norms = "slices" if own_norms else "none"
        variant.has_frozen_norms = not own_norms
    return CheckScope(
        variant, precision, batch, train.global_batch, shards, pieces, num_normed, norms, left_out
    )


def _split_counts(config: RunConfig, num_devices: int) -> tuple[int, int]:
    """(ranks that read slices of their own, forwards over what each reads)."""
    card, options = config.strategy_spec, config.strategy.options
    slices, stages = card.batch_split(options, num_devices)
    if card.one_process:
        return 1, slices
    if stages == 1:
        return slices, 1
    part = config.train.global_batch // config.train.accumulate // slices
    pieces = options.get("microbatches") or default_microbatches(str(options["schedule"]), stages, part)
    return slices, int(pieces or 1)


def min_layers(config: RunConfig, num_devices: int) -> int:
    """How many layers of a kind every stage needs together."""
    _, stages = config.strategy_spec.batch_split(config.strategy.options, num_devices)
    return _LAYERS_PER_STAGE * (num_devices if config.strategy.use == _MODEL_PARALLEL else stages)


def _comparable_strategy(strategy: Choice) -> tuple[Choice, tuple[str, ...]]:
    """The strategy without what makes its results differ by nature, and what that is.

    A pipeline without a flush trains on older weights: trial.py drains it after each step.
    """
    options = dict(strategy.options)
    left_out: tuple[str, ...] = ("staleness",) if strategy.use == _ASYNC_PIPELINE else ()
    if options.get("compress", "none") != "none":
        options["compress"], left_out = "none", (*left_out, "compress")
    return Choice(use=strategy.use, options=options), left_out


def _with_fewer_microbatches(strategy: Choice, num_devices: int) -> Choice:
    _, stages = STRATEGIES[strategy.use].batch_split(strategy.options, num_devices)
    enough = _enough_microbatches(strategy, stages)
    if stages == 1 or strategy.options.get("microbatches", 0) <= enough:
        return strategy
    return Choice(use=strategy.use, options={**strategy.options, "microbatches": enough})


def _enough_microbatches(strategy: Choice, stages: int) -> int:
    """So many that every phase of the schedule takes place."""
    schedule = str(strategy.options.get("schedule", "gpipe"))
    return next(num for num in itertools.count(stages + 1) if can_schedule(schedule, stages, num))


def _fewest_samples(config: RunConfig, strategy: Choice, accumulate: int, num_devices: int) -> int:
    """The smallest batch that is cut as the run's is, with two samples in each forward."""
    slices, stages = STRATEGIES[strategy.use].batch_split(strategy.options, num_devices)
    forwards = 1
    if stages > 1:
        forwards = strategy.options.get("microbatches") or _enough_microbatches(strategy, stages)
    cut = accumulate * slices * forwards
    for samples in (_SAMPLES_PER_FORWARD, 1):
        batch = cut * samples
        train = config.train.model_copy(update={"global_batch": batch, "accumulate": accumulate})
        if batch < config.train.global_batch and not batch_problems(train, strategy, num_devices):
            return batch
    return config.train.global_batch


# A model with a few of its layers of each kind, for the check of one that is too large as it is.
#
# What a strategy does with a layer it does with all others of its class and its shapes.


def drop_layers(model: nn.Module, most: int) -> int:
    """Take from the model's repeated blocks those that come after `most` of the same kind; how many stay."""
    kinds: Counter[Hashable] = Counter()
    left_out = set()
    blocks = repeated_blocks(model)
    for block in blocks:
        kinds[_layer_key(block)] += 1
        if kinds[_layer_key(block)] > most:
            left_out.add(id(block))
    for row in model.modules():
        if isinstance(row, nn.ModuleList | nn.Sequential) and left_out & {id(block) for block in row}:
            stay = {name: block for name, block in row._modules.items() if id(block) not in left_out}
            if isinstance(row, nn.ModuleList):  # which counts its names
                stay = {str(index): block for index, block in enumerate(stay.values())}
            row._modules.clear()
            row._modules.update(stay)
    return len(blocks) - len(left_out)


def _layer_key(block: nn.Module) -> Hashable:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    trained = tuple(weight.requires_grad for weight in block.parameters())
    return type(block), tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors), trained


# Batch norms that normalise by their running statistics, so that a batch may be cut anywhere.
#
# They differ from one device by nature wherever a batch is cut; frozen on both sides, all else can be
# compared.


def freeze_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.__class__ = _frozen_class(type(module))
            module.eval()


class _FrozenBatchNorm(BatchNorm):
    """Stays in eval mode; one that keeps no statistics takes those of a norm that has seen nothing yet."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)

    def forward(self, values: Tensor) -> Tensor:
        if self.running_mean is not None:
            return super().forward(values)
        zeros = values.new_zeros(self.num_features)
        return F.batch_norm(values, zeros, zeros + 1, self.weight, self.bias, False, 0.0, self.eps)


def _frozen_class(norm: type[BatchNorm]) -> type[BatchNorm]:
    """The class of a batch norm, frozen. Under its own names: torch's tracing asks where a class is from."""
    names = {"__module__": norm.__module__, "__qualname__": norm.__qualname__}
    return type(norm.__name__, (_FrozenBatchNorm, norm), names)
