"""Weights of any strategy as one safetensors file under the model's original names.

Tied weights appear under every name: safetensors refuses shared storages, so each name gets bytes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from rankdeck.base.files import write_whole


def weights_file(weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """What is in the file."""
    seen: set[int] = set()
    own: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        host = tensor.detach().cpu().contiguous()
        shared = host.untyped_storage().data_ptr() in seen
        own[name] = host.clone() if shared or host.untyped_storage().nbytes() != host.nbytes else host
        seen.add(own[name].untyped_storage().data_ptr())
    data: bytes = safetensors.torch.save(own, metadata=dict(metadata))
    return data


def save_weights(path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Write the file in one piece (temporary name, fsync, rename) and return its bytes.

    Raises:
        OSError: the disk is full or the folder cannot be written; no half file stays.
    """
    data = weights_file(weights, metadata)
    write_whole(path, data, sync=True, make_folder=False)
    return len(data)
