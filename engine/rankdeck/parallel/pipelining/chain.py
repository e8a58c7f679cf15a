"""A model as a sequence of units that run one after another, and stages of consecutive units.

A stage is called as `stage(received, inputs)`. `received` is the previous stage's output, a tuple of tensors;
it is None for the first stage, which reads the model's own `inputs` instead. A stage returns the next stage's
`received`, and the last stage returns the model's own output. Every stage gets `inputs`, because later stages
of some models read them as well (attention masks, labels). Stages share their weights with the model that was
cut: the same Parameter objects, so the model's own weight names stay valid.

Read cutting.py next, which finds the units of a model.
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
    "Add a method pipeline_units() to the model. It must return the modules in order as (name, module) pairs."
)


class Chain(ABC):
    """A model that can be cut before any of its units except the first."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = model
        self.names = list(names)
        self.owners: dict[int, int] = {}
        """Map from each buffer's id to the index of the first unit that, run on its own, leaves the same
        value in the buffer as a run of the whole model."""
        self.on_placeholder: Callable[[Tensor, Iterable[str]], None] | None = None
        """Callback that is called with each placeholder in a stage and the names of the tensors that it
        replaces."""

    def __len__(self) -> int:
        return len(self.names)

    reads_inputs: ClassVar[bool] = True
    """Whether stages after the first read the model's inputs."""
    accepts_any_batch: bool = True
    """Whether a stage accepts batch sizes and sample sizes other than those of the batch used for cutting."""
    uses_model_modules: ClassVar[bool] = False
    """Whether stages run the model's own modules rather than copies that share the model's weights."""

    @abstractmethod
    def stage(self, start: int, end: int) -> nn.Module:
        """Return the units [start, end) as one module with `forward(received, inputs)`."""

    def units(self) -> Iterator[nn.Module]:
        """Yield stages of one unit each, in order."""
        return (self.stage(index, index + 1) for index in range(len(self)))

    @abstractmethod
    def with_cuts(self, starts: Sequence[int]) -> Chain:
        """Return the chain with cuts allowed only before the units with the indices `starts`, never before
        unit 0."""

    @cached_property
    def weights(self) -> list[list[nn.Parameter]]:
        """Parameters of each unit, frozen or not."""
        return [list(unit.parameters()) for unit in self.units()]


def stage_outputs(output: Any, unit: str) -> tuple[Tensor, ...]:
    """Return a unit's output as the tuple of tensors that crosses a cut.

    Raises: ModelError when the output is neither a tensor nor a tuple of tensors.
    """
    tensors = tuple(output) if isinstance(output, tuple | list) else (output,)
    if tensors and all(isinstance(tensor, Tensor) for tensor in tensors):
        return tensors
    raise ModelError(
        phrase(
            "Unit {unit} returns {kind}, but only tensors can be passed between stages.",
            unit=unit,
            kind=type(output).__name__,
        ),
        path="strategy.cuts",
        advice=phrase("Return a tensor or a tuple of tensors from the unit, or cut the model elsewhere."),
    )


def detached_leaves(output: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return a unit's output as the next unit receives it: autograd leaves without history."""
    # Integer tensors cannot require gradients.
    return tuple(tensor.detach().requires_grad_(tensor.is_floating_point()) for tensor in output)


class UnitChain(Chain):
    """A chain whose units are modules of the model, each called on the previous unit's output."""

    reads_inputs = False
    uses_model_modules = True

    def __init__(
        self, model: nn.Module, units: Sequence[tuple[str, nn.Module]], starts: Sequence[int] | None = None
    ) -> None:
        """Make the chain; cuts are possible before the units with the indices `starts`, by default before all
        units but the first."""
        self._ends = [0, *(range(1, len(units)) if starts is None else starts), len(units)]
        super().__init__(model, [units[start][0] for start in self._ends[:-1]])
        self._units = units

    def stage(self, start: int, end: int) -> nn.Module:
        units = self._units[self._ends[start] : self._ends[end]]
        return UnitStage([name for name, _ in units], [unit for _, unit in units], is_last=end == len(self))

    def with_cuts(self, starts: Sequence[int]) -> Chain:
        return UnitChain(self.model, self._units, [self._ends[start] for start in starts])


class UnitStage(nn.Module):
    """A stage of consecutive units, which are the model's own modules, registered by index."""

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
