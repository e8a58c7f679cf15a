"""A model as a row of units that run one after another, and a stage: some consecutive units of it.

A stage is called as `stage(received, inputs)`. `received` is what the stage before handed on, a tuple of
tensors; None for the first stage, which reads the model's own `inputs` instead. What it returns is the next
stage's `received`, and from the last stage the model's own output. `inputs` reaches every stage, because some
models need more of it further on (attention masks, labels). Stages share their weights with the model that
was cut: the same Parameter objects, so that the model's own names stay the names of weights.

Read cutting.py next: where the units of a model come from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.pytree import call_model

StageInputs = tuple[Tensor, ...] | None

UNITS_ADVICE = phrase(
    "Give the model a method pipeline_units(), which returns its modules in order as (name, module)."
)


class Chain(ABC):
    """A model that can be cut before any of its units but the first."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = model
        self.names = list(names)
        self.owners: dict[int, int] = {}
        """Per buffer, by identity: the first unit whose forward leaves in it what the model's does."""
        self.on_placeholder: Callable[[Tensor, Iterable[str]], None] | None = None
        """Called with each tensor that stands for one that a stage lacks, and with the name of that."""

    def __len__(self) -> int:
        return len(self.names)

    reads_inputs: ClassVar[bool] = True
    """Whether stages after the first look at the model's inputs."""
    accepts_any_batch: bool = True
    """Whether a stage runs for other batch sizes, and other sizes of samples, than those of the sample."""
    uses_model_modules: ClassVar[bool] = False
    """Whether stages run the model's own modules, not copies of them over the same weights."""

    @abstractmethod
    def stage(self, start: int, end: int) -> nn.Module:
        """The units [start, end) as one module with `forward(received, inputs)`."""

    def units(self) -> Iterator[nn.Module]:
        """Stages of one unit, one after another."""
        return (self.stage(index, index + 1) for index in range(len(self)))

    @abstractmethod
    def with_cuts(self, starts: Sequence[int]) -> Chain:
        """The model with fewer possible cuts: before the units `starts`, the first one not among them."""

    @cached_property
    def weights(self) -> list[list[nn.Parameter]]:
        """Per unit: its parameters, frozen or not."""
        return [list(unit.parameters()) for unit in self.units()]


def stage_outputs(output: Any, unit: str) -> tuple[Tensor, ...]:
    """A unit's output as it crosses a cut.

    Raises: ModelError when it is neither a tensor nor a tuple of tensors.
    """
    tensors = tuple(output) if isinstance(output, tuple | list) else (output,)
    if tensors and all(isinstance(tensor, Tensor) for tensor in tensors):
        return tensors
    raise ModelError(
        phrase(
            "Unit {unit} returns {kind}; only tensors can cross from stage to stage.",
            unit=unit,
            kind=type(output).__name__,
        ),
        path="strategy.cuts",
        advice=phrase("Let the unit return a tensor or a tuple of tensors, or cut elsewhere."),
    )


def detached_leaves(output: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What a unit handed on, as the next one gets it: leaves of autograd, without their history."""
    return tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in output)


class UnitChain(Chain):
    """Units that are modules of the model, each fed what the one before returned."""

    reads_inputs = False
    uses_model_modules = True

    def __init__(
        self, model: nn.Module, units: Sequence[tuple[str, nn.Module]], starts: Sequence[int] | None = None
    ) -> None:
        """`starts`: the units before which a cut may be, by default all but the first."""
        self._ends = [0, *(range(1, len(units)) if starts is None else starts), len(units)]
        super().__init__(model, [units[start][0] for start in self._ends[:-1]])
        self._units = units

    def stage(self, start: int, end: int) -> nn.Module:
        units = self._units[self._ends[start] : self._ends[end]]
        return UnitStage([name for name, _ in units], [unit for _, unit in units], is_last=end == len(self))

    def with_cuts(self, starts: Sequence[int]) -> Chain:
        return UnitChain(self.model, self._units, [self._ends[start] for start in starts])


class UnitStage(nn.Module):
    """Consecutive units. They keep their own modules, and stand here under their index."""

    def __init__(self, names: Sequence[str], units: Sequence[nn.Module], *, is_last: bool) -> None:
        super().__init__()
        self.names = list(names)
        self.units = nn.ModuleList(units)
        self.is_last = is_last

    def forward(self, received: StageInputs, inputs: Any) -> Any:
        passing: Any = inputs if received is None else received
        for index, unit in enumerate(self.units):
            # The first unit takes the model's inputs as the model does: a dict as keyword arguments.
            is_model_input = received is None and index == 0
            takes_apart = is_model_input or not isinstance(passing, dict)
            passing = call_model(unit, passing) if takes_apart else unit(passing)
        return passing if self.is_last else stage_outputs(passing, self.names[-1])
