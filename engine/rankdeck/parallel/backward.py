"""Going back from a loss, as all strategies do."""

from __future__ import annotations

import torch
from torch import Tensor

from rankdeck.base.errors import ModelError
from rankdeck.base.phrases import phrase

_FREED = "out of bounds for storage of size 0"


def backward(total: Tensor, scale: float | Tensor) -> None:
    """The backward of `total * scale`, with the scale as the total's gradient: that spares the product.

    Raises: ModelError where it needs weights that FSDP has let go of.
    """
    try:
        total.backward(scale.to(total) if isinstance(scale, Tensor) else torch.full_like(total, scale))
    except RuntimeError as error:
        if _FREED not in str(error):
            raise
        raise ModelError(
            phrase(
                "The backward needs weights that FSDP has let go of: the model's forward goes back itself "
                "(autograd.grad with create_graph=True), as a gradient penalty does."
            ),
            path="strategy.use",
            advice=phrase('Use strategy.use = "ddp".'),
        ) from error
