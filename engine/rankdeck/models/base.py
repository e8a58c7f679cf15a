"""Defines what every built-in model offers besides forward(): its pipeline units and its repeated blocks.

    pipeline_units()      [(name, module)]: running the modules in list order is equivalent to forward().
                          The name is the module's path in the model, from which a stage derives its weights'
                          original names.
    repeated_blocks()     the blocks that activation checkpointing wraps

Read mlp.py, gpt.py or resnet.py for the models, checkpointing.py for activation checkpointing.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase


class HasUnits(nn.Module):
    """A model with pipeline units: the modules in `unit_names`, with each ModuleList or Sequential replaced
    by its children, which are the model's repeated blocks."""

    unit_names: ClassVar[tuple[str, ...]]

    def pipeline_units(self) -> list[tuple[str, nn.Module]]:
        units: list[tuple[str, nn.Module]] = []
        for name in self.unit_names:
            module = self.get_submodule(name)
            opened = isinstance(module, nn.ModuleList | nn.Sequential)
            units += [(f"{name}.{n}", m) for n, m in module.named_children()] if opened else [(name, module)]
        return units

    def repeated_blocks(self) -> list[nn.Module]:
        return [unit for name, unit in self.pipeline_units() if "." in name]


def require_positive(**counts: int) -> None:
    """Check that every count is an integer of at least 1.

    Raises:
        ModelError: a count is not an integer or is below 1.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ModelError(
                phrase(
                    "model.args.{name} = {given} is not an integer of at least 1.",
                    name=name,
                    given=repr(count),
                ),
                path=f"model.args.{name}",
                advice=phrase("Set {name} to an integer such as 1, 2 or 128.", name=name),
            )


def require_dropout(dropout: float) -> None:
    """Check that 0 <= dropout < 1.

    Raises:
        ModelError: `dropout` is outside this range.
    """
    if not 0 <= dropout < 1:
        raise ModelError(
            phrase("model.args.dropout = {given} is not a probability below 1.", given=repr(dropout)),
            path="model.args.dropout",
            advice=phrase("Use 0 for no dropout, or a probability such as 0.1."),
        )


# The repeated blocks of a model: activation checkpointing wraps them, and fsdp shards them one by one.  A
# model can name them itself (`repeated_blocks()`); otherwise they are the children of its largest list.


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks in model order; an empty list if no ModuleList or Sequential has weights."""
    method = getattr(model, "repeated_blocks", None)
    if callable(method):
        return list(method())
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)
    ]
    if not lists:
        return []
    # If two nested lists have the same weights, the inner one is the list of blocks; modules() yields it
    # later.
    largest = max(reversed(lists), key=lambda module: sum(weight.numel() for weight in module.parameters()))
    return [child for child in largest.children() if any(True for _ in child.parameters())]
