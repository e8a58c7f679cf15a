"""A model as a row of units that run one after another, and a stage: some consecutive units of it.

A stage is called as `stage(received, inputs)`. `received` is what the stage before handed on, a tuple of
tensors; None for the first stage, which reads the model's own `inputs` instead. What it returns is the next
stage's `received`, and from the last stage the model's own output. `inputs` reaches every stage, because some
models need more of it further on (attention masks, labels). Stages share their weights with the model that
was cut: the same Parameter objects, so that the model's own names stay the names of weights.

Read find.py next: where the units of a model come from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.nested import call

Received = tuple[Tensor, ...] | None


class Chain(ABC):
    """A model that can be cut before any of its units but the first."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self.model = model
        self.names = list(names)

    def __len__(self) -> int:
        return len(self.names)

    reads_inputs: ClassVar[bool] = True
    """Whether stages after the first look at the model's inputs."""
    takes_any_batch: bool = True
    """Whether a stage runs for other batch sizes than that of the sample."""

    @abstractmethod
    def stage(self, start: int, end: int) -> nn.Module:
        """The units [start, end) as one module with `forward(received, inputs)`."""

    def units(self) -> Iterator[nn.Module]:
        """Stages of one unit, one after another."""
        return (self.stage(index, index + 1) for index in range(len(self)))

    def holds_weights(self) -> list[bool]:
        """Per unit: whether it has a parameter that can be trained."""
        return [any(parameter.requires_grad for parameter in unit.parameters()) for unit in self.units()]


def handed_on(output: Any, unit: str) -> tuple[Tensor, ...]:
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


class UnitChain(Chain):
    """Units that are modules of the model, each fed what the one before returned."""

    reads_inputs = False

    def __init__(self, model: nn.Module, units: Sequence[tuple[str, nn.Module]]) -> None:
        super().__init__(model, [name for name, _ in units])
        self._units = [unit for _, unit in units]

    def stage(self, start: int, end: int) -> nn.Module:
        return UnitStage(self.names[start:end], self._units[start:end], is_last=end == len(self))


class UnitStage(nn.Module):
    """Consecutive units. They keep their own modules, and stand here under their index."""

    def __init__(self, names: Sequence[str], units: Sequence[nn.Module], *, is_last: bool) -> None:
        super().__init__()
        self.names = list(names)
        self.units = nn.ModuleList(units)
        self.is_last = is_last

    def forward(self, received: Received, inputs: Any) -> Any:
        passing: Any = inputs if received is None else received
        for index, unit in enumerate(self.units):
            # The first unit takes the model's inputs as the model does: a dict as keyword arguments.
            is_model_input = received is None and index == 0
            takes_apart = is_model_input or not isinstance(passing, dict)
            passing = call(unit, passing) if takes_apart else unit(passing)
        return passing if self.is_last else handed_on(passing, self.names[-1])
