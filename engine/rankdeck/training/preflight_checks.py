"""Check gradients, optimizer and hooks once the model is built, before the first step.

A run is refused for sparse gradients that it does not support, an optimizer that does not work on split
weights, or hooks whose results for parts of a batch do not add up. Read assembly.py first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.diagnose.exceptions import error_text, is_out_of_memory
from rankdeck.parallel.tensor.gradients import apply_gradient_hooks, is_close
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.dtensors import is_dtensor, local_part
from rankdeck.torch_compat.fake_tensors import active_fake_mode
from rankdeck.torch_compat.weight_metadata import metadata_by_name
from rankdeck.training.step import set_optimizer_mode
from rankdeck.training.trial_weights import (
    ModelWeights,
    TrialWeight,
    draw_gradients,
    is_sparse,
    make_trial_weights,
)


def check_sparse_gradients(model: nn.Module, strategy: Strategy, config: RunConfig) -> None:
    """Check the model's embeddings. Raises: ModelError, ConfigError if an embedding has sparse gradients that
    the run does not support."""
    name = next((name for name, module in model.named_modules() if is_sparse(module)), None)
    if name is None:
        return
    if config.train.clip_norm:
        raise ConfigError(
            phrase(
                "train.clip_norm needs the norm of all gradients, but those of {name!r} are sparse.",
                name=name,
            ),
            path="train.clip_norm",
            advice=phrase("Set train.clip_norm = 0, or build the embedding with sparse = False."),
            changes={"train.clip_norm": 0.0},
        )
    if not strategy.supports_sparse_gradients:
        raise ModelError(
            phrase(
                "The embedding {name!r} produces sparse gradients (sparse=True), which the strategy "
                "{strategy} cannot reduce or shard.",
                name=name,
                strategy=config.strategy.use,
            ),
            code="sparse-gradients",
            path="strategy.use",
            advice=phrase(
                "Build the embedding with sparse = False, or use the strategy single, model or "
                'pipeline, or ddp with strategy.sync = "native".'
            ),
            changes={"strategy.use": "ddp"} if config.strategy.use != "ddp" else {"strategy.sync": "native"},
        )


# Check that the optimizer does the same with the weights that a rank holds as with those of the whole model.
#
#     by element    a shard steps as it does in the full weight       allowed everywhere
#     by weight     a weight steps alone as it does among all         allowed if ranks hold full weights
#     over all      anything else                                     allowed if each rank holds all weights
#
# The check steps tensors like the run's own: as many, in the model's order, with the attributes, sizes (cut
# down if too large) and magnitudes of its weights. Gradients have rows of zeros, a spike in the first weight
# and one in the last, far above the norm of all others. torch's element-wise optimizers are known to pass.
# Optimizers that are known to fail are refused earlier, by name, in config/compatibility.py.

_ELEMENTWISE_OPTIMIZERS = frozenset(
    ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD", "Adadelta", "Adagrad")
)
_NUM_TRIAL_STEPS = 8
_PLACEMENT_ERROR_WORDS = ("placement", "sharding strategy")
"""Words in torch's errors for operations that do not support sharded tensors."""

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def check_optimizer(
    build: MakeOptimizer, optimizer: Optimizer, strategy: Strategy, config: RunConfig, layout: ModelWeights
) -> None:
    """Test the optimizer on trial weights. `layout` describes the whole model; all ranks call this together.

    Raises: ConfigError if the run cannot use the optimizer.
    """
    is_torchs = type(optimizer).__module__.startswith("torch.optim.")
    if is_torchs and type(optimizer).__name__ in _ELEMENTWISE_OPTIMIZERS and not layout.has_sparse:
        return
    use, is_planned = config.train.optimizer.use, active_fake_mode() is not None
    if strategy.setup.world_size > 1 and not is_planned:
        layout = layout.broadcast_statistics()
    # Trials must not count as the run's memory, nor change its random numbers.
    with strategy.ledger.paused(), torch.random.fork_rng(devices=[]):
        wholes = make_trial_weights(
            layout, strategy.module, strategy.setup.dtype, thorough=strategy.is_sharded
        )
        local_weights = [weight for weight in wholes if weight.is_local]
        in_slices = any(weight.is_sharded for weight in wholes)
        if is_planned:
            if in_slices:
                _try_shards_without_values(build, local_weights, use)
            return
        # An optimizer that draws random numbers changes this state.
        state = torch.get_rng_state()
        expected, paths = _run_trial_steps(build, wholes, wholes, use)
        if strategy.setup.world_size > 1 and not torch.equal(state, torch.get_rng_state()):
            raise _random_optimizer_error(use)
        if not in_slices and len(local_weights) == len(wholes):
            return
        stepped, _ = _run_trial_steps(build, local_weights, wholes, use, as_local=True)
        differs = any(
            weight.local_differs(ours, expected[weight.index], paths[weight.index])
            for weight, ours in zip(local_weights, stepped, strict=True)
        )
        # All ranks raise together, or some would wait for others that have left.
        if _on_any_rank(differs, strategy):
            raise _optimizer_mismatch_error(
                use, is_per_weight=in_slices and _is_per_weight(build, wholes, expected, paths, use)
            )


def _on_any_rank(value: bool, strategy: Strategy) -> bool:
    flag = torch.tensor(int(value), device=strategy.device)
    if strategy.setup.world_size > 1:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def _is_per_weight(
    build: MakeOptimizer,
    wholes: Sequence[TrialWeight],
    expected: Sequence[Tensor],
    paths: Sequence[Tensor],
    use: str,
) -> bool:
    """Check whether an optimizer for only the last of the trained weights changes that weight in the same way
    as an optimizer for all weights."""
    index = max(index for index, weight in enumerate(wholes) if weight.is_trained)
    (alone,), _ = _run_trial_steps(build, [wholes[index]], wholes, use)
    return not wholes[index].full_differs(alone, expected[index], paths[index])


def _try_shards_without_values(build: MakeOptimizer, local_weights: Sequence[TrialWeight], use: str) -> None:
    """Take optimizer steps on trial weights in a plan, where tensors have no values: nothing is compared, and
    an optimizer that fails only because it needs values is accepted.

    Raises: ConfigError if torch cannot place an operation's result.
    """
    try:
        _run_trial_steps(build, local_weights, local_weights, use, as_local=True, num_steps=2)
    except ConfigError as error:
        if any(word in str(error.__cause__) for word in _PLACEMENT_ERROR_WORDS):
            raise


def _run_trial_steps(
    build: MakeOptimizer,
    chosen: Sequence[TrialWeight],
    wholes: Sequence[TrialWeight],
    use: str,
    *,
    as_local: bool = False,
    num_steps: int = _NUM_TRIAL_STEPS,
) -> tuple[list[Tensor], list[Tensor]]:
    """Take optimizer steps on the weights `chosen` from `wholes`, with gradients drawn for all of `wholes`;
    return the new weights and how far each element moved.

    Raises: ConfigError if the optimizer cannot take the steps.
    """
    weights = [
        trial_weight.local_parameter() if as_local else trial_weight.full_parameter()
        for trial_weight in chosen
    ]
    paths = [torch.zeros_like(local_part(weight.detach()).abs()) for weight in weights]
    try:
        optimizer = build(weights)
        set_optimizer_mode(optimizer, "train")
        for step in range(num_steps):
            gradients = draw_gradients(wholes, step, num_steps)
            before = [local_part(weight.detach()).clone() for weight in weights]
            for weight, trial_weight in zip(weights, chosen, strict=True):
                weight.grad = trial_weight.gradient(gradients[trial_weight.index], weight)
            optimizer.step()
            for weight, path, start in zip(weights, paths, before, strict=True):
                path += (local_part(weight.detach()) - start).abs()
    except Exception as error:  # a user's optimizer may raise anything
        # Too little memory says nothing about the optimizer.
        if is_out_of_memory(error):
            raise
        raise _step_error(use, error, is_sharded=any(map(is_dtensor, weights))) from error
    return [weight.detach() for weight in weights], paths


def _step_error(use: str, error: Exception, *, is_sharded: bool) -> ConfigError:
    text = f"{type(error).__name__}: {error_text(error)}".splitlines()[0].rstrip(": ")
    if is_sharded:
        return ConfigError(
            phrase(
                "Optimizer {use} cannot update weights that are sharded across ranks: {said}.",
                use=use,
                said=text,
            ),
            code="optimizer",
            path="train.optimizer.use",
            advice=phrase(
                "Use the optimizer sgd, adam or adamw, or the strategy ddp, which keeps weights whole."
            ),
            changes={"strategy.use": "ddp"},
        )
    return ConfigError(
        phrase("Optimizer {use} cannot take a step: {said}.", use=use, said=text),
        code="optimizer",
        path="train.optimizer.use",
        advice=phrase("Use sgd, adam or adamw."),
    )


def _optimizer_mismatch_error(use: str, *, is_per_weight: bool) -> ConfigError:
    if is_per_weight:
        message = phrase(
            "Optimizer {use} gives different results with sharded weights: it needs each "
            "weight as a whole, but ranks hold slices.",
            use=use,
        )
        advice = phrase(
            "Use the strategy ddp or pipeline, where ranks hold whole weights, or the optimizer sgd, "
            "adam or adamw."
        )
    else:
        message = phrase(
            "Optimizer {use} gives different results if each rank holds only part of the weights. Its "
            "update of a weight depends on other weights or on the weight's position among them.",
            use=use,
        )
        advice = phrase(
            "Use the strategy ddp, where every rank holds all weights, or the optimizer sgd, adam or adamw."
        )
    return ConfigError(
        message, code="optimizer", path="train.optimizer.use", advice=advice, changes={"strategy.use": "ddp"}
    )


def _random_optimizer_error(use: str) -> ConfigError:
    return ConfigError(
        phrase(
            "Optimizer {use} draws random numbers, and each rank would draw different ones, so the "
            "ranks' weights would diverge.",
            use=use,
        ),
        code="optimizer",
        path="train.optimizer.use",
        advice=phrase(
            "Use the strategy single, dp or model, which run in one process, or the optimizer sgd, "
            "adam or adamw."
        ),
        changes={"strategy.use": "single"},
    )


# Check that gradient hooks treat the gradients of parts of a batch as they treat their sum.
#
# One device calls a hook with the gradient of its whole batch. Ranks and microbatches call it with those of
# their own samples, and the results are summed: this is the same if a hook scales or masks, but not if it
# clips, normalizes or draws. Slices of a weight under tensor are checked in parallel/tensor/gradients.py.

_GRADIENT_SCALES = (1e-6, 1.0, 1e6)
"""Scales of trial gradients: a hook that clips may leave small gradients unchanged."""


def check_gradient_hooks(
    model: nn.Module, build_again: Callable[[], nn.Module], strategy: Strategy, config: RunConfig
) -> None:
    """Test the weights' gradient hooks on a separate model, because hooks may count their calls.

    Raises: ModelError if a hook's results for parts of a gradient do not add up.
    """
    mesh = strategy.mesh()
    is_cut = mesh.size("data") * mesh.size("shard") * mesh.size("stage") > 1
    has_hooks = any(marks.has_hooks for marks in metadata_by_name(model).values())
    if not is_cut or not has_hooks or active_fake_mode() is not None:
        return
    # Between microbatches, and between microsteps in 16 bits, a hook sees gradients that it has changed
    # before.
    again = mesh.size("stage") > 1 or (mesh.size("shard") > 1 and config.train.accumulate > 1)
    with torch.random.fork_rng(devices=[]):
        model = build_again()
        marks = metadata_by_name(model)
        for name, weight in model.named_parameters():
            of_weight = marks.get(name)
            if of_weight is None or not of_weight.has_hooks:
                continue

            def run(gradient: Tensor, weight: nn.Parameter = weight, name: str = name) -> Tensor | None:
                return apply_gradient_hooks(marks[name], weight.detach(), gradient)

            if not _is_additive(run, weight, is_repeated=again and bool(of_weight.after_gradient)):
                raise _gradient_hook_error(name, config)


def _is_additive(run: Callable[[Tensor], Tensor | None], like: Tensor, *, is_repeated: bool) -> bool:
    """Check whether a hook's results for two gradients, drawn with the shape of `like`, add up to its result
    for their sum. If `is_repeated` is True, also run the hook on its own result plus the other gradient."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(like.shape, generator=generator).to(like.device, like.dtype) for _ in "ab")
    for scale in _GRADIENT_SCALES:
        results = [run(summand * scale) for summand in (first, second)]
        total = run((first + second) * scale)
        if total is None or results[0] is None or results[1] is None:
            return False
        if not is_close(results[0] + results[1], total):
            return False
        if is_repeated and (
            (twice := run(results[0] + second * scale)) is None or not is_close(twice, total)
        ):
            return False
    return True


def _gradient_hook_error(name: str, config: RunConfig) -> ModelError:
    return ModelError(
        phrase(
            "A gradient hook of {name} gives different results for parts of a batch than for the whole "
            "batch, and the strategy {strategy} splits each batch.",
            name=name,
            strategy=config.strategy.use,
        ),
        code="gradient-hook",
        path="strategy.use",
        advice=phrase(
            "Use the strategy single or model, set train.clip_norm instead of clipping in a hook, or "
            "modify gradients in your own optimizer."
        ),
        changes={"strategy.use": "single"},
    )
