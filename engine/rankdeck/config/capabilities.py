"""What does not combine, as a table: one row per pair, with the reason and what to use instead.

A row is a predicate over `Facts`, read before anything starts; rules.py tells what it finds with path and
line. What is not in the table works, and a test shows it. Add a row where a test shows that it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config.schema import Choice, TrainConfig


@dataclass(frozen=True)
class Facts:
    """What rows look at: parts of a validated configuration. `device_kind` (cpu | gpu) is None where only the
    launch can tell."""

    strategy: Choice
    train: TrainConfig = field(default_factory=TrainConfig)
    model_args: Mapping[str, Any] = field(default_factory=dict)
    device_kind: str | None = None

    def asks(self, option: str) -> bool:
        """Whether an option of the strategy is given and on."""
        return bool(self.strategy.options.get(option))


@dataclass(frozen=True)
class Refusal:
    """One row. `strategies` empty: of all; `place` is the dotted path that is blamed. `cure` fixes it (see
    Problem); `instead` says it in words, and what else would do.
    """

    strategies: tuple[str, ...]
    place: str
    applies: Callable[[Facts], bool]
    why: Phrase
    cure: Mapping[str, Any]
    instead: Phrase


def _own_sync(facts: Facts) -> bool:
    return bool(facts.strategy.options.get("sync", "native") != "native")


SPLIT_BACKWARD = ("interleaved-zero-bubble", "zbv", "dualpipev")

_IN_SLICES = ("fsdp", "tensor", "hybrid")
_WHOLE_WEIGHTS = phrase(
    'Set train.optimizer.use = "adamw", or strategy.use = ddp, model or pipeline, where a rank holds whole '
    "weights."
)


def _is_torchs(facts: Facts, *names: str) -> bool:
    """Whether the optimizer is one of torch's own, by name; without names any of them."""
    module, _, name = facts.train.optimizer.use.rpartition(":")
    return (not names or name in names) and module.partition(".")[0] == ("torch" if module else "")


def _steps_both_ways(facts: Facts) -> bool:
    options = facts.train.optimizer.options
    return _is_torchs(facts) and bool(options.get("foreach")) and bool(options.get("fused"))


def _cuts_weights(facts: Facts) -> bool:
    options = facts.strategy.options
    return facts.strategy.use != "hybrid" or options.get("shard", 1) > 1 or options.get("tensor", 1) > 1


WITH_FP16 = ("single", "dp", "ddp", "model")
WITH_COMPILE = ("single", "ddp")

REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        (),
        "train.precision",
        lambda facts: facts.train.precision == "fp16" and facts.device_kind == "cpu",
        phrase("train.precision = fp16 is for CUDA: a CPU has no fast fp16."),
        {"train.precision": "bf16"},
        phrase('Set train.precision = "bf16", or use fp32 or gpu devices.'),
    ),
    Refusal(
        (),
        "train.precision",
        lambda facts: facts.train.precision == "fp16" and facts.strategy.use not in WITH_FP16,
        phrase("train.precision = fp16 needs a gradient scaler that sees the whole gradient on every rank."),
        {"train.precision": "bf16"},
        phrase(
            'Set train.precision = "bf16", which needs no scaler, or use strategy.use = single, dp, ddp '
            "or model."
        ),
    ),
    Refusal(
        (),
        "train.compile",
        lambda facts: facts.train.compile and facts.strategy.use not in WITH_COMPILE,
        phrase("train.compile works on a model that stays whole and in its place."),
        {"train.compile": None},
        phrase("Leave train.compile out, or use strategy.use = single or ddp."),
    ),
    Refusal(
        (),
        "train.compile",
        lambda facts: facts.train.compile and facts.train.activation_checkpointing,
        phrase("train.compile decides by itself what to compute again in backward."),
        {"train.activation_checkpointing": None},
        phrase("Leave train.activation_checkpointing out."),
    ),
    Refusal(
        (),
        "train.optimizer.foreach",
        _steps_both_ways,
        phrase("train.optimizer.foreach and train.optimizer.fused are two ways to compute one step."),
        {"train.optimizer.foreach": None},
        phrase("Leave train.optimizer.foreach out, or train.optimizer.fused."),
    ),
    Refusal(
        (),
        "train.optimizer.use",
        lambda facts: _is_torchs(facts, "LBFGS"),
        phrase(
            "LBFGS computes the loss several times in one step, and a step here has one forward and backward."
        ),
        {"train.optimizer.use": "adamw"},
        phrase('Set train.optimizer.use = "adamw", or use sgd or adam.'),
    ),
    Refusal(
        _IN_SLICES,
        "train.optimizer.use",
        lambda facts: _is_torchs(facts, "Adafactor", "Rprop") and _cuts_weights(facts),
        phrase("torch's Adafactor and Rprop cannot step weights that lie in slices on several ranks."),
        {"train.optimizer.use": "adamw"},
        _WHOLE_WEIGHTS,
    ),
    Refusal(
        _IN_SLICES,
        "train.optimizer.use",
        lambda facts: _is_torchs(facts, "Muon") and _cuts_weights(facts),
        phrase(
            "Muon works on whole matrices in 16 bits: in slices their sums are rounded otherwise, and "
            "the run would end elsewhere than on one device."
        ),
        {"train.optimizer.use": "adamw"},
        _WHOLE_WEIGHTS,
    ),
    Refusal(
        ("ddp",),
        "strategy.static_graph",
        lambda facts: facts.asks("static_graph") and facts.train.accumulate > 1,
        phrase(
            "strategy.static_graph cannot skip the sync of the first parts of an accumulated batch: "
            "torch's wrapper stops there with an internal error."
        ),
        {"train.accumulate": 1},
        phrase("Set train.accumulate = 1, or leave strategy.static_graph out."),
    ),
    Refusal(
        ("ddp",),
        "strategy.find_unused_parameters",
        lambda facts: facts.asks("static_graph") and facts.asks("find_unused_parameters"),
        phrase(
            "strategy.static_graph learns in the first step which parameters are unused; "
            "strategy.find_unused_parameters asks in every step."
        ),
        {"strategy.static_graph": None},
        phrase(
            "Leave strategy.static_graph out, or the other one where the same parameters are unused in "
            "every step."
        ),
    ),
    Refusal(
        ("ddp",),
        "strategy.static_graph",
        lambda facts: facts.asks("static_graph") and _own_sync(facts),
        phrase(
            "strategy.static_graph is an option of torch's own wrapper; every other sync starts after "
            "backward and needs no graph."
        ),
        {"strategy.static_graph": None},
        phrase('Leave strategy.static_graph out, or set strategy.sync = "native".'),
    ),
    Refusal(
        ("pipeline",),
        "train.activation_checkpointing",
        lambda facts: (
            facts.train.activation_checkpointing and facts.strategy.options.get("schedule") in SPLIT_BACKWARD
        ),
        phrase(
            "A schedule that splits backward in two goes through the graph twice, and a checkpointed "
            "block recomputes its forward only once."
        ),
        {"strategy.schedule": "1f1b"},
        phrase(
            'Set strategy.schedule = "1f1b" or "interleaved-1f1b", or train.activation_checkpointing = false.'
        ),
    ),
    Refusal(
        ("pipeline-async",),
        "train.clip_norm",
        lambda facts: facts.train.clip_norm > 0,
        phrase(
            "train.clip_norm needs the norm over all gradients of one update, and in a pipeline without "
            "a flush no moment has them all."
        ),
        {"train.clip_norm": 0},
        phrase('Set train.clip_norm = 0, or strategy.use = "pipeline".'),
    ),
    Refusal(
        ("pipeline-async",),
        "model.args.tied",
        lambda facts: bool(facts.model_args.get("tied")),
        phrase(
            "The first and the last stage of a pipeline without a flush update a tied weight at "
            "different times: its copies would drift apart."
        ),
        {"model.args.tied": False},
        phrase('Set model.args.tied = false, or strategy.use = "pipeline".'),
    ),
    Refusal(
        ("ddp",),
        "strategy.gradient_as_bucket_view",
        lambda facts: facts.asks("gradient_as_bucket_view") and _own_sync(facts),
        phrase(
            "strategy.gradient_as_bucket_view is an option of torch's own wrapper; every other sync "
            "makes its buckets after backward and drops them."
        ),
        {"strategy.gradient_as_bucket_view": None},
        phrase('Leave strategy.gradient_as_bucket_view out, or set strategy.sync = "native".'),
    ),
)


def refusals(facts: Facts) -> list[Refusal]:
    """The rows that hold for this configuration, in the order of the table."""
    return [
        row
        for row in REFUSALS
        if (not row.strategies or facts.strategy.use in row.strategies) and row.applies(facts)
    ]
