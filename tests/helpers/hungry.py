"""A model that runs out of memory in some forward: for real, or in CUDA's words."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CUDA_WORDS = (
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which "
    "1.58 GiB is free. Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this "
    "process has 966.00 MiB memory in use. Of the allocated memory 734.07 MiB is allocated by PyTorch, and "
    "33.93 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
    "setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ASKED_BYTES = 2**50


class Hungry(nn.Module):
    """(B, 32) -> (B, 32), as long as there is room."""

    def __init__(self, at: int, *, in_cudas_words: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)
        self.at = at
        self.in_cudas_words = in_cudas_words
        self.num_forwards = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.num_forwards += self.training
        if self.num_forwards == self.at and self.in_cudas_words:
            raise torch.OutOfMemoryError(CUDA_WORDS)
        if self.num_forwards == self.at:
            torch.empty(ASKED_BYTES, dtype=torch.uint8)
        out: Tensor = self.inner(inputs)
        return out


def hungry(at: int = 30, *, in_cudas_words: bool = False) -> nn.Module:
    """Digits (B, 1, 8, 8) -> logits (B, 10); it has room until training's forward number `at`."""
    hungry = Hungry(at, in_cudas_words=in_cudas_words)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), hungry, nn.Linear(32, 10))
