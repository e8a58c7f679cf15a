"""Build a rank's environment as torchrun does, plus the variables of the observer.

A script's `os.environ` equals the one under torchrun except for RANKDECK_* and one entry of PYTHONPATH. Read
script_ranks.py next.

Source: torch.distributed.run, torch.distributed.elastic.agent.server.local_elastic_agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import rankdeck
from rankdeck.events import DeviceInfo
from rankdeck.launch.layout import Layout, single_host_layout

MASTER_ADDR = "127.0.0.1"
INJECT_FOLDER = Path(rankdeck.__file__).parent / "observer" / "inject"
"""Folder that is put on the PYTHONPATH of observed processes; its sitecustomize starts the observer."""
_SIGNALS_ENV = "TORCHELASTIC_SIGNALS_TO_HANDLE"


def torchrun_variables(
    rank: int,
    num_ranks: int,
    *,
    port: int,
    caller: Mapping[str, str],
    python: str = "",
    max_restarts: int = 0,
    restarts: int = 0,
    error_file: str = "",
) -> dict[str, str]:
    """Return the variables that torchrun adds to the caller's environment for this rank on a single host."""
    size = str(num_ranks)
    added = {
        **rank_variables(
            single_host_layout(num_ranks, ()), rank, (MASTER_ADDR, port), run_id="none", restarts=restarts
        ),
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": caller.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    # torchrun's own default for several ranks.
    if num_ranks > 1 and "OMP_NUM_THREADS" not in caller:
        added["OMP_NUM_THREADS"] = "1"
    if python and _sets_signals_variable(python):
        added[_SIGNALS_ENV] = caller.get(_SIGNALS_ENV, "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    return added


def rank_variables(
    layout: Layout, rank: int, store: tuple[str, int], *, run_id: str, restarts: int = 0
) -> dict[str, str]:
    """Return a rank's variables for torch's `env://` rendezvous; `store` is the store's (address, port)."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank - layout.local_ranks.start),
        "WORLD_SIZE": str(layout.world_size),
        "LOCAL_WORLD_SIZE": str(len(layout.local_ranks)),
        "MASTER_ADDR": store[0],
        "MASTER_PORT": str(store[1]),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        # With this, torch's rank 0 connects to the run's store like every other rank, instead of opening a
        # store at the same port.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def device_variables(devices: Sequence[DeviceInfo]) -> dict[str, str]:
    """Return the variables that make exactly these devices visible to CUDA, in this order."""
    uuids = [device.uuid for device in devices if device.uuid is not None]
    # An empty list hides all GPUs, as a rehearsal needs.
    return ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if uuids else {}) | {"CUDA_VISIBLE_DEVICES": ",".join(uuids)}


def run_variables(run: Path, attempt: int, heartbeats: str) -> dict[str, str]:
    """Return the variables that mark a process as part of a run."""
    return {"RANKDECK_RUN": str(run), "RANKDECK_ATTEMPT": str(attempt), "RANKDECK_HEARTBEAT": heartbeats}


def observer_variables(
    caller: Mapping[str, str], *, run: Path, attempt: int, heartbeats: str, observe: str, port: int
) -> dict[str, str]:
    """Return the variables that mark a process as part of a run and start the observer in it."""
    added = run_variables(run, attempt, heartbeats)
    if observe != "none":
        added["RANKDECK_OBSERVE"] = observe
        added["RANKDECK_MASTER_PORT"] = str(port)
        added["PYTHONPATH"] = ":".join(filter(None, (str(INJECT_FOLDER), caller.get("PYTHONPATH"))))
    return added


def without_observer(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the observer's variables, for a guard that an observed script starts."""
    variables = {name: value for name, value in environment.items() if name != "RANKDECK_OBSERVE"}
    first, _, rest = variables.get("PYTHONPATH", "").partition(":")
    if first == str(INJECT_FOLDER):
        variables.pop("PYTHONPATH")
        if rest:
            variables["PYTHONPATH"] = rest
    return variables


_OPTION_BY_VARIABLE = {
    "WORLD_SIZE": "--nproc-per-node",
    "LOCAL_WORLD_SIZE": "--nproc-per-node",
    "MASTER_PORT": "--master-port",
    "TORCHELASTIC_MAX_RESTARTS": "--max-restarts",
    "RANKDECK_OBSERVE": "--observe",
}
_CALLER_VARIABLES = {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "PYTHONPATH"}
"""Variables of a rank that keep the value that the caller has set."""
RANK_VARIABLES = {
    name: _OPTION_BY_VARIABLE.get(name)
    for name in (
        *torchrun_variables(0, 1, port=0, caller={}),
        *observer_variables({}, run=Path(), attempt=0, heartbeats="", observe="light", port=0),
    )
    if name not in _CALLER_VARIABLES
}
"""Variable whose value always replaces the caller's -> the option that sets the value, or None."""


def _sets_signals_variable(python: str) -> bool:
    """Check in the source of `python`'s torchrun whether it sets TORCHELASTIC_SIGNALS_TO_HANDLE."""
    for packages in _site_packages(Path(python)):
        try:
            text = (packages / "torch" / "distributed" / "launcher" / "api.py").read_text(errors="replace")
        except OSError:
            continue
        return _SIGNALS_ENV in text
    return False


def _site_packages(python: Path) -> list[Path]:
    """Return an interpreter's package folders; those of its virtual environment come first."""
    prefixes = [python.parent.parent, python.resolve().parent.parent]
    return [folder for prefix in prefixes for folder in sorted(prefix.glob("lib/python3*/*-packages"))]
