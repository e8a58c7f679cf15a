"""A multi-layer perceptron: flattens its input and applies linear layers with GELU between them.

(B, ...) -> flatten (B, inputs) -> blocks (B, hidden[i]) -> head (B, classes). Read base.py first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from rankdeck.models.base import HasUnits, require_dropout, require_positive


class MlpBlock(nn.Module):
    """Linear, GELU, dropout: (B, inputs) -> (B, outputs)."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        # torch has no gain for GELU; ReLU's is close.
        nn.init.kaiming_normal_(self.linear.weight, nonlinearity="relu")
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.activation(self.linear(hidden)))
        return out


class Mlp(HasUnits):
    """Multi-layer perceptron: logits (B, classes) for inputs (B, ...) with `inputs` numbers per sample."""

    unit_names = ("flatten", "blocks", "head")

    def __init__(
        self, inputs: int, classes: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden]
        self.flatten = nn.Flatten(1)
        self.blocks = nn.ModuleList(
            MlpBlock(before, after, dropout) for before, after in itertools.pairwise(widths)
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden: Tensor = self.flatten(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def build(*, inputs: int, classes: int, hidden: Sequence[int] = (256, 256), dropout: float = 0.0) -> Mlp:
    """Build the catalogue's `mlp`. `inputs` and `classes` are derived from the data.

    Raises:
        ModelError: a width is below 1 or dropout is outside 0..1.
    """
    require_positive(
        inputs=inputs, classes=classes, **{f"hidden[{i}]": width for i, width in enumerate(hidden)}
    )
    require_dropout(dropout)
    return Mlp(inputs, classes, hidden, dropout)
