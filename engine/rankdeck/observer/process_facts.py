"""Finds this process's rank, devices and script, in torch if possible and otherwise in the environment."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def env_int(name: str, without: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return without


def rank_and_world_size() -> tuple[int, int | None]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return env_int("RANK", 0), None


def devices(optimizer: Any, rank: int) -> tuple[list[int], list[str | None]]:
    """Return the indices and UUIDs of the devices with trained parameters; on CPUs, [rank] and an empty
    list."""
    torch: Any = sys.modules["torch"]
    indices = sorted(
        {
            parameter.device.index or 0
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.device.type == "cuda"
        }
    )
    if not indices:
        return [rank], []
    uuids: list[str | None] = []
    for index in indices:
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        # Not every version of torch includes NVML's prefix.
        text = str(uuid)
        has_prefix = text.startswith(("GPU-", "MIG-"))
        uuids.append(None if uuid is None else text if has_prefix else "GPU-" + text)
    return indices, uuids


def script_path() -> str:
    main = sys.modules.get("__main__")
    return getattr(main, "__file__", None) or (sys.argv[0] if sys.argv else "")
