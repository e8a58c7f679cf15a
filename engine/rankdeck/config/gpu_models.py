"""A table of GPUs that the planner knows by name: memory, speed, and the memory that the driver and libraries
use.

    total_bytes      memory that CUDA reports as its total: less than the nominal size, and less than
                     nvidia-smi's figure, which includes a few hundred MiB that the driver reserves
    rates            peak floating point operations per second, in fp32 without tensor cores, and with them in
                     TF32 and in fp16 or bf16 (dense); memory bandwidth in bytes per second. torch computes
                     fp32 convolutions in TF32, and also matrix products if allowed (train.allow_tf32)
    link             bytes per second to another GPU of the same machine, one way: NVLink or PCIe
    context_bytes    CUDA context of a process: driver, kernels, libraries
    workspace_bytes  workspace of a cuBLAS handle; a training process has two (forward, backward)

Nothing here imports torch. The sizes are from torch's out-of-memory message ("GPU 0 has a total capacity of
..."); each is the smallest total reported by driver versions 525 and later, without MIG and with default ECC.
An A100-40GB has 39.38 GiB (39.59 with older drivers), an H100 79.11
(github.com/vllm-project/vllm/issues/27508), an L40S 44.39, an RTX 4090 23.51. The speeds are from NVIDIA's
data sheets, and the workspaces from torch's CublasHandlePool.cpp (2 x 4096 + 8 x 16 KiB, 32 MiB from Hopper
on). The sizes of contexts, which depend on the driver and on the loaded kernels, are high estimates: `make
test-all` measures contexts on a machine with GPUs, and the values in _OLDER_CONTEXTS_MIB are from published
measurements. The sizes of NCCL's buffers, which grow with channels and peers
(github.com/NVIDIA/nccl/issues/864 and 986), are estimates too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rankdeck.base.errors import DeviceError, did_you_mean
from rankdeck.base.phrases import phrase
from rankdeck.base.units import parse_bytes

_MIB = 2**20
_TERA = 10**12
_GIGA = 10**9
_PRE_HOPPER_WORKSPACE_BYTES = (2 * 4096 + 8 * 16) * 1024
_HOPPER_WORKSPACE_BYTES = 32 * _MIB
# Contexts of older GPUs, as if all kernels were loaded at once: with CUDA before 11.7, or
# CUDA_MODULE_LOADING=EAGER. They were measured 0.4 to 0.8 GiB above the default of 512 MiB, and "fits" has to
# be right. Published values, from nvidia-smi after the first tensor and without it: V100 1,343 MiB (Hugging
# Face, "Model training anatomy"), RTX 2080 Ti 877 MiB (github.com/pytorch/pytorch/issues/49877), whose
# architecture a T4 shares. Since 1.13 torch loads kernels one by one (github.com/pytorch/pytorch/pull/86509),
# and newer GPUs start with less: RTX 3090 256 MiB under 2.7 (github.com/invoke-ai/InvokeAI/issues/9413), RTX
# 6000 Ada 426 MiB under 2.10 (github.com/unslothai/unsloth-zoo/pull/1053). With such a torch, plans for older
# GPUs are too high.
_OLDER_CONTEXTS_MIB = {"V100-16GB": 1344, "V100-32GB": 1344, "T4": 896, "RTX-2080-Ti": 896}
MAX_PLANNED = 1024


@dataclass(frozen=True)
class Rates:
    """Peak rates of a device: floating point operations/s in fp32, TF32 and 16-bit formats, and memory
    bytes/s."""

    flops_per_s: float
    tf32_flops_per_s: float
    half_flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class GpuModel:
    """A row of the table; see the top of this file. `rates` and `link_bytes_per_s` are None if unknown."""

    name: str
    total_bytes: int
    rates: Rates | None = None
    link_bytes_per_s: float | None = None
    context_bytes: int = 512 * _MIB
    workspace_bytes: int = _PRE_HOPPER_WORKSPACE_BYTES
    nccl_bytes: int = 256 * _MIB

    @property
    def process_workspace_bytes(self) -> int:
        """Size in bytes of a training process's cuBLAS workspaces, which torch's allocator provides."""
        return 2 * self.workspace_bytes


def _gpu(
    name: str,
    gib: float,
    fp32: float,
    half: float,
    gigabytes_per_s: int,
    link: int,
    *,
    hopper: bool = False,
    has_tf32: bool = True,
) -> GpuModel:
    """Build a row from GiB, TFLOP/s and GB/s. From Ampere on, TF32 runs at half the 16-bit rate."""
    # On some GeForce GPUs half of the 16-bit rate is slightly below the fp32 rate.
    tf32 = max(fp32, half / 2) if has_tf32 else fp32
    # PCIe 5.0 x16 reaches 64 GB/s.
    by_nvlink = link > 64
    return GpuModel(
        name,
        int(gib * 1024) * _MIB,
        Rates(fp32 * _TERA, tf32 * _TERA, half * _TERA, gigabytes_per_s * _GIGA),
        link * _GIGA,
        context_bytes=_OLDER_CONTEXTS_MIB.get(name, 640 if hopper else 512) * _MIB,
        workspace_bytes=_HOPPER_WORKSPACE_BYTES if hopper else _PRE_HOPPER_WORKSPACE_BYTES,
        nccl_bytes=(1024 if hopper else 512 if by_nvlink else 256) * _MIB,
    )


GPU_MODELS: tuple[GpuModel, ...] = (
    _gpu("V100-16GB", 15.75, 15.7, 125, 900, 150, has_tf32=False),
    _gpu("V100-32GB", 31.73, 15.7, 125, 900, 150, has_tf32=False),
    _gpu("T4", 14.56, 8.1, 65, 320, 16, has_tf32=False),
    _gpu("A10", 21.96, 31.2, 125, 600, 32),
    _gpu("A30", 23.50, 10.3, 165, 933, 100),
    _gpu("A40", 44.34, 37.4, 149.7, 696, 56),
    _gpu("A100-40GB", 39.38, 19.5, 312, 1555, 300),
    _gpu("A100-80GB", 79.14, 19.5, 312, 2039, 300),
    _gpu("L4", 21.95, 30.3, 121, 300, 32),
    _gpu("L40S", 44.39, 91.6, 362, 864, 32),
    _gpu("H100-80GB", 79.10, 67, 989, 3350, 450, hopper=True),
    _gpu("H200", 139.80, 67, 989, 4800, 450, hopper=True),
    _gpu("B200", 178.35, 75, 2250, 8000, 900, hopper=True),
    _gpu("RTX-2080-Ti", 10.56, 13.4, 53.8, 616, 16, has_tf32=False),
    _gpu("RTX-3060", 11.62, 12.7, 51, 360, 16),
    _gpu("RTX-3080", 9.62, 29.8, 59.5, 760, 16),
    _gpu("RTX-3090", 23.55, 35.6, 71, 936, 56),
    _gpu("RTX-4080", 15.56, 48.7, 97.5, 717, 32),
    _gpu("RTX-4090", 23.51, 82.6, 165, 1008, 32),
    _gpu("RTX-5090", 31.33, 104.8, 209.5, 1792, 64),
    _gpu("RTX-A6000", 47.40, 38.7, 155, 768, 56),
    _gpu("RTX-6000-Ada", 47.37, 91.1, 364, 960, 32),
)


def find_gpu(name: str, total_bytes: int | None = None) -> GpuModel | None:
    """Return the row of a GPU, by its name in the table or in nvidia-smi ("NVIDIA A100-SXM4-80GB"); None if
    unknown.

    For a model that is sold in several sizes, `total_bytes` selects the size. If it is None, the size in the
    name decides; if the name has no size, the largest one is returned.
    """
    tokens = _name_tokens(name)
    fitting = [model for model in GPU_MODELS if _chip_tokens(model.name) <= tokens]
    if not fitting:
        return None
    longest = max(len(_chip_tokens(model.name)) for model in fitting)
    fitting = [model for model in fitting if len(_chip_tokens(model.name)) == longest]
    if total_bytes is not None:
        nearest = min(fitting, key=lambda model: abs(model.total_bytes - total_bytes))
        # The size that a real GPU reports is more exact than the table's.
        return replace(nearest, total_bytes=total_bytes)
    # Relies on the table's order: the sizes of a chip ascend, so the last row is the largest.
    named = [model for model in fitting if _name_tokens(model.name) <= tokens]
    return named[-1] if named else fitting[-1]


def gpu_model(name: str, total_bytes: int | None) -> GpuModel:
    """Return a GPU's row; for an unknown GPU, a row that only has its name and size."""
    return find_gpu(name, total_bytes) or GpuModel(name, total_bytes or 0)


def _name_tokens(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+[0-9]*[a-z]*|[0-9]+[a-z]*", name.lower()))


def _chip_tokens(name: str) -> set[str]:
    """Return the parts of a GPU's name that identify the chip, without its memory size."""
    return {word for word in _name_tokens(name) if not word.endswith("gb")}


def parse_planned_gpus(text: str) -> list[GpuModel] | None:
    """Return an entry for each GPU in text such as "8 x A100-80GB" or "4 x 24GiB"; None if the text has
    another form.

    Raises:
        DeviceError: the text has this form, but the GPU is unknown or the count is out of range.
    """
    match = re.fullmatch(r"\s*([0-9]+)\s*[x*]\s*(.+?)\s*", text)
    if match is None:
        return None
    count, name = int(match[1]), match[2]
    if not 1 <= count <= MAX_PLANNED:
        raise DeviceError(
            phrase("Cannot plan for {count} GPUs.", count=count),
            advice=phrase("Use 1 to {most}.", most=MAX_PLANNED),
        )
    model = find_gpu(name) or _gpu_of_size(name)
    if model is None:
        model_names = [model_names.name for model_names in GPU_MODELS]
        raise DeviceError(
            phrase('"{name}" is not a known GPU.', name=name),
            code="unknown-gpu",
            advice=did_you_mean(name, model_names)
            or phrase(
                'Specify a size ("{count} x 24GiB"), or one of {known}.',
                count=count,
                known=", ".join(model_names),
            ),
        )
    return [model] * count


def _gpu_of_size(text: str) -> GpuModel | None:
    try:
        # A bare number would mean bytes, so "4 x 24" is refused.
        return GpuModel(text, parse_bytes(text)) if re.search("[a-zA-Z]", text) else None
    except ValueError:
        return None
