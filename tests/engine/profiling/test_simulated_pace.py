"""Devices that sleep show the shape of what real ones do: bubbles, overlap, who waits for whom.

What is asserted are shares of a step at a pace of 50 ms a slot. Source of the bubble: (p-1)/(m+p-1) for gpipe
and 1f1b. The slots of a step, laid out without the time in which results travel, come within 0.02 of it on
any machine. How long results travel is the machine's affair: a step takes 1.05 to 1.14 times as long with it.
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
from rankdeck.run.anatomy import AnatomyCollector, DeviceRow, Span, StepAnatomy, median_bubble
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet
from tests.helpers.waiting import scale_timeout

OWN_MODELS = Path(__file__).parents[2] / "helpers" / "own_models.py"
NUM_RANKS = 4
NEAR = 0.02
TRAVEL_SHARE = 0.15
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


def read_events(folder: Path, world_size: int) -> tuple[AnatomyCollector, list[Any]]:
    anatomies = AnatomyCollector(world_size)
    all_events = [
        event
        for file in sorted(folder.glob("*.jsonl"))
        for event in decode_lines(file.read_bytes())
        if event is not None
    ]
    for event in all_events:
        if isinstance(event, Spans):
            anatomies.add(event)
    return anatomies, all_events


def bubble_of_slots(step: StepAnatomy) -> float:
    """The bubble if results needed no time to travel: each slot, as long as it was measured and in the order
    of its device, starts once its device is free and its neighbour has computed what it needs."""
    waiting = {row.device: [span for span in row.spans if span.microbatch is not None] for row in step.rows}
    work_s = sum(span.duration_s for spans in waiting.values() for span in spans)
    free_s, ends_s = dict.fromkeys(waiting, 0.0), dict[tuple[str, int, int | None], float]()
    while any(waiting.values()):
        num_placed = len(ends_s)
        for device, spans in waiting.items():
            if not spans:
                continue
            name, microbatch = spans[0].name, spans[0].microbatch
            neighbour = device - 1 if name == "forward" else device + 1
            if neighbour in waiting and (name, neighbour, microbatch) not in ends_s:
                continue
            start_s = max(free_s[device], ends_s.get((name, neighbour, microbatch), 0.0))
            free_s[device] = ends_s[name, device, microbatch] = start_s + spans.pop(0).duration_s
        assert len(ends_s) > num_placed, "a slot waits for one that was never measured"
    return 1.0 - work_s / (len(waiting) * max(ends_s.values()))


def two_stages(*, late_s: float = 0.0, slow_s: float = 0.0) -> StepAnatomy:
    """Two microbatches on two devices whose backwards start `late_s` and last `slow_s` longer on device 1."""
    rows = [
        DeviceRow(
            device,
            device,
            [
                Span("forward", float(device), 1.0, device, 0),
                Span("forward", 1.0 + device, 1.0, device, 1),
                Span("backward", 6.0 - 3 * device + late_s, 2.0 + slow_s * device, device, 0),
                Span("backward", 9.0 - 3 * device + late_s, 2.0 + slow_s * device, device, 1),
            ],
        )
        for device in (0, 1)
    ]
    return StepAnatomy(1, 0.0, 12.0, rows)


def test_the_bubble_of_slots_ignores_travel_but_no_slow_stage() -> None:
    assert bubble_of_slots(two_stages()) == bubble_of_slots(two_stages(late_s=5.0)) == pytest.approx(1 / 3)
    assert bubble_of_slots(two_stages(slow_s=1.0)) > 1 / 3 + NEAR


def measure_bubble(
    ranks: RankSet, folder: Path, schedule: str, microbatches: int
) -> tuple[float, float, StepAnatomy]:
    """(bubble, theory, last sampled step) of a pipeline of four stages."""
    folder.mkdir()
    strategy = f'{{ use = "pipeline", schedule = "{schedule}", microbatches = {microbatches} }}'
    ranks.train(configuration(strategy, NUM_RANKS), events=str(folder))
    anatomies, all_events = read_events(folder, NUM_RANKS)
    assert anatomies.last is not None and anatomies.last.simulated
    bubble = median_bubble([anatomies])
    theory = next(event.theory_bubble for event in all_events if isinstance(event, Pipeline))
    assert bubble is not None and theory is not None
    return bubble, theory, anatomies.last


def assert_near_theory(bubble: float, theory: float, step: StepAnatomy) -> None:
    of_slots, whole = bubble_of_slots(step), step.bubble()
    assert of_slots == pytest.approx(theory, abs=NEAR)
    assert bubble > theory - NEAR  # the median of all sampled steps
    assert whole is not None and 1 <= (1 - of_slots) / (1 - whole) < 1 + scale_timeout(TRAVEL_SHARE)


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param("gpipe", marks=pytest.mark.slow),
        "1f1b",
        pytest.param("1f1b-by-hand", marks=pytest.mark.slow),
    ],
)
def test_the_bubble_matches_the_theory(ranks: RankSet, tmp_path: Path, schedule: str) -> None:
    bubble, theory, step = measure_bubble(ranks, tmp_path / "run", schedule, 4)
    assert theory == pytest.approx(3 / 7)
    assert_near_theory(bubble, theory, step)


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [8, 16])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_more_microbatches_shrink_the_bubble_as_in_theory(
    ranks: RankSet, tmp_path: Path, schedule: str, microbatches: int
) -> None:
    bubble, theory, step = measure_bubble(ranks, tmp_path / "run", schedule, microbatches)
    assert theory == pytest.approx(3 / (microbatches + 3))
    assert_near_theory(bubble, theory, step)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule", ["interleaved-1f1b", "looped-bfs", "interleaved-zero-bubble", "zbv", "dualpipev"]
)
def test_interleaved_and_split_schedules_have_a_smaller_bubble(
    ranks: RankSet, tmp_path: Path, schedule: str
) -> None:
    bubble, *_ = measure_bubble(ranks, tmp_path / "run", schedule, 8)
    assert bubble < 3 / 11


def train_in_one_process(
    tmp_path: Path, strategy: str, num_devices: int, **changes: Any
) -> list[StepAnatomy]:
    """The sampled steps that the ledger left alone."""
    request: dict[str, object] = {
        "toml": configuration(strategy, num_devices, **changes),
        "out": str(tmp_path / "weights.safetensors"),
        "events": str(tmp_path),
    }
    train_once(request, rank=0, world_size=1)
    anatomies = AnatomyCollector(1)
    shares = [event for event in read_events(tmp_path, 1)[1] if isinstance(event, Spans)]
    samples = [step for share in shares if (step := anatomies.add(share)) and not step.is_tracked]
    assert samples
    return samples


def shortest_phase_s(samples: list[StepAnatomy], name: str) -> float:
    """Seconds of a phase of device 0 in the sample that was disturbed least: other work only adds to it."""
    return min(span.duration_s for step in samples for span in step.rows[0].spans if span.name == name)


def test_a_forward_takes_50_ms_and_a_backward_twice_as_long(tmp_path: Path) -> None:
    samples = train_in_one_process(tmp_path, '{ use = "single" }', 1, steps=STEPS)
    # A slot is longer where a busy machine took more than 2.5 ms for what it computes in one.
    assert 0.05 <= shortest_phase_s(samples, "forward") < scale_timeout(0.08)
    assert shortest_phase_s(samples, "backward") == pytest.approx(
        2 * shortest_phase_s(samples, "forward"), rel=0.15
    )


@pytest.mark.parametrize(("communicates", "least_s", "most_s"), [(False, 0.0, 5.0 - 0.1), (True, 4.95, 5.0)])
def test_time_spent_waiting_for_other_ranks_does_not_shorten_a_slot(
    monkeypatch: pytest.MonkeyPatch, communicates: bool, least_s: float, most_s: float
) -> None:
    """What it asks to sleep is looked at, after a tenth of a second in a slot of five."""
    matrix, slept = torch.zeros(64, 64), []
    pace = SimulatedPace(1e-9 * 2 * 64**3 / 5.0, communicates_in_forward=communicates)
    for step in range(3):
        pace.start_step()
        pace.open_slot(0, "forward", None)
        torch.mm(matrix, matrix)
        time.sleep(0.1)
        if step == 2:
            monkeypatch.setattr(time, "sleep", slept.append)
        pace.close_slot()
        pace.end_step()
    assert len(slept) == 1 and least_s < slept[0] < most_s


def test_dp_replicas_compute_in_parallel(tmp_path: Path) -> None:
    shares = []
    for step in train_in_one_process(tmp_path, '{ use = "dp" }', 2, steps=STEPS):
        first, second = (next(s for s in row.spans if s.name == "backward") for row in step.rows)
        together_s = min(first.end_s, second.end_s) - max(first.start_s, second.start_s)
        shares.append(together_s / first.duration_s)
    assert max(shares) > 0.8


def test_model_parallel_devices_compute_in_sequence(tmp_path: Path) -> None:
    step = train_in_one_process(tmp_path, '{ use = "model" }', 2)[-1]
    work = sorted(
        (span.start_s, span.end_s, row.device)
        for row in step.rows
        for span in row.spans
        if span.name in ("forward", "backward")
    )
    assert [device for *_, device in work] == [0, 1, 1, 0]
    assert all(after[0] >= before[1] - 1e-4 for before, after in pairwise(work))


@pytest.mark.parametrize("steps", [3])
def test_a_rate_that_is_too_high_is_refused_with_the_highest_one(tmp_path: Path, steps: int) -> None:
    with pytest.raises(ConfigError, match="too fast to simulate") as caught:
        train_in_one_process(tmp_path, '{ use = "single" }', 1, pace=", device_gflops = 50", steps=steps)
    assert caught.value.advice is not None and caught.value.advice.startswith("Use at most 0.0")
    assert caught.value.code == "pace-not-held"


def test_a_given_rate_sets_the_length_of_a_slot(tmp_path: Path) -> None:
    # 8 layers of 64 x 64 on 32 samples: 2 x 64 x 64 x 32 x 8 operations at 1e-2 x 1e9 a second.
    samples = train_in_one_process(
        tmp_path, '{ use = "single" }', 1, pace=", device_gflops = 0.01", steps=STEPS
    )
    assert shortest_phase_s(samples, "forward") == pytest.approx(2 * 64 * 64 * 32 * 8 / 1e7, rel=0.1)
