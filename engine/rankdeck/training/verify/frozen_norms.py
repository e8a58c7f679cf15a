"""Batch norms that normalise by their running statistics, so that a batch may be cut anywhere.

They differ from one device by nature wherever a batch is cut; frozen on both sides, all else can be compared.
Read scope.py next.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from rankdeck.torch_compat.modules import BatchNorm


def freeze_norms(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.__class__ = _frozen(type(module))
            module.eval()


class _Frozen(BatchNorm):
    """Stays in eval mode; one that keeps no statistics takes those of a norm that has seen nothing yet."""

    def train(self, mode: bool = True) -> Any:
        return super().train(False)

    def forward(self, values: Tensor) -> Tensor:
        if self.running_mean is not None:
            return super().forward(values)
        zeros = values.new_zeros(self.num_features)
        return F.batch_norm(values, zeros, zeros + 1, self.weight, self.bias, False, 0.0, self.eps)


def _frozen(norm: type[BatchNorm]) -> type[BatchNorm]:
    """The class of a batch norm, frozen. Under its own names: torch's tracing asks where a class is from."""
    names = {"__module__": norm.__module__, "__qualname__": norm.__qualname__}
    return type(norm.__name__, (_Frozen, norm), names)
