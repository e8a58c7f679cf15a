"""What every ready model offers beside forward: its units in order, and its repeated blocks.

    pipeline_units()      [(name, module)]: running the modules one by one is the forward. A name is the
                          module's path in the model: a stage of some units knows its weights' original names.
    repeated_blocks()     the blocks that activation checkpointing wraps

Read mlp.py, gpt.py or resnet.py for the models, checkpointing.py for the wrapping.
"""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase


class HasUnits(nn.Module):
    """A model that says its units: the modules that it names, with lists opened. What lies in a list is a
    repeated block."""

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
    """Raises ModelError for the first count that is not a whole number of at least 1."""
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ModelError(
                phrase(
                    "model.args.{name} = {given} is not a whole number of at least 1.",
                    name=name,
                    given=repr(count),
                ),
                path=f"model.args.{name}",
                advice=phrase("Give {name} a whole number such as 1, 2 or 128.", name=name),
            )


def require_dropout(dropout: float) -> None:
    """Raises ModelError unless 0 <= dropout < 1."""
    if not 0 <= dropout < 1:
        raise ModelError(
            phrase("model.args.dropout = {given} is not a probability below 1.", given=repr(dropout)),
            path="model.args.dropout",
            advice=phrase("Use 0 for none, or a share such as 0.1."),
        )


# Which modules of a model repeat: what activation checkpointing wraps and fsdp shards one by one.
#
# A model says so itself (`repeated_blocks()`, see models/base.py); of any other, the children of its
# largest list are taken.


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks in the order of the model; empty where it has no list with weights."""
    own = getattr(model, "repeated_blocks", None)
    if callable(own):
        return list(own())
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)
    ]
    if not lists:
        return []
    # Of two lists with the same weights the inner one is the list of blocks; it comes later in modules().
    largest = max(reversed(lists), key=lambda module: sum(weight.numel() for weight in module.parameters()))
    return [child for child in largest.children() if any(True for _ in child.parameters())]
