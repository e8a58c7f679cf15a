"""Devices that sleep show the shape of what real ones do: bubbles, overlap, who waits for whom.

What is asserted are shares of a step at a pace of 50 ms a slot, with room for a busy machine. Source of the
bars: (p-1)/(m+p-1) for gpipe and 1f1b, measured within 0.04 of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdeck.base.errors import ConfigError
from rankdeck.events import Pipeline, Spans, decode_lines
from rankdeck.profiling.simulated_pace import SimulatedPace
from rankdeck.run.anatomy import Anatomies, StepAnatomy, bubble_of
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet
from tests.helpers.waiting import with_load

OWN_MODELS = Path(__file__).parents[2] / "helpers" / "own_models.py"
NUM_RANKS = 4
NEAR = 0.04
STEPS = 16
"""Enough for several samples, which are half a second apart."""


@pytest.fixture(scope="module")
def ranks(rank_set_of: Callable[[int], RankSet]) -> RankSet:
    return rank_set_of(NUM_RANKS)


def configuration(strategy: str, num_devices: int, *, pace: str = "", steps: int = 5, batch: int = 32) -> str:
    return f"""
model = {{ use = "{OWN_MODELS}:even" }}
data = {{ use = "digits" }}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
rehearsal = {{ pace = "simulated"{pace} }}
[train]
steps = {steps}
global_batch = {batch}
evaluate_every = 0
optimizer = {{ use = "sgd", lr = 0.01 }}
"""


def told(folder: Path, world_size: int) -> tuple[Anatomies, list[Any]]:
    anatomies = Anatomies(world_size)
    found = [
        event
        for file in sorted(folder.glob("*.jsonl"))
        for event in decode_lines(file.read_bytes())
        if event is not None
    ]
    for event in found:
        if isinstance(event, Spans):
            anatomies.add(event)
    return anatomies, found


def measured(ranks: RankSet, folder: Path, schedule: str, microbatches: int) -> tuple[float, float]:
    """(bubble, theory) of a pipeline of four stages."""
    folder.mkdir()
    strategy = f'{{ use = "pipeline", schedule = "{schedule}", microbatches = {microbatches} }}'
    ranks.train(configuration(strategy, NUM_RANKS), events=str(folder))
    anatomies, found = told(folder, NUM_RANKS)
    assert anatomies.last is not None and anatomies.last.simulated
    bubble = bubble_of([anatomies])
    theory = next(event.theory_bubble for event in found if isinstance(event, Pipeline))
    assert bubble is not None and theory is not None
    return bubble, theory


def nearest(ranks: RankSet, folder: Path, schedule: str, microbatches: int) -> tuple[float, float]:
    """The measurement that is nearest to the theory of three: a busy machine only ever adds to a bubble."""
    found = []
    for attempt in range(3):
        found.append(measured(ranks, folder / str(attempt), schedule, microbatches))
        if abs(found[-1][0] - found[-1][1]) < NEAR / 2:
            break
    return min(found, key=lambda pair: abs(pair[0] - pair[1]))


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("gpipe", marks=pytest.mark.slow),
        "1f1b",
        pytest.param("1f1b-by-hand", marks=pytest.mark.slow),
    ],
)
def test_the_bubble_is_that_of_the_theory(ranks: RankSet, tmp_path: Path, schedule: str) -> None:
    bubble, theory = nearest(ranks, tmp_path, schedule, 4)
    assert theory == pytest.approx(3 / 7)
    assert bubble == pytest.approx(theory, abs=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [8, 16])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_more_microbatches_make_the_bubble_smaller_as_the_theory_says(
    ranks: RankSet, tmp_path: Path, schedule: str, microbatches: int
) -> None:
    bubble, theory = nearest(ranks, tmp_path, schedule, microbatches)
    assert theory == pytest.approx(3 / (microbatches + 3))
    assert bubble == pytest.approx(theory, abs=NEAR)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", ["interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"]
)
def test_schedules_that_interleave_or_split_backward_wait_less(
    ranks: RankSet, tmp_path: Path, schedule: str
) -> None:
    bubble, _ = measured(ranks, tmp_path / "run", schedule, 8)
    assert bubble < 3 / 11


def of_one_process(tmp_path: Path, strategy: str, num_devices: int, **changes: Any) -> list[StepAnatomy]:
    """The sampled steps that the ledger left alone."""
    request: dict[str, object] = {
        "toml": configuration(strategy, num_devices, **changes),
        "out": str(tmp_path / "weights.safetensors"),
        "events": str(tmp_path),
    }
    train_once(request, rank=0, world_size=1)
    anatomies = Anatomies(1)
    shares = [event for event in told(tmp_path, 1)[1] if isinstance(event, Spans)]
    samples = [step for share in shares if (step := anatomies.add(share)) and not step.followed]
    assert samples
    return samples


def shortest(samples: list[StepAnatomy], name: str) -> float:
    """Seconds of a phase of device 0 in the sample that was disturbed least: other work only adds to it."""
    return min(span.duration_s for step in samples for span in step.rows[0].spans if span.name == name)


def test_a_backward_takes_twice_a_forward_and_a_forward_50_ms(tmp_path: Path) -> None:
    samples = of_one_process(tmp_path, '{ use = "single" }', 1, steps=STEPS)
    # A slot is longer where a busy machine took more than 2.5 ms for what it computes in one.
    assert 0.05 <= shortest(samples, "forward") < with_load(0.08)
    assert shortest(samples, "backward") == pytest.approx(2 * shortest(samples, "forward"), rel=0.15)


@pytest.mark.parametrize(("waits_inside", "least_s", "most_s"), [(False, 0.0, 5.0 - 0.1), (True, 4.95, 5.0)])
def test_a_slot_is_slept_to_its_end_of_which_waiting_for_others_is_no_part(
    monkeypatch: pytest.MonkeyPatch, waits_inside: bool, least_s: float, most_s: float
) -> None:
    """What it asks to sleep is looked at, after a tenth of a second in a slot of five."""
    matrix, slept = torch.zeros(64, 64), []
    pace = SimulatedPace(1e-9 * 2 * 64**3 / 5.0, waits_inside=waits_inside)
    for step in range(3):
        pace.begin_step()
        pace.open(0, "forward", None)
        torch.mm(matrix, matrix)
        time.sleep(0.1)
        if step == 2:
            monkeypatch.setattr(time, "sleep", slept.append)
        pace.close()
        pace.end_step()
    assert len(slept) == 1 and least_s < slept[0] < most_s


def test_replicas_of_dp_compute_side_by_side(tmp_path: Path) -> None:
    shares = []
    for step in of_one_process(tmp_path, '{ use = "dp" }', 2, steps=STEPS):
        first, second = (next(s for s in row.spans if s.name == "backward") for row in step.rows)
        together_s = min(first.end_s, second.end_s) - max(first.start_s, second.start_s)
        shares.append(together_s / first.duration_s)
    assert max(shares) > 0.8


def test_layers_of_model_compute_one_device_after_another(tmp_path: Path) -> None:
    step = of_one_process(tmp_path, '{ use = "model" }', 2)[-1]
    work = sorted(
        (span.start_s, span.end_s, row.device)
        for row in step.rows
        for span in row.spans
        if span.name in ("forward", "backward")
    )
    assert [device for *_, device in work] == [0, 1, 1, 0]
    assert all(after[0] >= before[1] - 1e-4 for before, after in pairwise(work))


@pytest.mark.parametrize("steps", [3])
def test_a_pace_that_cannot_be_held_is_refused_with_one_that_can(tmp_path: Path, steps: int) -> None:
    with pytest.raises(ConfigError, match="cannot be held") as caught:
        of_one_process(tmp_path, '{ use = "single" }', 1, pace=", device_gflops = 50", steps=steps)
    assert caught.value.advice is not None and caught.value.advice.startswith("Use at most 0.0")
    assert caught.value.code == "pace-not-held"


def test_a_given_rate_that_can_be_held_decides_how_long_a_slot_is(tmp_path: Path) -> None:
    # 8 layers of 64 x 64 on 32 samples: 2 x 64 x 64 x 32 x 8 operations at 1e-2 x 1e9 a second.
    samples = of_one_process(tmp_path, '{ use = "single" }', 1, pace=", device_gflops = 0.01", steps=STEPS)
    assert shortest(samples, "forward") == pytest.approx(2 * 64 * 64 * 32 * 8 / 1e7, rel=0.1)
