"""A sample's randomness follows from (seed, epoch, sample) alone; what draws outside of samples is told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdeck.base.errors import Problem
from rankdeck.data.base import SampleKey
from rankdeck.data.loader import build_loader
from rankdeck.data.samplers import TrainBatchSampler
from tests.helpers import resume_ranks
from tests.helpers.own_data import Noisy, OwnGenerator
from tests.helpers.ranks import RankSet

USER_DATA = Path(resume_ranks.__file__).with_name("own_data.py")
SAVED, STEPS = 3, 6


def read_samples(
    dataset: Any, *, ranks: int = 1, workers: int = 0, start: int = 0, seed: int = 7
) -> dict[SampleKey, Any]:
    """What each sample was, in four steps over two epochs."""
    samples = {}
    for rank in range(ranks):
        batches = TrainBatchSampler(
            64, 32, shard_index=rank, shard_count=ranks, seed=seed, steps=4, start_step=start
        )
        torch.manual_seed(rank)  # a rank's own states are no sample's
        loader = build_loader(dataset, batches, workers=workers)
        for draws, (inputs, _) in zip(batches, loader, strict=True):
            samples |= dict(zip(draws, inputs.flatten(1).tolist(), strict=True))
        loader.close()
    return samples


def test_samples_do_not_depend_on_ranks_workers_and_start() -> None:
    expected = read_samples(Noisy())
    assert len(expected) == 128
    assert read_samples(Noisy(), ranks=2, workers=2) == expected
    late = read_samples(Noisy(), start=3, workers=1)
    assert len(late) == 32
    assert late.items() <= expected.items()
    assert read_samples(Noisy(), ranks=4, start=3) == late


def test_random_numbers_differ_by_sample_epoch_and_seed() -> None:
    samples = read_samples(Noisy())
    assert len(set(map(tuple, samples.values()))) == 128
    assert all(
        other != expected
        for other, expected in zip(read_samples(Noisy(), seed=8).values(), samples.values(), strict=True)
    )

    class Unseeded(Noisy):
        is_random = False

    assert read_samples(Unseeded(), ranks=2) != read_samples(Unseeded())


def test_reading_leaves_global_random_states_unchanged() -> None:
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    list(build_loader(Noisy(), TrainBatchSampler(64, 32, steps=2), report=print))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1].tolist(), random.getstate()) == states[1:]


class RandomBatches(Noisy):
    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.pictures[indices] + torch.rand(len(indices), 1, 1, 1), self.classes[indices]


class Stream(Noisy):
    """A shell around what gives one sample after the other, whatever the index is."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.position += 1
        return self.pictures[self.position % 64], self.position


class FixedBatches(Noisy):
    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self.pictures[indices], self.classes[indices]


@pytest.mark.parametrize(
    ("dataset", "workers", "message"),
    [
        (OwnGenerator(), 0, "its own random generator"),
        (OwnGenerator(), 2, "its own random generator"),
        (Stream(), 0, "ignores the index"),
        (Stream(), 2, "all ranks train on the same samples"),
        (RandomBatches(), 0, "read_batch of the training data draws"),
        (FixedBatches(), 0, None),
        (Noisy(), 1, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unseeded_random_numbers_are_reported_once(dataset: Any, workers: int, message: str | None) -> None:
    problems: list[Problem] = []
    loader = build_loader(
        dataset, TrainBatchSampler(64, 16, steps=4), workers=workers, report=problems.append
    )
    assert [inputs.shape for inputs, _ in loader] == [(16, 1, 8, 8)] * 4
    loader.close()
    assert len(problems) == (message is not None)
    assert all(
        message in problem.message and problem.severity == "warning" for problem in problems if message
    )


def toml(
    strategy: str, num_devices: int, workers: int, checkpoint_every: int = 0, data: str = "noisy"
) -> str:
    return f"""
model = {{ use = "mlp", args = {{ hidden = [16], classes = 10 }} }}
data = {{ use = "{USER_DATA}:{data}", workers = {workers} }}
strategy = {{ use = "{strategy}" }}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = {STEPS}
global_batch = 16
evaluate_every = 0
checkpoint_every = {checkpoint_every}
optimizer = {{ use = "sgd", lr = 0.05 }}
"""


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_augmented_training_resumes_on_any_layout(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    """Saved with two workers on one device; gone on with two again, and on two ranks with one worker each."""
    saved, same, other = (str(tmp_path / name) for name in ("saved", "same", "other"))
    resume_ranks.run(toml("single", 1, 2, SAVED), saved)
    expected = resume_ranks.losses(Path(saved), 1)
    (tmp_path / "saved" / "checkpoints" / str(STEPS)).rename(tmp_path / "newest")
    resume_ranks.run(toml("single", 1, 2), same, source=saved)
    assert resume_ranks.losses(Path(same), 1).items() <= expected.items()
    ranks[1].call("tests.helpers.resume_ranks:run", toml=toml("ddp", 2, 1), folder=other, source=saved)
    losses = resume_ranks.losses(Path(other), 2)
    assert list(losses) == list(range(SAVED + 1, STEPS + 1))
    assert all(abs(losses[step] - expected[step]) < 1e-6 for step in losses)


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_a_run_reports_unseeded_random_numbers_once(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    config = toml("ddp", 2, 1, data="own_generator")
    ranks[1].call("tests.helpers.resume_ranks:run", toml=config, folder=str(tmp_path))
    (problem,) = resume_ranks.problems(tmp_path)
    assert (problem.code, problem.severity, problem.path) == ("data-random", "warning", "data.use")
