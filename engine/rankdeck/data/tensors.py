"""Samples that lie in two tensors, read a batch at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TensorSamples:
    """`num_samples` samples over the rows of `inputs` (N, ...) and `targets` (N, ...); sample i is row i
    modulo N.
    """

    is_random = False

    def __init__(self, inputs: Tensor, targets: Tensor, num_samples: int | None = None) -> None:
        assert len(inputs) == len(targets) > 0
        self.inputs = inputs
        self.targets = targets
        self.num_samples = len(inputs) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -self.num_samples <= index < self.num_samples:
            raise IndexError(index)
        row = index % self.num_samples % len(self.inputs)
        return self.inputs[row], self.targets[row]

    def read_batch(self, indices: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (B, ...) and targets (B, ...) for B samples."""
        rows = torch.as_tensor(indices)
        if self.num_samples > len(self.inputs):
            rows = rows % len(self.inputs)
        return self.inputs.index_select(0, rows), self.targets.index_select(0, rows)
