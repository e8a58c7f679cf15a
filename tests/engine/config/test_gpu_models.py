"""GPUs by name: as people write them, as nvidia-smi writes them, by size alone."""

from __future__ import annotations

import pytest

from rankdeck.base.errors import DeviceError
from rankdeck.config.gpu_models import GPU_MODELS, find_gpu, parse_planned_gpus


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla T4", "T4"),
        ("rtx-4090", "RTX-4090"),
    ],
)
def test_a_gpu_is_found_by_its_driver_name(driver_name: str, name: str) -> None:
    gpu = find_gpu(driver_name)
    assert gpu is not None and gpu.name == name


def test_every_row_is_found_by_its_own_name() -> None:
    for model in GPU_MODELS:
        assert find_gpu(model.name) == model


def test_the_reported_size_overrides_the_table() -> None:
    gpu = find_gpu("NVIDIA A100-SXM4", 81_000 * 2**20)
    assert gpu is not None and gpu.name == "A100-80GB" and gpu.total_bytes == 81_000 * 2**20
    assert find_gpu("Radeon Pro") is None


def test_planned_gpus_are_named_or_have_a_size() -> None:
    named = parse_planned_gpus("8 x A100-80GB")
    assert named is not None and len(named) == 8 and named[0].name == "A100-80GB"
    sized = parse_planned_gpus("4 x 24GiB")
    assert sized is not None and sized[0].total_bytes == 24 * 2**30 and sized[0].rates is None
    assert parse_planned_gpus("gpu:0,1") is None


def test_an_unknown_gpu_is_refused_with_a_likely_one() -> None:
    with pytest.raises(DeviceError) as caught:
        parse_planned_gpus("2 x RTX-490")
    assert "RTX-4090" in (caught.value.advice or "")
    with pytest.raises(DeviceError, match="Cannot plan for 0 GPUs"):
        parse_planned_gpus("0 x T4")


@pytest.mark.parametrize(
    ("name", "measured_mib"),
    [
        ("V100-16GB", 1343),
        ("V100-32GB", 1343),
        ("RTX-2080-Ti", 877),
        ("RTX-3090", 256),
        ("RTX-6000-Ada", 426),
    ],
)
def test_planned_context_bytes_cover_measured_ones(name: str, measured_mib: int) -> None:
    [model] = parse_planned_gpus(f"1 x {name}") or []
    assert measured_mib <= model.context_bytes / 2**20 <= measured_mib + 256


@pytest.mark.parametrize(
    ("name", "box_gib", "reported_gib"),
    [
        ("A100-40GB", 40, 39.39),
        ("A100-80GB", 80, 79.15),
        ("H100-80GB", 80, 79.11),
        ("H200", 141, 139.80),
        ("L40S", 48, 44.39),
        ("RTX-4090", 24, 23.52),
        ("T4", 16, 14.56),
    ],
)
def test_total_bytes_exclude_what_the_driver_reserves(name: str, box_gib: float, reported_gib: float) -> None:
    """As torch reports it when memory runs out, to two digits, and not as the box does."""
    [model] = parse_planned_gpus(f"1 x {name}") or []
    assert reported_gib - 0.03 < model.total_bytes / 2**30 <= reported_gib < box_gib
