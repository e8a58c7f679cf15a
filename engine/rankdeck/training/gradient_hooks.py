"""What a run refuses of gradient hooks, before the first step: that they make something else of the gradients
of parts of a batch than of their sum.

One device calls a hook with the gradient of its whole batch. Ranks and microbatches call it with those of
their samples, whose results are then added up: that is the same where a hook scales or masks, and is not
where it clips, normalises or draws. Slices of a weight under tensor are checked where they are cut
(parallel/tensor/hooks.py). Read assembly.py before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.parallel.tensor.hooks import is_close, run_hooks
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.fake_tensors import active_mode
from rankdeck.torch_compat.marks import marks_by_name

_SCALES = (1e-6, 1.0, 1e6)
"""Of gradients: a hook that clips may do nothing to small ones."""


def refuse_gradient_hooks(
    model: nn.Module, build_again: Callable[[], nn.Module], strategy: Strategy, config: RunConfig
) -> None:
    """Try the hooks of the weights out, on a model of their own: hooks may count their calls.

    Raises: ModelError.
    """
    mesh = strategy.mesh()
    is_cut = mesh.size("data") * mesh.size("shard") * mesh.size("stage") > 1
    has_hooks = any(marks.has_hooks for marks in marks_by_name(model).values())
    if not is_cut or not has_hooks or active_mode() is not None:
        return
    # Between microbatches, and parts of a batch in 16 bits, a hook meets what it has changed before.
    again = mesh.size("stage") > 1 or (mesh.size("shard") > 1 and config.train.accumulate > 1)
    with torch.random.fork_rng(devices=[]):
        model = build_again()
        marks = marks_by_name(model)
        for name, weight in model.named_parameters():
            of_weight = marks.get(name)
            if of_weight is None or not of_weight.has_hooks:
                continue

            def run(gradient: Tensor, weight: nn.Parameter = weight, name: str = name) -> Tensor | None:
                return run_hooks(marks[name], weight.detach(), gradient)

            if not _adds_up(run, weight, again=again and bool(of_weight.after_gradient)):
                raise _refused(name, config)


def _adds_up(run: Callable[[Tensor], Tensor | None], like: Tensor, *, again: bool) -> bool:
    """Whether the parts of a gradient become together what the whole becomes."""
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(like.shape, generator=generator).to(like.device, like.dtype) for _ in "ab")
    for scale in _SCALES:
        parts = [run(part * scale) for part in (first, second)]
        whole = run((first + second) * scale)
        if whole is None or parts[0] is None or parts[1] is None:
            return False
        if not is_close(parts[0] + parts[1], whole):
            return False
        if again and ((twice := run(parts[0] + second * scale)) is None or not is_close(twice, whole)):
            return False
    return True


def _refused(name: str, config: RunConfig) -> ModelError:
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
        cure={"strategy.use": "single"},
    )
