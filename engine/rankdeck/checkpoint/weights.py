"""Write and read the weights of any strategy as one safetensors file, under the model's original names.

Tied weights appear under every name: safetensors refuses shared storages, so each name gets its own bytes.
Extra state of modules (`get_extra_state`) is stored under its name if it is a tensor, and otherwise as JSON
in the file's metadata, under "extra_state". Complex numbers are stored as pairs of real numbers, (..., 2),
and the metadata's "complex" lists their names, because not every version of the format has complex dtypes.
The metadata's "format" is "pt", without which transformers before version 5 loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.base.files import replace_file
from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import phrase
from rankdeck.checkpoint.json_values import from_json_value, real_view
from rankdeck.checkpoint.training_state import merge_values, module_extra_state, one_element_tensors
from rankdeck.checkpoint_files import CheckpointError
from rankdeck.torch_compat.modules import split_state_dict

_COMPLEX_KEY = "complex"
"""Key in the file's metadata that lists the names of complex tensors."""


def gather_extra_state(module: nn.Module, stages: Sequence[nn.Module] = ()) -> dict[str, object]:
    """Return name -> extra state as JSON, each value from a rank that runs the module. All ranks must call
    this.

    Raises: CheckpointError for extra state that no file can store.
    """
    rank_states = [module_extra_state(module, stages)]
    # The same on all ranks: each knows the extra state of all modules, also of those that others run.
    if any(rank_states[0]) and dist.is_initialized():
        local_part, rank_states = rank_states[0], [({}, {})] * dist.get_world_size()
        dist.all_gather_object(rank_states, local_part)
    return _strip_prefixes(rank_states)


def _strip_prefixes(rank_states: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, object]:
    return {name.partition("/")[2]: value for name, value in merge_values(rank_states).items()}


def encode_weights(
    weights: Mapping[str, Tensor], metadata: Mapping[str, str], extra_state: Mapping[str, Any] | None = None
) -> bytes:
    """Return the content of a weights file; `extra_state` contains JSON values."""
    addresses: set[int] = set()
    host_tensors: dict[str, Tensor] = {}
    pairs: list[str] = []
    extra = {name: from_json_value(value) for name, value in (extra_state or {}).items()}
    tensors = {name: value for name, value in extra.items() if isinstance(value, Tensor)}
    for name, tensor in [*weights.items(), *tensors.items()]:
        host = real_view(tensor.detach().cpu().contiguous())
        pairs += [name] if tensor.is_complex() else []
        shared = host.untyped_storage().data_ptr() in addresses
        host_tensors[name] = (
            host.clone() if shared or host.untyped_storage().nbytes() != host.nbytes else host
        )
        addresses.add(host_tensors[name].untyped_storage().data_ptr())
    plain = {name: value for name, value in (extra_state or {}).items() if name not in tensors}
    extra_metadata = {"extra_state": msgspec.json.encode(plain).decode()} if plain else {}
    extra_metadata |= {_COMPLEX_KEY: msgspec.json.encode(pairs).decode()} if pairs else {}
    data: bytes = safetensors.torch.save(
        host_tensors, metadata={**metadata, **extra_metadata, "format": "pt"}
    )
    return data


def read_weights_file(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file that `save_weights` wrote."""
    with safetensors.safe_open(path, framework="pt") as file:
        pairs = parse_json((file.metadata() or {}).get(_COMPLEX_KEY, "[]"))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
    return {
        name: torch.view_as_complex(tensor) if name in pairs else tensor for name, tensor in tensors.items()
    }


def check_weights_file(module: nn.Module) -> None:
    """Check that a file can store this rank's weights, by encoding one number per tensor.

    Raises: CheckpointError if it cannot.
    """
    try:
        extra = _strip_prefixes([module_extra_state(module, ())])
        encode_weights(one_element_tensors(split_state_dict(module)[0]), {}, extra)
    except Exception as error:
        why = error.message if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
        raise CheckpointError(
            phrase("The model's weights cannot be saved after training: {why}.", why=why),
            code="weights-not-saved",
            advice=phrase(
                "Store only numbers, strings, tensors, and lists and dictionaries of them in "
                "the model's state_dict."
            ),
        ) from (None if isinstance(error, CheckpointError) else error)


def save_weights(
    path: Path,
    weights: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    extra_state: Mapping[str, Any] | None = None,
) -> int:
    """Write the file atomically (temporary name, fsync, rename) and return its size in bytes.

    Raises:
        OSError: the disk is full or the folder cannot be written to; no partial file remains.
    """
    data = encode_weights(weights, metadata, extra_state)
    replace_file(path, data, sync=True)
    return len(data)
