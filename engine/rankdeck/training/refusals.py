"""What a run refuses once its model and its optimizer are there, before the first step: gradients that a
strategy cannot move, and optimizers that do something else in parts than on the whole.

    in one piece     an optimizer that cannot take a step at all (it wants a closure, or other gradients)
    in slices        weights cut over ranks, as fsdp and tensor cut them: each rank's slice must become what
                     it becomes in the whole
    some of them     a stage holds some of the weights: they must become what they become among all

It is tried out on small tensors cut like the model's own. torch's optimizers that work element by element are
known to pass. What is known by name is refused sooner, by config/capabilities.py. Read assembly.py before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from rankdeck.base.errors import ConfigError, ModelError
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.diagnose.exceptions import is_out_of_memory, words_of
from rankdeck.strategies.base import Strategy
from rankdeck.torch_compat.fake_tensors import active_mode

_BY_ELEMENT = frozenset(
    ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "ASGD", "Adadelta", "Adagrad")
)
_STEPS = 3
_SIZE = 32
"""Rows of what it is tried out on: torch puts smaller matrices together before it multiplies them."""
_SAME = 1e-4
"""Of what the steps change: rounding is far below, 16-bit arithmetic above."""

_OF_PLACEMENTS = ("placement", "sharding strategy")
"""Words of torch's where an operation takes no slices."""

Build = Callable[[Iterable[nn.Parameter]], Optimizer]


def refuse_sparse(model: nn.Module, strategy: Strategy, config: RunConfig) -> None:
    """Raises: ModelError, ConfigError where gradients of an embedding are sparse and cannot be."""
    name = next((name for name, module in model.named_modules() if _is_sparse(module)), None)
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
            cure={"train.clip_norm": 0.0},
        )
    if not strategy.takes_sparse_gradients:
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
            cure={"strategy.use": "ddp"} if config.strategy.use != "ddp" else {"strategy.sync": "native"},
        )


def refuse_optimizer(build: Build, optimizer: Optimizer, strategy: Strategy, config: RunConfig) -> None:
    """Try the optimizer out on tensors cut like the strategy's. All ranks of a run call this together.

    Raises: ConfigError.
    """
    sparse = {module.weight for module in strategy.module.modules() if _is_sparse(module)}
    is_known = (
        type(optimizer).__module__.startswith("torch.optim.") and type(optimizer).__name__ in _BY_ELEMENT
    )
    if is_known and not sparse:
        return
    kinds = {
        (weight.ndim, weight in sparse, getattr(weight, "placements", None)): weight
        for weight in strategy.module.parameters()
        if weight.requires_grad
    }
    use = config.train.optimizer.use
    with strategy.ledger.paused(), torch.random.fork_rng(devices=[]):
        wholes = [
            _Whole(weight, weight in sparse, is_tall=is_tall)
            for weight in kinds.values()
            for is_tall in (False, True)[: weight.ndim]
        ]
        held = [whole.as_held() for whole in wholes]
        in_slices = any(isinstance(weight, DTensor) for weight in held)
        if active_mode() is not None:
            if in_slices:
                _try_slices_without_values(build, held, wholes, use)
            return
        expected = _stepped(build, [whole.parameter() for whole in wholes], wholes, use)
        if in_slices:
            _compare(_stepped(build, held, wholes, use, in_slices=True), expected, wholes, use)
        if strategy.mesh().size("stage") > 1 and len(wholes) > 1:
            some = wholes[:1]
            alone = _stepped(build, [whole.parameter() for whole in some], some, use)
            _compare(alone, expected, some, use)


def _try_slices_without_values(
    build: Build, held: Sequence[nn.Parameter], wholes: Sequence[_Whole], use: str
) -> None:
    """In a plan nothing can be compared, and an optimizer that reads values may raise for that alone.

    Raises: ConfigError where torch says that it cannot place what comes out.
    """
    try:
        _stepped(build, held, wholes, use, in_slices=True)
    except ConfigError as error:
        if any(word in str(error.__cause__) for word in _OF_PLACEMENTS):
            raise


class _Whole:
    """A small tensor that is cut as one weight is, with a gradient for each step."""

    def __init__(self, weight: nn.Parameter, is_sparse: bool, *, is_tall: bool) -> None:
        self._weight, self._is_sparse = weight, is_sparse
        num_parts = weight.device_mesh.size() if isinstance(weight, DTensor) else 1
        size = num_parts * math.ceil(_SIZE / num_parts)
        sides = (2 * size, size) if is_tall else (size, 2 * size)
        self._shape = [*sides, *[2] * weight.ndim][: weight.ndim]
        self.first = self._drawn(0)

    def _drawn(self, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self._shape, generator=generator, dtype=torch.float64)
        return drawn.to(self._weight.device, self._weight.dtype)

    def parameter(self) -> nn.Parameter:
        made = nn.Parameter(self.first.clone())
        if not isinstance(self._weight, DTensor):
            vars(made).update(vars(self._weight))  # a person's marks, which their optimizer may ask for
        return made

    def as_held(self) -> nn.Parameter:
        return nn.Parameter(self._cut(self.first)) if isinstance(self._weight, DTensor) else self.parameter()

    def _cut(self, tensor: Tensor) -> Tensor:
        """This rank's part of a tensor that all ranks have whole, where the weight is in parts."""
        weight = self._weight
        if not isinstance(weight, DTensor):
            return tensor.clone()
        return distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)

    def gradient(self, like: Tensor, step: int) -> Tensor:
        drawn = self._drawn(step)
        if isinstance(like, DTensor):
            return self._cut(drawn)
        return drawn.to_sparse(1) if self._is_sparse else drawn

    def differs(self, stepped: Tensor, expected: Tensor) -> bool:
        local = self._cut(expected)
        change = float((expected - self.first).abs().max())
        ours, theirs = (t.to_local() if isinstance(t, DTensor) else t for t in (stepped, local))
        rounding = 16 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
        return bool(ours.numel()) and float((ours - theirs).abs().max()) > _SAME * change + rounding


def _stepped(
    build: Build,
    weights: Sequence[nn.Parameter],
    wholes: Sequence[_Whole],
    use: str,
    *,
    in_slices: bool = False,
) -> list[Tensor]:
    """The weights after some steps. Raises: ConfigError where the optimizer cannot take them."""
    try:
        optimizer = build(weights)
        turn: Any = getattr(optimizer, "train", None)
        if callable(turn):
            turn()
        for step in range(1, _STEPS + 1):
            for weight, whole in zip(weights, wholes, strict=True):
                weight.grad = whole.gradient(weight, step)
            optimizer.step()
    except Exception as error:  # whatever a person's optimizer raises
        if is_out_of_memory(error):
            raise
        said = f"{type(error).__name__}: {words_of(error)}".splitlines()[0].rstrip(": ")
        if in_slices:
            raise ConfigError(
                phrase(
                    "train.optimizer {use} cannot step weights that lie in slices on several ranks: {said}.",
                    use=use,
                    said=said,
                ),
                code="optimizer",
                path="train.optimizer.use",
                advice=phrase("Use sgd, adam or adamw, or ddp, which keeps weights whole."),
                cure={"strategy.use": "ddp"},
            ) from error
        raise ConfigError(
            phrase("train.optimizer {use} cannot take a step: {said}.", use=use, said=said),
            code="optimizer",
            path="train.optimizer.use",
            advice=phrase("Use sgd, adam or adamw."),
        ) from error
    return [weight.detach() for weight in weights]


def _compare(
    stepped: Sequence[Tensor], expected: Sequence[Tensor], wholes: Sequence[_Whole], use: str
) -> None:
    """Raises: ConfigError."""
    for ours, theirs, whole in zip(stepped, expected, wholes, strict=False):
        if whole.differs(ours, theirs):
            raise ConfigError(
                phrase(
                    "train.optimizer {use} gives other weights where each rank holds a part of them: tried "
                    "out, its steps differ from those on the whole.",
                    use=use,
                ),
                code="optimizer",
                path="train.optimizer.use",
                advice=phrase("Use ddp, where every rank holds all weights, or sgd, adam or adamw."),
                cure={"strategy.use": "ddp"},
            )


def _is_sparse(module: nn.Module) -> bool:
    """A stage of a pipeline has the modules of others without their weights."""
    if not isinstance(module, nn.Embedding | nn.EmbeddingBag) or not module.sparse:
        return False
    weight: Tensor | None = module.weight
    return weight is not None and weight.requires_grad
