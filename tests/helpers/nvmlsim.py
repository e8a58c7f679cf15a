"""GPUs where there are none: builds the simulated libnvidia-ml.so.1 (nvmlsim.c) and edits its state live.

    gpus = SimulatedGpus(folder, num_gpus=8)
    rankdeck("devices", "--json", env=gpus.as_named)        # RANKDECK_NVML: shown as simulated
    rankdeck("devices", "--json", env=gpus.as_installed)    # LD_LIBRARY_PATH: nobody can tell
    gpus.device(0).used = 40 * GIB
    gpus.fail(3, "ANY", GPU_IS_LOST); gpus.delay("COMPUTE", 2.0); gpus.xid(3, 79)

By hand, with figures that move: python -m tests.helpers.nvmlsim --gpus 8 -- rankdeck devices --follow
"""

from __future__ import annotations

import argparse
import ctypes
import math
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.c_library import build_library

GIB, MIB = 2**30, 2**20
NOT_SUPPORTED, INSUFFICIENT_POWER, DRIVER_NOT_LOADED = 3, 8, 9
GPU_IS_LOST, VERSION_MISMATCH, UNKNOWN = 15, 18, 999
CRASH, ABORT = -11, -6
UNKNOWN_BYTES = 2**64 - 1
KINDS = (
    *("ANY", "STATIC", "MEMORY", "UTILISATION", "POWER", "ENERGY", "TEMPERATURE", "FAN", "CLOCK", "THROTTLE"),
    *("ECC", "COMPUTE", "GRAPHICS", "PROCESS_UTILISATION", "MIG", "EVENT", "LINK", "PCIE"),
)
_MAX_DEVICES, _MAX_PROCESSES, _MAX_EVENTS, _LAYOUT = 32, 32, 64, 0x52444B32
_XID_EVENT = 0x8
_SOURCE = Path(__file__).with_suffix(".c")


class _Process(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("pid", "graphics")),
        ("used", ctypes.c_uint64),
        *((name, ctypes.c_uint32) for name in ("utilisation", "pad")),
    )


_SIZES = ["total", "used", "reserved", "energy_mj", "throttle", "ecc_errors"]
_NUMBERS = (
    *("utilisation", "memory_utilisation", "power_mw", "power_limit_mw", "celsius", "fan", "sm_mhz"),
    *(
        "memory_mhz",
        "mig",
        "num_processes",
        "pstate",
        "max_sm_mhz",
        "max_memory_mhz",
        "num_links",
        "links_up",
    ),
    *("pcie_tx_kb", "pcie_rx_kb", "rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed"),
    "corrected_ecc_errors",
)


class SimulatedDevice(ctypes.Structure):
    """A GPU, or a MIG instance, as the library tells it; assign to change what it tells."""

    _fields_ = (
        ("parent", ctypes.c_int32),
        ("bus", ctypes.c_uint32),
        ("name", ctypes.c_char * 96),
        ("uuid", ctypes.c_char * 96),
        *((name, ctypes.c_uint64) for name in _SIZES),
        *((name, ctypes.c_uint32) for name in _NUMBERS),
        ("fuzz", ctypes.c_uint64),
        ("error", ctypes.c_int32 * len(KINDS)),
        ("delay_us", ctypes.c_uint32 * len(KINDS)),
        ("calls", ctypes.c_uint64 * len(KINDS)),
        ("processes", _Process * _MAX_PROCESSES),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
    )


class _State(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("layout", "num_gpus", "num_instances", "num_events")),
        ("init_error", ctypes.c_int32),
        ("live_count", ctypes.c_uint32),
        ("fuzz", ctypes.c_uint64),
        ("session", ctypes.c_uint32),
        ("wait_error", ctypes.c_int32),
        ("driver", ctypes.c_char * 80),
        ("events", _Event * _MAX_EVENTS),
        ("devices", SimulatedDevice * _MAX_DEVICES),
    )


def build(folder: Path, *flags: str) -> Path:
    """The library, built in `folder`."""
    name = "libnvidia-ml.so.1"
    return build_library(_SOURCE, folder / name, f"-Wl,-soname,{name}", *flags)


class SimulatedGpus:
    """Idle H100s in a state file of their own; `library` is what `build` made."""

    def __init__(self, folder: Path, num_gpus: int, library: Path) -> None:
        self.library = library
        self.path = folder / "nvmlsim.state"
        folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "wb") as file:
            file.truncate(ctypes.sizeof(_State))
        with open(self.path, "r+b") as file:
            self.state = _State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(_State)))
        layout = ctypes.CDLL(str(library)).nvmlsim_layout
        sizes = [ctypes.sizeof(_State), ctypes.sizeof(SimulatedDevice), len(KINDS)]
        assert [layout(number) for number in range(3)] == sizes, "nvmlsim.c and nvmlsim.py disagree"
        self.state.layout, self.state.num_gpus, self.state.driver = _LAYOUT, num_gpus, b"580.00.00"
        for index in range(num_gpus):
            self._fill(index)

    def _fill(self, index: int) -> None:
        device = self.device(index)
        device.parent, device.bus = -1, 0x10 + index
        device.name = b"NVIDIA H100 80GB HBM3"
        device.uuid = b"GPU-51000000-0000-4000-8000-%012d" % index
        device.total, device.used, device.reserved = 81559 * MIB, 4 * MIB, 608 * MIB
        device.power_mw, device.power_limit_mw, device.celsius = 70_000, 700_000, 30 + index
        device.sm_mhz, device.memory_mhz, device.max_sm_mhz, device.max_memory_mhz = 345, 2619, 1980, 2619
        device.num_links = device.links_up = 18
        self.fail(index, "FAN", NOT_SUPPORTED)

    @property
    def simulated_environment(self) -> dict[str, str]:
        """Environment of a command that is told of the library: what it shows is called simulated."""
        return {"RANKDECK_NVML": str(self.library), "NVMLSIM_STATE": str(self.path)}

    @property
    def driver_environment(self) -> dict[str, str]:
        """Environment of a command that takes the library for the driver's own."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "NVMLSIM_STATE": str(self.path)}

    def device(self, index: int) -> SimulatedDevice:
        simulated: SimulatedDevice = self.state.devices[index]
        return simulated

    def uuid(self, index: int) -> str:
        return str(self.device(index).uuid.decode())

    def fail(self, index: int, kind: str, code: int) -> None:
        """Calls of this kind on the device answer with an NVML return code, or CRASH or ABORT; 0 heals."""
        self.device(index).error[KINDS.index(kind)] = code

    def delay(self, kind: str, seconds: float, *indices: int) -> None:
        for index in indices or range(self.state.num_gpus):
            self.device(index).delay_us[KINDS.index(kind)] = round(seconds * 1e6)

    def put_processes(self, index: int, *pids_and_bytes: tuple[int, int], graphics: bool = False) -> None:
        """These processes, and no others, hold memory of the device."""
        device = self.device(index)
        for slot, (pid, used) in zip(device.processes, pids_and_bytes, strict=False):
            slot.pid, slot.used, slot.graphics = pid, used, int(graphics)
        device.num_processes = len(pids_and_bytes)

    def xid(self, index: int, number: int) -> None:
        event = self.state.events[self.state.num_events % _MAX_EVENTS]
        event.device, event.type, event.data = index, _XID_EVENT, number
        self.state.num_events += 1

    def split_into_mig(self, index: int, *instances: tuple[str, int]) -> None:
        """Turn a GPU into MIG instances of (profile, bytes)."""
        gpu = self.device(index)
        for profile, total in instances:
            instance_index = self.state.num_gpus + self.state.num_instances
            instance = self.device(instance_index)
            instance.parent, instance.name = index, gpu.name + b" MIG " + profile.encode()
            instance.uuid, instance.total = b"MIG-51000000-0000-4000-8000-%012d" % instance_index, total
            self.state.num_instances += 1
        gpu.mig = 1
        self.fail(index, "UTILISATION", NOT_SUPPORTED)

    def calls(self, kind: str) -> int:
        """How often the library was called so, over all devices."""
        return sum(device.calls[KINDS.index(kind)] for device in self.state.devices)

    def simulate_load(self, seconds: float) -> None:
        """Figures of a plausible run at this moment of it: the first device leads."""
        for index in range(self.state.num_gpus):
            device = self.device(index)
            wave = 0.5 + 0.5 * math.sin(seconds / 3 + index)
            device.used = int((56 if index == 0 else 17) * GIB + wave * GIB)
            device.utilisation, device.memory_utilisation = int(60 + 39 * wave), int(40 + 20 * wave)
            device.power_mw, device.celsius = int(400_000 + 250_000 * wave), int(55 + 15 * wave)
            device.sm_mhz, device.energy_mj = 1980, int(seconds * 500_000)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.nvmlsim")
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("command", nargs="+", help="run on simulated GPUs whose figures move")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        gpus = SimulatedGpus(Path(name), options.gpus, build(Path(name) / "library"))
        start_s = time.monotonic()
        with subprocess.Popen(options.command, env={**os.environ, **gpus.simulated_environment}) as running:
            while running.poll() is None:
                gpus.simulate_load(time.monotonic() - start_s)
                time.sleep(0.1)
        return running.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
