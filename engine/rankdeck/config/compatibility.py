"""A table of options that cannot be combined, with the reason and an alternative for each combination.

Each row is a predicate over `Facts`, evaluated before anything starts; rules.py reports the rows that match,
with path and line. Every combination without a row works and is tested. Add a row if a test shows that a
combination cannot work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.schema import Choice, TrainConfig


@dataclass(frozen=True)
class Facts:
    """The parts of a validated configuration that are tested by the rows of INCOMPATIBILITIES.

    `device_kind` (cpu | gpu) is None if it becomes known only at launch.
    """

    strategy: Choice
    train: TrainConfig = field(default_factory=TrainConfig)
    model_args: Mapping[str, Any] = field(default_factory=dict)
    device_kind: str | None = None

    def is_enabled(self, option: str) -> bool:
        """Return whether an option of the strategy is set and true."""
        return bool(self.strategy.options.get(option))


@dataclass(frozen=True)
class Incompatibility:
    """A row of INCOMPATIBILITIES.

    Empty `strategies` means all strategies. `path` is the dotted path of the option that is reported.
    `changes` are the changes that fix the problem, as in Problem.cure; `advice` describes them and their
    alternatives.
    """

    strategies: tuple[str, ...]
    path: str
    applies: Callable[[Facts], bool]
    why: Phrase
    changes: Mapping[str, Any]
    advice: Phrase


def _has_explicit_sync(facts: Facts) -> bool:
    return bool(facts.strategy.options.get("sync", "native") != "native")


# Schedules that compute gradients of inputs and of weights in separate backward passes.
SPLIT_BACKWARD_SCHEDULES = ("interleaved-zero-bubble", "zbv", "dualpipev")

_SHARDED_STRATEGIES = ("fsdp", "tensor", "hybrid")
_WHOLE_WEIGHTS_ADVICE = phrase(
    'Set train.optimizer.use = "adamw", or strategy.use = ddp, model or pipeline, which do not shard weights.'
)


def _is_torch_optimizer(facts: Facts, *names: str) -> bool:
    """Return whether the optimizer is a torch optimizer with one of the `names`; without `names`, whether it
    is any torch optimizer."""
    module, _, name = facts.train.optimizer.use.rpartition(":")
    # A catalog name has no module, and the catalog has only torch's optimizers.
    return (not names or name in names) and module.partition(".")[0] == ("torch" if module else "")


def _has_foreach_and_fused(facts: Facts) -> bool:
    options = facts.train.optimizer.options
    return _is_torch_optimizer(facts) and bool(options.get("foreach")) and bool(options.get("fused"))


def _has_sharded_weights(facts: Facts) -> bool:
    # A hybrid mesh of data and stage alone keeps weights whole; fsdp and tensor always shard them.
    options = facts.strategy.options
    return facts.strategy.use != "hybrid" or options.get("shard", 1) > 1 or options.get("tensor", 1) > 1


# A gradient scaler needs whole gradients on every rank.
FP16_STRATEGIES = ("single", "dp", "ddp", "model")
# torch.compile needs a model that stays whole and in its place.
COMPILE_STRATEGIES = ("single", "ddp")

INCOMPATIBILITIES: tuple[Incompatibility, ...] = (
    Incompatibility(
        (),
        "train.precision",
        lambda facts: facts.train.precision == "fp16" and facts.device_kind == "cpu",
        phrase("train.precision = fp16 is supported only with CUDA, because fp16 is slow on CPUs."),
        {"train.precision": "bf16"},
        phrase('Set train.precision = "bf16" or "fp32", or use GPUs.'),
    ),
    Incompatibility(
        (),
        "train.precision",
        lambda facts: facts.train.precision == "fp16" and facts.strategy.use not in FP16_STRATEGIES,
        phrase(
            "train.precision = fp16 uses a gradient scaler, which needs the whole gradient on every rank."
        ),
        {"train.precision": "bf16"},
        phrase(
            'Set train.precision = "bf16", which needs no scaler, or set strategy.use = '
            "single, dp, ddp or model."
        ),
    ),
    Incompatibility(
        (),
        "train.compile",
        lambda facts: facts.train.compile and facts.strategy.use not in COMPILE_STRATEGIES,
        phrase("train.compile needs the whole model on one device in each process."),
        {"train.compile": None},
        phrase("Leave train.compile out, or set strategy.use = single or ddp."),
    ),
    Incompatibility(
        (),
        "train.compile",
        lambda facts: facts.train.compile and facts.train.activation_checkpointing,
        phrase("With train.compile, torch already chooses what to recompute in the backward pass."),
        {"train.activation_checkpointing": None},
        phrase("Leave train.activation_checkpointing out."),
    ),
    Incompatibility(
        (),
        "train.optimizer.foreach",
        _has_foreach_and_fused,
        phrase(
            "train.optimizer.foreach and train.optimizer.fused select two different "
            "implementations of the optimizer step."
        ),
        {"train.optimizer.foreach": None},
        phrase("Leave train.optimizer.foreach out, or leave train.optimizer.fused out."),
    ),
    Incompatibility(
        (),
        "train.optimizer.use",
        lambda facts: _is_torch_optimizer(facts, "LBFGS"),
        phrase(
            "LBFGS evaluates the loss several times per step, but Rankdeck runs one forward and one "
            "backward pass per step."
        ),
        {"train.optimizer.use": "adamw"},
        phrase('Set train.optimizer.use = "adamw", "sgd" or "adam".'),
    ),
    Incompatibility(
        _SHARDED_STRATEGIES,
        "train.optimizer.use",
        lambda facts: _is_torch_optimizer(facts, "Adafactor", "Rprop") and _has_sharded_weights(facts),
        phrase("torch's Adafactor and Rprop cannot update weights that are sharded across ranks."),
        {"train.optimizer.use": "adamw"},
        _WHOLE_WEIGHTS_ADVICE,
    ),
    Incompatibility(
        _SHARDED_STRATEGIES,
        "train.optimizer.use",
        lambda facts: _is_torch_optimizer(facts, "Muon") and _has_sharded_weights(facts),
        phrase(
            "Muon processes whole matrices in 16 bits. On sharded matrices it rounds sums "
            "differently, so results would differ from those on one device."
        ),
        {"train.optimizer.use": "adamw"},
        _WHOLE_WEIGHTS_ADVICE,
    ),
    Incompatibility(
        ("ddp",),
        "strategy.static_graph",
        lambda facts: facts.is_enabled("static_graph") and facts.train.accumulate > 1,
        phrase(
            "With strategy.static_graph, gradient sync cannot be skipped during accumulation: "
            "torch's DistributedDataParallel would fail with an internal error."
        ),
        {"train.accumulate": 1},
        phrase("Set train.accumulate = 1, or leave strategy.static_graph out."),
    ),
    Incompatibility(
        ("ddp",),
        "strategy.find_unused_parameters",
        lambda facts: facts.is_enabled("static_graph") and facts.is_enabled("find_unused_parameters"),
        phrase(
            "strategy.static_graph detects unused parameters only in the first step; "
            "strategy.find_unused_parameters detects them in every step."
        ),
        {"strategy.static_graph": None},
        phrase(
            "Leave strategy.static_graph out. If the same parameters are unused in every step, "
            "leave strategy.find_unused_parameters out instead."
        ),
    ),
    Incompatibility(
        ("ddp",),
        "strategy.static_graph",
        lambda facts: facts.is_enabled("static_graph") and _has_explicit_sync(facts),
        phrase(
            "strategy.static_graph applies only to torch's DistributedDataParallel; with this strategy.sync, "
            "gradients are synchronized after the backward pass, which does not need a static graph."
        ),
        {"strategy.static_graph": None},
        phrase('Leave strategy.static_graph out, or set strategy.sync = "native".'),
    ),
    Incompatibility(
        ("pipeline",),
        "train.activation_checkpointing",
        lambda facts: (
            facts.train.activation_checkpointing
            and facts.strategy.options.get("schedule") in SPLIT_BACKWARD_SCHEDULES
        ),
        phrase(
            "A schedule with a split backward pass traverses the graph twice, but a checkpointed block "
            "recomputes its forward pass only once."
        ),
        {"strategy.schedule": "1f1b"},
        phrase(
            'Set strategy.schedule = "1f1b" or "interleaved-1f1b", or train.activation_checkpointing = false.'
        ),
    ),
    Incompatibility(
        ("pipeline-async",),
        "train.clip_norm",
        lambda facts: facts.train.clip_norm > 0,
        phrase(
            "train.clip_norm needs all gradients of an update at once, but a pipeline without "
            "a flush never has them all."
        ),
        {"train.clip_norm": 0},
        phrase('Set train.clip_norm = 0, or strategy.use = "pipeline".'),
    ),
    Incompatibility(
        ("pipeline-async",),
        "model.args.tied",
        lambda facts: bool(facts.model_args.get("tied")),
        phrase(
            "Without a flush, the first and the last pipeline stage update a tied weight at "
            "different times, so its copies would drift apart."
        ),
        {"model.args.tied": False},
        phrase('Set model.args.tied = false, or strategy.use = "pipeline".'),
    ),
    Incompatibility(
        ("ddp",),
        "strategy.gradient_as_bucket_view",
        lambda facts: facts.is_enabled("gradient_as_bucket_view") and _has_explicit_sync(facts),
        phrase(
            "strategy.gradient_as_bucket_view applies only to torch's DistributedDataParallel; with this "
            "strategy.sync, buckets exist only during the synchronization after the backward pass."
        ),
        {"strategy.gradient_as_bucket_view": None},
        phrase('Leave strategy.gradient_as_bucket_view out, or set strategy.sync = "native".'),
    ),
)


def find_incompatibilities(facts: Facts) -> list[Incompatibility]:
    """Return the rows of INCOMPATIBILITIES that match the configuration, in the order of the table."""
    return [
        row
        for row in INCOMPATIBILITIES
        if (not row.strategies or facts.strategy.use in row.strategies) and row.applies(facts)
    ]
