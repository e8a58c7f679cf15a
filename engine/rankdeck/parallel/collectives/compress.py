"""Lossy compression of gradients for communication.

    fp16, bf16   half the bytes: a bucket is rounded, summed in 16 bits, and widened again. bf16 has fp32's
                 range and 8 bits of precision; fp16 has 11 bits of precision but loses values below 6e-8.
    powersgd     a gradient matrix M (rows, columns) is sent as two thin ones, P (rows, k) and Q (columns, k).
                 `PowerSgd` keeps the approximation error and adds it to the next step's gradient, so that the
                 error is delayed and not lost.

Each compression works with every summing algorithm (grad_sync.py), on DTensors' local tensors and on pipeline
stages alike. Source: Vogels et al., "PowerSGD" (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

AllReduceFn = Callable[[Sequence[Tensor]], None]
"""Function that sums each tensor of a list over the group, in place."""

HALF_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def low_rank_shape(shape: torch.Size, rank: int) -> tuple[int, int] | None:
    """Return a gradient's shape as a matrix (rows, columns), or None if PowerSGD would not save enough.

    P and Q together must have fewer than half as many elements as the gradient, as in torch's own hook.
    """
    if len(shape) < 2:
        return None
    rows, columns = shape[0], math.prod(shape[1:])
    return (rows, columns) if 2 * rank * (rows + columns) < rows * columns else None


class PowerSgd:
    """PowerSGD state of one rank: approximation errors and the last Qs, from which the next step starts."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._errors: dict[int, Tensor] = {}
        self._q: dict[int, Tensor] = {}
        self._state_tensors = {"left_out": self._errors, "q": self._q}

    def sync(self, gradients: Sequence[Tensor], sum_up: AllReduceFn) -> None:
        """Replace each gradient in place with an approximation of its sum over all ranks, bitwise identical
        on every rank.

        Every call must pass the same gradients in the same order.
        """
        shapes = [low_rank_shape(gradient.shape, self._rank) for gradient in gradients]
        thin = [index for index, shape in enumerate(shapes) if shape is not None]
        uncompressed = [gradient for gradient, shape in zip(gradients, shapes, strict=True) if shape is None]
        matrices = [self._add_error(index, gradients[index]) for index in thin]
        columns = [self._initial_q(index, matrix) for index, matrix in zip(thin, matrices, strict=True)]
        left = [matrix @ q for matrix, q in zip(matrices, columns, strict=True)]
        sum_up([*uncompressed, *left])
        # With orthonormal columns in P, M^T P is the best Q for it.
        left = [torch.linalg.qr(p).Q for p in left]
        right = [matrix.T @ p for matrix, p in zip(matrices, left, strict=True)]
        for index, matrix, p, q in zip(thin, matrices, left, right, strict=True):
            self._errors[index] = matrix.addmm_(p, q.T, alpha=-1)
        right = [q.contiguous() for q in right]
        sum_up(right)
        for index, p, q in zip(thin, left, right, strict=True):
            gradients[index].copy_((p @ q.T).view(gradients[index].shape))
            self._q[index] = q

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that the next step starts from."""
        return {
            f"{what}.{index}": tensor
            for what, tensors in self._state_tensors.items()
            for index, tensor in tensors.items()
        }

    def load_state(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Load the tensors that the method `state` returned."""
        for name, tensor in state.items():
            what, _, index = name.partition(".")
            # A copy, because `sync` changes errors in place.
            self._state_tensors[what][int(index)] = tensor.to(device, copy=True)

    def _add_error(self, index: int, gradient: Tensor) -> Tensor:
        """Return a copy of the gradient as a matrix, with the error of earlier steps added."""
        matrix = gradient.reshape(gradient.shape[0], -1)
        error = self._errors.get(index)
        return matrix.clone() if error is None else error.add_(matrix)

    def _initial_q(self, index: int, matrix: Tensor) -> Tensor:
        """Return the Q (columns, k) to start from: the last step's, or a random Q that is equal on every
        rank."""
        if index in self._q:
            return self._q[index]
        # Seeded by the gradient's index, so that all ranks draw the same Q without a message.
        generator = torch.Generator().manual_seed(index)
        drawn = torch.randn(matrix.shape[1], self._rank, generator=generator, dtype=torch.float64)
        return drawn.to(device=matrix.device, dtype=matrix.dtype)
