"""Batches padded to their longest sample: the largest that can come is planned, or a bound is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rankdeck.config import RunConfig, from_text
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates, read_samples_in_child
from rankdeck.planner.sample_reader import read_samples
from rankdeck.planner.samples import Samples, list_leaves
from rankdeck.run.plan_lines import PlanLine
from tests.helpers import padded

FILE = Path(padded.__file__)
ONE_DEVICE = Target("rehearsal", (TargetDevice(None, None),), like_cuda=False)


def config(factory: str = "mostly_short", more: str = "", args: str = "") -> RunConfig:
    text = f"""
model = {{ use = "{FILE}:model" }}
data = {{ use = "{FILE}:{factory}", args = {{ {args} }}{more} }}
train = {{ global_batch = 4 }}
"""
    return from_text(text, folder=Path.cwd())


def plan(base: RunConfig, samples: Samples | None = None) -> PlanLine:
    (line,) = plan_candidates(base, [Candidate("single")], ONE_DEVICE, samples=samples)
    return line


def test_the_largest_possible_batch_is_planned() -> None:
    """One sample in 96 is long; every batch that it is in holds as much as if all of it were."""
    line, short = plan(config()), plan(config(), Samples())
    assert line.devices[0].active_bytes == padded.most_bytes(config(args="short = 64"))
    activations = [row.devices[0].by_kind["activations"] for row in (line, short)]
    assert activations[0] > 3.9 * activations[1], "the first sample is short"
    assert not line.is_bound and line.notes == [
        "Samples differ in shape; the plan is for a batch of the largest samples: 64. "
        "The planner inspected all 192 samples."
    ]


def test_equal_samples_need_no_note() -> None:
    line = plan(config(args="short = 64"))
    assert line.notes == [] and not line.is_bound


@pytest.mark.parametrize("factory", ["stacked", "mostly_short"])
def test_partly_read_samples_give_a_bound(factory: str) -> None:
    """Samples that are stacked have one shape, or a run would fail; one that is read alone is enough."""
    samples = read_samples(config(factory), budget_s=0.0)
    line = plan(config(factory), samples)
    assert line.verdict == "fits", "the verdict stays"
    if factory == "stacked":
        assert not line.is_bound and line.notes == []
    else:
        assert line.is_bound and "1 of 192 samples" in line.notes[0] and "data.longest" in line.notes[0]


def test_sharded_stages_reject_varying_sizes() -> None:
    four = Target("rehearsal", (TargetDevice(None, None),) * 4, like_cuda=False)
    rows = [Candidate("hybrid", {axis: 2, "stage": 2, "microbatches": 2}) for axis in ("shard", "data")]
    sharded, replicated = plan_candidates(config(), rows, four)
    assert replicated.verdict == "fits"
    assert sharded.verdict == "cannot" and "Samples differ in size" in (sharded.reason or "")


@pytest.mark.parametrize("budget_s", [0.0, 60.0])
def test_the_longest_sample_can_be_configured(budget_s: float) -> None:
    base = config(more=", longest = 80")
    samples = read_samples(base, budget_s)
    assert samples.largest_batch(4, base).sizes == [4, 80, 4, 80] and not samples.is_bound
    assert not plan(base, samples).is_bound


def test_only_varying_dims_use_the_longest() -> None:
    base = config("pictures", ", longest = 90")
    assert read_samples(base).largest_batch(4, base).sizes == [4, 3, 90, 4]


def test_a_failing_dataset_is_reported_in_every_line() -> None:
    assert read_samples_in_child(config("broken")) == Samples()
    line = plan(config("broken"))
    assert line.verdict == "cannot" and "no such luck" in (line.reason or "")


def test_the_leaves_of_a_batch_that_checks_its_fields_are_read() -> None:
    @dataclasses.dataclass
    class Checked:
        tokens: torch.Tensor

        def __post_init__(self) -> None:
            assert isinstance(self.tokens, torch.Tensor)

    tokens = torch.arange(3)
    leaf, length = list_leaves((Checked(tokens), {"length": 3}))
    assert leaf is tokens and length == 3
