"""The scale of a loss goes into backward as a gradient: the same bits as those of the product."""

from __future__ import annotations

import pytest
import torch

from rankdeck.parallel.backward import backward


def gradient(dtype: torch.dtype, scale: float | torch.Tensor | None) -> torch.Tensor:
    torch.manual_seed(0)
    weight = torch.randn(64, 10, dtype=dtype, requires_grad=True)
    total = torch.nn.functional.cross_entropy(
        torch.randn(32, 64, dtype=dtype) @ weight, torch.arange(32) % 10, reduction="sum"
    )
    if scale is None:
        (total * (1 / 96)).backward()
    else:
        backward(total, scale)
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_scale_as_a_gradient_gives_the_bits_of_the_product(dtype: torch.dtype) -> None:
    assert torch.equal(gradient(dtype, 1 / 96), gradient(dtype, None))
    assert torch.equal(gradient(dtype, torch.tensor(1 / 96, dtype=dtype)), gradient(dtype, None))
    assert not torch.equal(gradient(dtype, 1 / 97), gradient(dtype, None))
