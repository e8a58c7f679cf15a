"""The random states of a process as tensors: Python's, NumPy's, torch's, and every CUDA device's.

Tensors, so that they are stored and read back without unpickling anything.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from rankdeck.base.parsing import decoded


def random_states() -> dict[str, Tensor]:
    """Python's, NumPy's, torch's and every CUDA device's random state as tensors."""
    states = {"torch": torch.get_rng_state(), "python": _as_tensor(random.getstate())}
    kind, keys, *rest = np.random.get_state(legacy=True)
    states["numpy"] = _as_tensor([kind, [int(key) for key in keys], *rest])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            states[f"cuda.{index}"] = torch.cuda.get_rng_state(index)
    return states


def put_random_states(states: Mapping[str, Tensor]) -> None:
    """Go on from what `random_states` gave, on a machine with the same CUDA devices.

    Raises: KeyError where a state is missing.
    """
    torch.set_rng_state(states["torch"])
    version, internal, gauss = _from_tensor(states["python"])
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = _from_tensor(states["numpy"])
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    for name, state in states.items():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(state, int(name[5:]))


def _as_tensor(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(msgspec.json.encode(value)), dtype=torch.uint8)


def _from_tensor(tensor: Tensor) -> Any:
    return decoded(msgspec.json.decode, bytes(tensor.tolist()))
