"""Process-related parts of torch: CUDA after a fork, and the workers of a DataLoader.

Importing this module does not import torch.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from rankdeck.torch_compat.private_api import PrivateApi

PRIVATE_APIS = (
    PrivateApi("torch.cuda:_is_in_bad_fork", "CUDA may be unusable in CPU runs", parameters=()),
    PrivateApi(
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter._shutdown_workers",
        "DataLoader workers may exit late",
        parameters=("self",),
    ),
)


def is_cuda_fork_broken() -> bool:
    """Check whether CUDA was initialized before this process was forked; if so, CUDA cannot work in this
    process."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


def shut_down_workers(loader: Any) -> None:
    """Stop the worker processes of a DataLoader, if it has any."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        # Dropping the last reference would do, but a generator may still hold one.
        with contextlib.suppress(AttributeError):
            iterator._shutdown_workers()
