"""Batches that lay their samples end to end: the largest of a run is planned, and what is not known said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.config import RunConfig, from_text
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates
from rankdeck.planner.sample_reader import BUDGET_S, read_samples
from rankdeck.planner.samples import LONGEST, SUM, UNKNOWN, Growth, Samples, find_growth
from rankdeck.run.plan_lines import PlanLine, plan_verdict_text
from tests.helpers import concatenated, padded
from tests.helpers.planning import peaks_by_step
from tests.helpers.ranks import RankSet
from tests.helpers.waiting import scale_timeout

OWN, PADDED = Path(concatenated.__file__), Path(padded.__file__)
DATA = {
    "graphs": f'model = {{ use = "{OWN}:GraphNet" }}\ndata = {{ use = "{OWN}:graphs" }}',
    "packed": f'model = {{ use = "{OWN}:PackedNet" }}\ndata = {{ use = "{OWN}:packed" }}',
    "padded": f'model = {{ use = "{PADDED}:model" }}\ndata = {{ use = "{PADDED}:of_all_lengths" }}',
    "lists": f'model = {{ use = "{OWN}:ListNet" }}\ndata = {{ use = "{OWN}:lists" }}',
    "pairs": f'model = {{ use = "{OWN}:pair_model" }}\ndata = {{ use = "{OWN}:in_pairs" }}',
}
NUM_STEPS, FIRST = 16, 3
"""Steps of a run, and those of them that come before measuring."""

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")


@pytest.fixture(scope="module")
def two_ranks(rank_set_of: Callable[[int], RankSet]) -> RankSet:
    """Started before any test: what a test starts has to end with it."""
    return rank_set_of(2)


def toml(data: str, strategy: str = "single", num_devices: int = 1) -> str:
    return f"""
{DATA[data]}
strategy = {{ use = "{strategy}" }}
devices.use = "cpu:{num_devices}"
train = {{ global_batch = 16, steps = {NUM_STEPS}, evaluate_every = 0 }}
"""


def config(data: str, strategy: str = "single", num_devices: int = 1) -> RunConfig:
    return from_text(toml(data, strategy, num_devices), folder=Path.cwd())


def plan(base: RunConfig, samples: Samples | None = None) -> PlanLine:
    num_devices = base.selection.count or 1
    target = Target("rehearsal", (TargetDevice(None, None),) * num_devices, like_cuda=False)
    if samples is None:
        samples = read_samples(base, scale_timeout(BUDGET_S))
    (line,) = plan_candidates(base, [Candidate(base.strategy.use)], target, samples=samples)
    assert line.devices, line.reason
    return line


def measure_peak(text: str, ranks: RankSet | None = None) -> int:
    """The most that a device held in a run's steps: of each step the lowest of three runs, which leaves out
    what gloo's own thread now and then holds for longer than it must."""
    num_steps = NUM_STEPS - FIRST
    if ranks is None:
        return max(map(max, peaks_by_step(text, num_steps)[-num_steps:]))
    runs = [
        ranks.call("tests.helpers.planning:peaks_by_step", toml=text, num_steps=num_steps) for _ in range(3)
    ]
    highest = [[max(map(max, step)) for step in zip(*answers, strict=True)] for answers in runs]
    return max(map(min, list(zip(*highest, strict=True))[-num_steps:]))


def peak(line: PlanLine) -> int:
    return max(device.active_bytes for device in line.devices)


@pytest.mark.parametrize(
    ("strategy", "data"),
    [
        *(("single", data) for data in ("graphs", "packed", "padded")),
        *(("ddp", data) for data in ("graphs", "padded")),
        *(("fsdp", data) for data in ("packed", "padded")),
    ],
)
def test_the_largest_batch_of_a_run_is_planned(two_ranks: RankSet, strategy: str, data: str) -> None:
    num_devices = 1 if strategy == "single" else 2
    text, ranks = toml(data, strategy, num_devices), two_ranks if num_devices > 1 else None
    peak_bytes = measure_peak(text, ranks)
    line = plan(config(data, strategy, num_devices))
    assert line.verdict == "fits" and not line.is_bound, line.reason
    assert -1e-4 <= peak(line) / peak_bytes - 1 <= 0.05


def test_planning_by_the_first_dim_is_too_little() -> None:
    assert peak(plan(config("packed"), Samples())) < 0.85 * peak(plan(config("packed")))


def test_a_note_names_the_planned_batch() -> None:
    assert plan(config("graphs")).notes == [
        "Samples are concatenated into batches; the plan is for the run's largest batch, "
        "based on all 256 samples."
    ]


def test_numbers_beside_tensors_match_the_batch() -> None:
    """`num_graphs` is as many as there are samples, `longest` the longest of them."""
    samples = read_samples(config("packed"))
    largest = samples.largest_batch(16, config("packed"))
    assert largest.sizes is not None
    rows, offsets, longest, _ = largest.sizes
    lengths = concatenated.Packed().lengths
    assert (offsets, longest) == (17, max(lengths))
    assert 16 * sum(lengths) / len(lengths) < rows < 16 * max(lengths)


def test_fewer_steps_have_smaller_largest_batches() -> None:
    samples = read_samples(config("graphs"))
    rows = []
    for steps in (1, 10, 1000):
        base = from_text(
            toml("graphs").replace(f"steps = {NUM_STEPS}", f"steps = {steps}"), folder=Path.cwd()
        )
        sizes = samples.largest_batch(16, base).sizes
        assert sizes is not None
        rows.append(sizes[0])
    assert rows[0] < rows[1] < rows[2]


@pytest.mark.parametrize("data", ["pairs", "lists"])
def test_batches_without_a_rule_give_a_lower_bound(data: str) -> None:
    line = plan(config(data))
    assert line.bound == "least" and plan_verdict_text(line) == "may fit"
    assert "batch sizes follow no rule" in line.notes[0]
    assert -0.05 <= peak(line) / measure_peak(toml(data)) - 1 <= 0.05


def test_a_model_that_reads_values_gives_a_lower_bound() -> None:
    text = toml("graphs").replace(':GraphNet"', ':GraphNet", args = { reads_values = true }')
    line = plan(from_text(text, folder=Path.cwd()))
    assert line.bound == "least"
    assert 0 <= peak(line) / measure_peak(text) - 1 <= 0.05


def test_partly_read_samples_give_a_bound() -> None:
    samples = read_samples(config("graphs"), budget_s=0.0)
    assert samples.is_bound and len(samples.sample_indices) == 1
    assert [growth.rule for growth in samples.growths[:2]] == [SUM, LONGEST], "one sample tells how they grow"
    line = plan(config("graphs"), samples)
    assert plan_verdict_text(line) == "may fit" and "inspected only 1 of 256 samples" in line.notes[0]


@pytest.mark.parametrize(
    ("probes", "growth"),
    [
        ([([3, 3], 6), ([3, 5, 4], 12)], Growth(SUM)),
        ([([4, 4], 7), ([4, 6, 5], 13)], Growth(SUM, shared=1)),
        ([([3, 3], 3), ([3, 5, 4], 5)], Growth(LONGEST)),
        ([([2, 2], 2), ([2, 2, 2], 2)], Growth(LONGEST)),
        ([([1, 1], 2), ([1, 1, 1], 3)], Growth(SUM)),
        ([([1, 1], 4), ([1, 1, 1], 9)], Growth(UNKNOWN)),
        ([([3, 5], 8), ([3, 5], 5)], Growth(UNKNOWN)),
        ([([3], 3)], Growth(UNKNOWN)),
        ([], Growth(UNKNOWN)),
    ],
)
def test_a_growth_rule_holds_for_all_batches(probes: list[tuple[list[int], int]], growth: Growth) -> None:
    assert find_growth(probes) == growth
