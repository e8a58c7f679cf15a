"""How an optimizer steps (foreach, fused) is planned as it is measured, and changes no weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck.config import from_text
from rankdeck.planner.candidates import Target, TargetDevice
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from rankdeck.planner.fixes import memory_changes
from tests.helpers.planning import measure_peaks
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference

STEP_OPTIONS = {"one-by-one": "foreach = false", "foreach": "foreach = true", "fused": "fused = true"}


@pytest.fixture(scope="module")
def two_ranks(rank_set_of: Callable[[int], RankSet]) -> RankSet:
    """Started before any test: what a test starts has to end with it."""
    return rank_set_of(2)


def toml(
    way: str, strategy: str = "single", num_devices: int = 1, use: str = "adamw", precision: str = "fp32"
) -> str:
    """Few samples and many layers: the step of the optimizer is where most memory is needed."""
    return f"""
model = {{ use = "mlp", args = {{ hidden = [128, 128, 128, 128, 128, 128, 128, 128] }} }}
data = {{ use = "digits" }}
strategy = {{ use = "{strategy}" }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = 8
global_batch = 8
precision = "{precision}"
evaluate_every = 0
optimizer = {{ use = "{use}", lr = 1e-3, {STEP_OPTIONS[way]} }}
"""


def plan_peaks(text: str, num_devices: int = 1, *, like_cuda: bool = False) -> list[int]:
    request = PassRequest(from_text(text, folder=Path.cwd()), num_devices, like_cuda=like_cuda)
    return [device.peak_bytes for device in fake_pass(request).devices.values()]


@pytest.mark.parametrize("way", STEP_OPTIONS)
@pytest.mark.parametrize(("strategy", "num_devices"), [("single", 1), ("model", 2)])
def test_planned_peaks_equal_measured_peaks(strategy: str, num_devices: int, way: str) -> None:
    """Two devices of one process are in one list, and no operation mixes them."""
    text = toml(way, strategy, num_devices)
    assert plan_peaks(text, num_devices) == measure_peaks(text)


def test_only_foreach_steps_need_copies() -> None:
    peaks = {way: plan_peaks(toml(way))[0] for way in STEP_OPTIONS}
    weights_bytes = 4 * (64 * 128 + 7 * 128 * 128 + 128 * 10)
    assert peaks["foreach"] > peaks["one-by-one"] + 0.5 * weights_bytes
    assert peaks["fused"] <= peaks["one-by-one"]


def test_foreach_is_the_default_on_a_gpu() -> None:
    left_to_torch = toml("foreach").replace(", foreach = true", "")
    peaks = {way: plan_peaks(toml(way), like_cuda=True)[0] for way in STEP_OPTIONS}
    assert plan_peaks(left_to_torch, like_cuda=True)[0] == peaks["foreach"] > peaks["one-by-one"]


GPU = Target("1 GPU", (TargetDevice(None, None),), like_cuda=True)
CPU = Target("rehearsal", (TargetDevice(None, None),), like_cuda=False)
ONE_BY_ONE = {"train.optimizer.foreach": False}
FUSED = {"train.optimizer.fused": True}


@pytest.mark.parametrize(
    ("target", "optimizer", "proposed"),
    [
        (GPU, 'use = "adamw"', [ONE_BY_ONE, FUSED]),
        (GPU, 'use = "torch.optim:Adagrad"', [ONE_BY_ONE, FUSED]),
        (GPU, 'use = "torch.optim:RMSprop"', [ONE_BY_ONE]),
        (GPU, 'use = "adamw", foreach = false', []),
        (GPU, 'use = "adamw", fused = true', []),
        (GPU, 'use = "adamw", foreach = true', [ONE_BY_ONE]),
        (GPU, 'use = "torch.optim:SparseAdam"', []),
        (CPU, 'use = "adamw"', []),
        (CPU, 'use = "adamw", foreach = true', [ONE_BY_ONE]),
    ],
)
def test_steps_without_copies_are_proposed(
    target: Target, optimizer: str, proposed: list[dict[str, bool]]
) -> None:
    text = toml("fused").replace('use = "adamw", lr = 1e-3, fused = true', optimizer)
    config = from_text(text, folder=Path.cwd())
    changes = [change for change in memory_changes(config, target) if "optimizer" in next(iter(change))]
    assert changes == proposed


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline"])
def test_a_fused_step_gives_the_weights_of_one_device(
    two_ranks: RankSet, tmp_path: Path, strategy: str
) -> None:
    weights = two_ranks.train(toml("fused", strategy, 2, precision="fp64"))
    for way, low, high in (("one-by-one", 0.0, 1e-10), ("none", 1e-4, 1.0)):
        text = toml("one-by-one", precision="fp64")
        text = text.replace("lr = 1e-3", "lr = 1e-6") if way == "none" else text
        train_once({"toml": text, "out": str(tmp_path / way)}, rank=0, world_size=1)
        assert low <= largest_difference(weights, load_file(tmp_path / way)) <= high
