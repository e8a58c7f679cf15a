"""Batches padded to their longest sample: the largest that can come is planned, or a bound is said."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rankdeck.config import RunConfig, from_text
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.look import look
from rankdeck.planner.pool import look_at_samples, plan_lines_of
from rankdeck.planner.samples import Samples, leaves_of
from rankdeck.run.plan_lines import PlanLine
from tests.helpers import padded

PLACE = Path(padded.__file__)
ONE = Target("rehearsal", (TargetDevice(None, None),), like_cuda=False)


def config(factory: str = "mostly_short", more: str = "", args: str = "") -> RunConfig:
    text = f"""
model = {{ use = "{PLACE}:model" }}
data = {{ use = "{PLACE}:{factory}", args = {{ {args} }}{more} }}
train = {{ global_batch = 4 }}
"""
    return from_text(text, folder=Path.cwd())


def planned(base: RunConfig, samples: Samples | None = None) -> PlanLine:
    (line,) = plan_lines_of(base, [Candidate("single")], ONE, samples=samples)
    return line


def test_the_largest_batch_that_can_come_is_planned() -> None:
    """One sample in 96 is long; every batch that it is in holds as much as if all of it were."""
    line, short = planned(config()), planned(config(), Samples())
    assert line.devices[0].active_bytes == padded.most_bytes(config(args="short = 64"))
    activations = [one.devices[0].by_kind["activations"] for one in (line, short)]
    assert activations[0] > 3.9 * activations[1], "the first sample is short"
    assert not line.is_bound and line.notes == [
        "Samples differ in shape; planned for a batch of the largest by all 192: 64."
    ]


def test_equal_samples_need_no_words() -> None:
    line = planned(config(args="short = 64"))
    assert line.notes == [] and not line.is_bound


@pytest.mark.parametrize("factory", ["stacked", "mostly_short"])
def test_what_cannot_all_be_looked_at_is_a_bound(factory: str) -> None:
    """Samples that are stacked have one shape, or a run would fail; one that is read alone is enough."""
    samples = look(config(factory), budget_s=0.0)
    line = planned(config(factory), samples)
    assert line.verdict == "fits", "the verdict stays"
    if factory == "stacked":
        assert not line.is_bound and line.notes == []
    else:
        assert line.is_bound and "1 of 192 samples" in line.notes[0] and "data.longest" in line.notes[0]


def test_stages_whose_weights_are_sharded_cannot_follow_other_sizes() -> None:
    four = Target("rehearsal", (TargetDevice(None, None),) * 4, like_cuda=False)
    rows = [Candidate("hybrid", {axis: 2, "stage": 2, "microbatches": 2}) for axis in ("shard", "data")]
    sharded, replicated = plan_lines_of(config(), rows, four)
    assert replicated.verdict == "fits"
    assert sharded.verdict == "cannot" and "Samples differ in their sizes" in (sharded.reason or "")


@pytest.mark.parametrize("budget_s", [0.0, 60.0])
def test_the_longest_may_be_named(budget_s: float) -> None:
    base = config(more=", longest = 80")
    samples = look(base, budget_s)
    assert samples.largest_batch(4, base).sizes == [4, 80, 4, 80] and not samples.is_bound
    assert not planned(base, samples).is_bound


def test_only_dims_that_differ_follow_the_longest() -> None:
    base = config("pictures", ", longest = 90")
    assert look(base).largest_batch(4, base).sizes == [4, 3, 90, 4]


def test_a_data_set_that_fails_says_so_in_every_row() -> None:
    assert look_at_samples(config("broken")) == Samples()
    line = planned(config("broken"))
    assert line.verdict == "cannot" and "no such luck" in (line.reason or "")


def test_the_leaves_of_a_batch_that_checks_its_fields_are_read() -> None:
    @dataclasses.dataclass
    class Checked:
        tokens: torch.Tensor

        def __post_init__(self) -> None:
            assert isinstance(self.tokens, torch.Tensor)

    tokens = torch.arange(3)
    found, length = leaves_of((Checked(tokens), {"length": 3}))
    assert found is tokens and length == 3
