"""A run that was killed goes on as if nothing had happened: the same losses and weights, to the last bit."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

from rankdeck.run.run_state import read_run_state
from tests.helpers import killed_runs

IMAGES: dict[str, tuple[dict[str, Any], int]] = {
    "single": ({"use": "single"}, 1),
    "dp": ({"use": "dp"}, 2),
    "ddp": ({"use": "ddp"}, 2),
    "fsdp": ({"use": "fsdp"}, 2),
    "model": ({"use": "model"}, 2),
    "pipeline": ({"use": "pipeline"}, 2),
}
TOKENS: dict[str, tuple[dict[str, Any], int]] = {
    "tensor": ({"use": "tensor"}, 2),
    "pipeline-async": ({"use": "pipeline-async"}, 2),
    "ddp-powersgd": ({"use": "ddp", "compress": "powersgd", "powersgd_rank": 2}, 2),
}
KILLS = [
    ("ddp", 2, "supervisor", True),
    pytest.param("pipeline", 0, "rank", True, marks=pytest.mark.slow),
]
MORE_KILLS = [
    (name, workers, whom, in_save)
    for name in (*IMAGES, *TOKENS)
    for workers, whom, in_save in ((0, "rank", False), (2, "supervisor", True), (2, "rank", True))
    if not (name in TOKENS and workers == 2 and whom == "rank")
]


@functools.cache
def _make_images(base: Path) -> Path:
    return killed_runs.write_pictures(base / "pictures")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


def config_tables(name: str, base: Path, workers: int = 0, **train: Any) -> dict[str, Any]:
    strategy, num_devices = (IMAGES | TOKENS)[name]
    images = _make_images(base) if name in IMAGES else None
    return killed_runs.make_tables(strategy, num_devices, images, workers=workers, **train)


@functools.cache
def run_without_kill(name: str, base: Path) -> killed_runs.FinishedRun:
    """Read in its own process: workers change nothing either."""
    return killed_runs.wait_for_result(
        killed_runs.start_from_tables(config_tables(name, base), base / f"undisturbed-{name}")
    )


def check_kill(name: str, workers: int, whom: str, in_save: bool, base: Path, runs: Path, seed: int) -> None:
    choose = random.Random(seed)
    run = killed_runs.start_from_tables(config_tables(name, base, workers), runs)
    resumed_run = killed_runs.kill_and_resume(run, whom, choose, 12, 50, in_save=in_save)()
    assert not resumed_run.differences(run_without_kill(name, base))
    assert read_run_state(run).num_attempts == 2


@pytest.mark.usefixtures("short_tmpdir")
@pytest.mark.parametrize(("name", "workers", "whom", "in_save"), KILLS)
def test_a_killed_run_resumes_bit_exactly(
    name: str, workers: int, whom: str, in_save: bool, base: Path, tmp_path: Path
) -> None:
    check_kill(name, workers, whom, in_save, base, tmp_path / "runs", seed=0)


@pytest.mark.usefixtures("short_tmpdir")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "name", "workers", "whom", "in_save"),
    [(seed, *case) for seed, case in enumerate(MORE_KILLS, start=1)],
)
def test_a_run_killed_at_a_random_step_resumes_bit_exactly(
    seed: int, name: str, workers: int, whom: str, in_save: bool, base: Path, tmp_path: Path
) -> None:
    check_kill(name, workers, whom, in_save, base, tmp_path / "runs", seed)
