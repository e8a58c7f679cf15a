"""What a run refuses once its model is there, before the first step: gradients that a strategy cannot move,
an optimizer that it cannot split, hooks that it would lose. Read assembly.py before.
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
    """Raises: ModelError, ConfigError where gradients of an embedding are sparse and cannot be."""
    name = next((name for name, module in model.named_modules() if is_sparse(module)), None)
    if name is None:
        return
    if config.train.clip_norm:
        raise ConfigError(
            phrase(
                "train.clip_norm needs the norm of all gradients, and those of {name!r} are sparse.",
                name=name,
            ),
            path="train.clip_norm",
            advice=phrase("Set train.clip_norm = 0, or build the embedding with sparse = False."),
            changes={"train.clip_norm": 0.0},
        )
    if not strategy.supports_sparse_gradients:
        raise ModelError(
            phrase(
                "The embedding {name!r} gives sparse gradients (sparse=True), which strategy.use = "
                "{strategy} cannot add up or cut.",
                name=name,
                strategy=config.strategy.use,
            ),
            code="sparse-gradients",
            path="strategy.use",
            advice=phrase(
                "Build the embedding with sparse = False, or use single, model, pipeline or ddp with "
                'sync = "native".'
            ),
            changes={"strategy.use": "ddp"} if config.strategy.use != "ddp" else {"strategy.sync": "native"},
        )


# What a run refuses of its optimizer, before the first step: that it does something else with the weights
# that a rank holds than with the whole model.
#
#     by element    a slice becomes what it becomes in the whole      everywhere
#     by weight     a weight alone becomes what it becomes among all  where ranks hold whole weights
#     over all      anything else                                     where each rank holds all weights
#
# It is found by steps on tensors like the run's own: as many, in the model's order, with the attributes,
# sizes (cut down where they are too large) and magnitudes of its weights. Gradients have rows of zeros, a
# spike in the first weight and one in the last, far above the norm of all others. torch's optimizers that
# work element by element are known to pass. What is known by name is refused sooner, by
# config/compatibility.py.

_ELEMENTWISE_OPTIMIZERS = frozenset(
    ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD", "Adadelta", "Adagrad")
)
_NUM_TRIAL_STEPS = 8
_PLACEMENT_ERROR_WORDS = ("placement", "sharding strategy")
"""Words of torch's where an operation takes no slices."""

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def check_optimizer(
    build: MakeOptimizer, optimizer: Optimizer, strategy: Strategy, config: RunConfig, layout: ModelWeights
) -> None:
    """Try the optimizer out. `layout` is that of the whole model; all ranks of a run call this together.

    Raises: ConfigError.
    """
    is_torchs = type(optimizer).__module__.startswith("torch.optim.")
    if is_torchs and type(optimizer).__name__ in _ELEMENTWISE_OPTIMIZERS and not layout.has_sparse:
        return
    use, is_planned = config.train.optimizer.use, active_fake_mode() is not None
    if strategy.setup.world_size > 1 and not is_planned:
        layout = layout.broadcast_statistics()
    with strategy.ledger.paused(), torch.random.fork_rng(devices=[]):
        wholes = make_trial_weights(
            layout, strategy.module, strategy.setup.dtype, thorough=strategy.is_sharded
        )
        held = [whole for whole in wholes if whole.is_local]
        in_slices = any(whole.is_sharded for whole in wholes)
        if is_planned:
            if in_slices:
                _try_shards_without_values(build, held, use)
            return
        state = torch.get_rng_state()
        expected, paths = _run_trial_steps(build, wholes, wholes, use)
        if strategy.setup.world_size > 1 and not torch.equal(state, torch.get_rng_state()):
            raise _random_optimizer_error(use)
        if not in_slices and len(held) == len(wholes):
            return
        stepped, _ = _run_trial_steps(build, held, wholes, use, as_local=True)
        differs = any(
            whole.local_differs(ours, expected[whole.index], paths[whole.index])
            for whole, ours in zip(held, stepped, strict=True)
        )
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
    """Whether the last weight that is trained becomes alone what it becomes among all."""
    index = max(index for index, whole in enumerate(wholes) if whole.is_trained)
    (alone,), _ = _run_trial_steps(build, [wholes[index]], wholes, use)
    return not wholes[index].full_differs(alone, expected[index], paths[index])


def _try_shards_without_values(build: MakeOptimizer, held: Sequence[TrialWeight], use: str) -> None:
    """In a plan nothing can be compared, and an optimizer that reads values may raise for that alone.

    Raises: ConfigError where torch says that it cannot place what comes out.
    """
    try:
        _run_trial_steps(build, held, held, use, as_local=True, num_steps=2)
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
    """The chosen weights after some steps, and how far each of their numbers went on the way.

    Raises: ConfigError where the optimizer cannot take them.
    """
    weights = [whole.local_parameter() if as_local else whole.full_parameter() for whole in chosen]
    paths = [torch.zeros_like(local_part(weight.detach()).abs()) for weight in weights]
    try:
        optimizer = build(weights)
        set_optimizer_mode(optimizer, "train")
        for step in range(num_steps):
            gradients = draw_gradients(wholes, step, num_steps)
            before = [local_part(weight.detach()).clone() for weight in weights]
            for weight, whole in zip(weights, chosen, strict=True):
                weight.grad = whole.gradient(gradients[whole.index], weight)
            optimizer.step()
            for weight, path, start in zip(weights, paths, before, strict=True):
                path += (local_part(weight.detach()) - start).abs()
    except Exception as error:  # whatever a person's optimizer raises
        if is_out_of_memory(error):
            raise
        raise _step_error(use, error, is_sharded=any(map(is_dtensor, weights))) from error
    return [weight.detach() for weight in weights], paths


def _step_error(use: str, error: Exception, *, is_sharded: bool) -> ConfigError:
    said = f"{type(error).__name__}: {error_text(error)}".splitlines()[0].rstrip(": ")
    if is_sharded:
        return ConfigError(
            phrase(
                "train.optimizer {use} cannot step weights that lie in slices on several ranks: {said}.",
                use=use,
                said=said,
            ),
            code="optimizer",
            path="train.optimizer.use",
            advice=phrase("Use sgd, adam or adamw, or ddp, which keeps weights whole."),
            changes={"strategy.use": "ddp"},
        )
    return ConfigError(
        phrase("train.optimizer {use} cannot take a step: {said}.", use=use, said=said),
        code="optimizer",
        path="train.optimizer.use",
        advice=phrase("Use sgd, adam or adamw."),
    )


def _optimizer_mismatch_error(use: str, *, is_per_weight: bool) -> ConfigError:
    if is_per_weight:
        told = phrase(
            "train.optimizer {use} gives other weights where each rank holds a part of them: it needs a "
            "weight as a whole, and ranks hold slices.",
            use=use,
        )
        advice = phrase("Use ddp or pipeline, where ranks hold whole weights, or sgd, adam or adamw.")
    else:
        told = phrase(
            "train.optimizer {use} gives other weights where each rank holds a part of them: what it does "
            "to one depends on others, or on where it stands among them.",
            use=use,
        )
        advice = phrase("Use ddp, where every rank holds all weights, or sgd, adam or adamw.")
    return ConfigError(
        told, code="optimizer", path="train.optimizer.use", advice=advice, changes={"strategy.use": "ddp"}
    )


def _random_optimizer_error(use: str) -> ConfigError:
    return ConfigError(
        phrase(
            "train.optimizer {use} draws random numbers, and each rank would draw its own: their weights "
            "would drift apart.",
            use=use,
        ),
        code="optimizer",
        path="train.optimizer.use",
        advice=phrase("Use single, dp or model, which run in one process, or sgd, adam or adamw."),
        changes={"strategy.use": "single"},
    )


# What a run refuses of gradient hooks, before the first step: that they make something else of the
# gradients of parts of a batch than of their sum.
#
# One device calls a hook with the gradient of its whole batch. Ranks and microbatches call it with those of
# their samples, whose results are then added up: that is the same where a hook scales or masks, and is not
# where it clips, normalises or draws. Slices of a weight under tensor are checked where they are cut
# (parallel/tensor/gradients.py).

_GRADIENT_SCALES = (1e-6, 1.0, 1e6)
"""Of gradients: a hook that clips may do nothing to small ones."""


def check_gradient_hooks(
    model: nn.Module, build_again: Callable[[], nn.Module], strategy: Strategy, config: RunConfig
) -> None:
    """Try the hooks of the weights out, on a model of their own: hooks may count their calls.

    Raises: ModelError.
    """
    mesh = strategy.mesh()
    is_cut = mesh.size("data") * mesh.size("shard") * mesh.size("stage") > 1
    has_hooks = any(marks.has_hooks for marks in metadata_by_name(model).values())
    if not is_cut or not has_hooks or active_fake_mode() is not None:
        return
    # Between microbatches, and parts of a batch in 16 bits, a hook meets what it has changed before.
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
    """Whether the parts of a gradient become together what the whole becomes."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(like.shape, generator=generator).to(like.device, like.dtype) for _ in "ab")
    for scale in _GRADIENT_SCALES:
        parts = [run(part * scale) for part in (first, second)]
        whole = run((first + second) * scale)
        if whole is None or parts[0] is None or parts[1] is None:
            return False
        if not is_close(parts[0] + parts[1], whole):
            return False
        if is_repeated and ((twice := run(parts[0] + second * scale)) is None or not is_close(twice, whole)):
            return False
    return True


def _gradient_hook_error(name: str, config: RunConfig) -> ModelError:
    return ModelError(
        phrase(
            "A gradient hook of {name} makes something else of the gradients of parts of a batch than of the "
            "whole, and strategy.use = {strategy} cuts each batch.",
            name=name,
            strategy=config.strategy.use,
        ),
        code="gradient-hook",
        path="strategy.use",
        advice=phrase(
            "Use strategy.use = single or model, set train.clip_norm instead of clipping in a hook, or "
            "change gradients in an optimizer of your own."
        ),
        changes={"strategy.use": "single"},
    )
