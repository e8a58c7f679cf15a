"""Choose what the check compares: the run's own model, loss, optimizer and data, reduced in size.

Samples: two for each forward pass of the strategy, if the batch is large enough, and only as many
microbatches as are needed to keep all stages busy. Layers: a few of each kind if the whole model is too
large. Precision: fp64 for small models, because its rounding errors are far smaller than the effect of a bug;
for other models, fp32 if the run's precision has 16 bits. In all other cases, and if the model fails in the
wider precision, the run's own precision is used. The learning rate is the schedule's peak, because a warm-up
from 0 would hide the optimizer's effect. Read reference.py next.
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
"""Number of steps to compare: two, because a weight that is zero at first hides the gradients of earlier
layers until a step has changed it."""
_SAMPLES_PER_FORWARD = 2
_MAX_MICROSTEPS = 2
"""Maximum number of microsteps in a batch reduced in size, except with the asynchronous pipeline."""
_LAYERS_PER_STAGE = 2
_ASYNC_PIPELINE, _MODEL_PARALLEL = "pipeline-async", "model"
Norms = Literal["none", "whole", "slices"]


@dataclass(frozen=True)
class CheckScope:
    """The workload to compare, and how each of its batches is split.

    Of the run's `batch_samples` samples per batch, `num_samples` are compared. Each of `num_shards` ranks
    reads its own slice, and runs `num_forwards` forward passes over it. Running statistics of batch norms
    cover the first `num_norm_slices` forward passes. `norms`: whether unfrozen batch norms normalize over
    whole microsteps, or over the slices that forward passes process. `excluded` names the options and layers
    that inherently change results and are left out of the comparison.
    """

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
        """Whether full batches are compared."""
        return self.num_samples == self.batch_samples


@dataclass
class CheckedWorkload(Workload):
    """Workload whose model has at most `max_layers` layers of each kind (None: all), with batch norms frozen
    if requested.

    `build_error` is the error that building the model raised, if any.
    """

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
    """Return the scope of a comparison on `num_devices` devices, with at most `max_layers` layers of each
    kind. Batch norms that would see slices of a batch are frozen, unless `own_norms` is True."""
    config = workload.config
    strategy, excluded = _comparable_strategy(config.strategy)
    if not whole_batch:
        strategy = _with_fewer_microbatches(strategy, num_devices)
    train = config.train
    # An update of the async pipeline needs as many microsteps as stages.
    has_all_parts = whole_batch or strategy.use == _ASYNC_PIPELINE
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
        # A new loss: what the check finds out about counts must not reach the run's loss.
        loss=make_loss(checked, workload.data_spec),
        steps=NUM_STEPS,
        schedule=lambda step: 1.0,
        max_layers=max_layers,
    )
    shards, pieces = _split_counts(checked, num_devices)
    num_normed = 1 if config.strategy_spec.one_process else pieces
    norms: Norms = "whole" if has_batch_norm else "none"
    if has_batch_norm and shards * pieces > 1 and not strategy.options.get("sync_batchnorm"):
        excluded = (*excluded, "batch-norm")
        norms = "slices" if own_norms else "none"
        variant.has_frozen_norms = not own_norms
    return CheckScope(
        variant, precision, batch, train.global_batch, shards, pieces, num_normed, norms, excluded
    )


def _split_counts(config: RunConfig, num_devices: int) -> tuple[int, int]:
    """Return (number of ranks that read different slices, number of forward passes over each slice)."""
    card, options = config.strategy_spec, config.strategy.options
    slices, stages = card.batch_split(options, num_devices)
    if card.one_process:
        return 1, slices
    if stages == 1:
        return slices, 1
    microstep_samples = config.train.global_batch // config.train.accumulate // slices
    pieces = options.get("microbatches") or default_microbatches(
        str(options["schedule"]), stages, microstep_samples
    )
    return slices, int(pieces or 1)


def min_layers(config: RunConfig, num_devices: int) -> int:
    """Return the smallest number of layers of each kind that gives every stage enough layers."""
    _, stages = config.strategy_spec.batch_split(config.strategy.options, num_devices)
    return _LAYERS_PER_STAGE * (num_devices if config.strategy.use == _MODEL_PARALLEL else stages)


def _comparable_strategy(strategy: Choice) -> tuple[Choice, tuple[str, ...]]:
    """Return the strategy without options that inherently change results, and the names of the effects that
    are left out of the comparison.

    A pipeline that never flushes trains with stale weights, so trial.py drains it after each step.
    """
    options = dict(strategy.options)
    excluded: tuple[str, ...] = ("staleness",) if strategy.use == _ASYNC_PIPELINE else ()
    if options.get("compress", "none") != "none":
        options["compress"], excluded = "none", (*excluded, "compress")
    return Choice(use=strategy.use, options=options), excluded


def _with_fewer_microbatches(strategy: Choice, num_devices: int) -> Choice:
    _, stages = STRATEGIES[strategy.use].batch_split(strategy.options, num_devices)
    enough = _enough_microbatches(strategy, stages)
    if stages == 1 or strategy.options.get("microbatches", 0) <= enough:
        return strategy
    return Choice(use=strategy.use, options={**strategy.options, "microbatches": enough})


def _enough_microbatches(strategy: Choice, stages: int) -> int:
    """Return the smallest number of microbatches with which every phase of the schedule occurs."""
    schedule = str(strategy.options.get("schedule", "gpipe"))
    return next(num for num in itertools.count(stages + 1) if can_schedule(schedule, stages, num))


def _fewest_samples(config: RunConfig, strategy: Choice, accumulate: int, num_devices: int) -> int:
    """Return the size of the smallest batch that can be split into as many parts as the run's global batch,
    with two samples per forward pass if possible; return the global batch size if no smaller batch works."""
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


# Reduce a model that is too large for the check to a few layers of each kind.
#
# A strategy treats all layers of one class and shape alike. A GPT of 24 layers with 319 million weights is
# checked in this way under fsdp on two virtual devices with 17 GiB free.


def drop_layers(model: nn.Module, max_per_kind: int) -> int:
    """Keep only the first `max_per_kind` repeated blocks of each kind in the model; return how many blocks
    remain."""
    kinds: Counter[Hashable] = Counter()
    left_out = set()
    blocks = repeated_blocks(model)
    for block in blocks:
        kinds[_layer_key(block)] += 1
        if kinds[_layer_key(block)] > max_per_kind:
            left_out.add(id(block))
    for row in model.modules():
        if isinstance(row, nn.ModuleList | nn.Sequential) and left_out & {id(block) for block in row}:
            stay = {name: block for name, block in row._modules.items() if id(block) not in left_out}
            if isinstance(row, nn.ModuleList):  # its children's names are their positions
                stay = {str(index): block for index, block in enumerate(stay.values())}
            row._modules.clear()
            row._modules.update(stay)
    return len(blocks) - len(left_out)


def _layer_key(block: nn.Module) -> Hashable:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    trained = tuple(weight.requires_grad for weight in block.parameters())
    return type(block), tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors), trained


# Let batch norms normalize by their running statistics, so that a batch may be split anywhere.
#
# If a batch is split, their results inherently differ from those on one device. Once they are frozen on both
# sides, everything else can be compared. Proving the inherent difference would take five more computations,
# longer than all others together.


def freeze_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.__class__ = _frozen_class(type(module))
            module.eval()


class _FrozenBatchNorm(BatchNorm):
    """Batch norm that stays in eval mode; a norm without statistics uses the initial statistics of a new
    norm."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)

    def forward(self, values: Tensor) -> Tensor:
        if self.running_mean is not None:
            return super().forward(values)
        zeros = values.new_zeros(self.num_features)
        return F.batch_norm(values, zeros, zeros + 1, self.weight, self.bias, False, 0.0, self.eps)


def _frozen_class(norm: type[BatchNorm]) -> type[BatchNorm]:
    """Return the frozen version of a batch norm class, with the original's name and module, because torch's
    tracing checks a class's module."""
    names = {"__module__": norm.__module__, "__qualname__": norm.__qualname__}
    return type(norm.__name__, (_FrozenBatchNorm, norm), names)
