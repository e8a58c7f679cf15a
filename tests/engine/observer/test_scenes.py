"""Trainings in many styles, alone and observed: the same output and weights, and steps as they print them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from tests.helpers.script_python import parts_off
from tests.helpers.waiting import with_load
from tests.helpers.watched import Watched, watch

SCENES = Path(__file__).parent / "scripts/scenes.py"
NAMES = re.findall(r"@scene\ndef (\w+)", SCENES.read_text())
WITHOUT_STEPS = {"never_steps"}
ON_ITS_OWN = {"zero_redundancy"}
"""It is rank 0 of a process group, and goes on in the file that another scene has left."""


@pytest.fixture(scope="module")
def alone() -> Watched:
    return watch([SCENES], None)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return watch([SCENES], tmp_path_factory.mktemp("observed"))


def _told(done: Watched) -> dict[str, Any]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: scene for line in lines for name, scene in line.items()}


def _rank(name: str) -> int:
    return NAMES.index(name)


def test_output_status_and_weights_are_those_of_the_script_alone(alone: Watched, observed: Watched) -> None:
    assert (alone.status, observed.status) == (0, 0), alone.stderr + observed.stderr
    expected, seen = _told(alone), _told(observed)
    assert list(expected) == NAMES
    for told in (expected, seen):  # How many steps it took in its time is no matter of the script.
        del told["leaves_at_once"]
    assert seen == expected


def test_stderr_is_that_of_the_script_alone(alone: Watched, observed: Watched) -> None:
    def without_times(text: str) -> list[str]:
        return [re.sub(r"^W\d+ [\d:.]+ \d+", "", line) for line in text.splitlines()]

    assert without_times(observed.stderr) == without_times(alone.stderr)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in WITHOUT_STEPS | ON_ITS_OWN | {"leaves_at_once"}]
)
def test_steps_and_losses_are_what_the_script_prints(observed: Watched, name: str) -> None:
    told, rank = _told(observed)[name], _rank(name)
    num = len(told["losses"])
    losses = observed.steps(rank, "loss_sum")[:num]
    assert len(losses) == num
    assert losses == [
        None if loss is None or (i >= 20 and losses[i] is None) else pytest.approx(loss, rel=1e-6)
        for i, loss in enumerate(told["losses"])
    ]
    for column in ("samples", "backwards", "lr"):
        if told.get(column):
            assert observed.steps(rank, column)[:num] == pytest.approx(told[column]), column
    if told.get("norms"):
        assert observed.steps(rank, "grad_norm")[:num] == pytest.approx(told["norms"], rel=1e-5)
    if "samples" not in told and name != "bare":
        assert set(observed.steps(rank, "samples")) == {None}
    if name != "bare":
        assert len(observed.steps(rank, "loss_sum")) == num
    seen = observed.observed(rank)
    assert set(seen.parts) == {*parts_off(), *told.get("parts", ())}
    assert seen.skipped == told.get("skipped", 0)
    assert seen.wrapper == told.get("wrapper")


def test_a_rank_goes_on_in_its_own_file(observed: Watched) -> None:
    """The process group says rank 0, whose process before has ended: steps are counted on."""
    before = len(_told(observed)["bare"]["losses"])
    losses = _told(observed)["zero_redundancy"]["losses"]
    assert observed.steps(0, "loss_sum")[before:] == losses
    started = [event for event in observed.events(0) if isinstance(event, events.RankStarted)]
    assert len({event.pid for event in started}) == 2
    assert (
        observed.observed(0).optimizer
        == "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer"
    )
    assert not (observed.run / f"events/rank-{_rank('zero_redundancy')}.0.jsonl").exists()  # type: ignore[operator]


def test_who_never_steps_an_optimizer_is_no_rank(observed: Watched) -> None:
    """Nor are loader workers, the process that forked all scenes, and helpers."""
    expected = {_rank(name) for name in NAMES} - {_rank("never_steps"), _rank("zero_redundancy")}
    assert set(observed.ranks()) == expected


def test_a_process_that_leaves_at_once_loses_half_a_second_at_most(observed: Watched) -> None:
    told, rank = _told(observed)["leaves_at_once"], _rank("leaves_at_once")
    ended = observed.steps(rank, "ended")
    assert 0 < len(ended) <= len(told["losses"])
    # It trained for 1.5 s, its first step and words included.
    assert ended[-1] - ended[0] > 1.5 - with_load(0.75)  # type: ignore[operator]


def test_other_optimizers_are_counted_apart(observed: Watched) -> None:
    assert observed.observed(_rank("two_optimizers")).other_optimizers == {"Adam": 10}
    assert observed.observed(_rank("a_second_phase")).other_optimizers == {"SGD": 514}


def test_the_first_loss_that_is_no_number_is_told(observed: Watched) -> None:
    assert observed.observed(_rank("loses_its_loss")).not_finite == 3
    assert observed.observed(_rank("scaler_that_skips")).not_finite is None


def test_what_is_trained_is_named(observed: Watched) -> None:
    lines = observed.events(_rank("bare"))
    other = [i for i, event in enumerate(lines) if isinstance(event, events.RankStarted)][1]
    seen = [event for event in lines[:other] if isinstance(event, events.Observed)][-1]
    assert seen.script == str(SCENES)
    assert seen.model == "torch.nn.modules.container:Sequential"
    assert seen.num_parameters == 16 * 32 + 32 + 32 * 4 + 4
    assert (seen.dataset, seen.num_samples) == ("torch.utils.data.dataset:TensorDataset", 128)
    assert (seen.batch, seen.loader_workers, seen.accumulate) == (24, 2, 1)
    assert observed.observed(_rank("data_parallel")).model == seen.model
    adam = observed.observed(_rank("closures_with_accumulation"))
    assert adam.optimizer == "torch.optim.adamw:AdamW"
    assert adam.accumulate == 2
    (group,) = adam.parameter_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, [0.9, 0.999], 0.01)
    precisions = (seen.precision, observed.observed(_rank("narrow_and_sparse")).precision)
    assert precisions == ((None, None) if "precision" in parts_off() else ("fp32", "bf16"))
    assert set(adam.versions) >= {"python", "torch"}


def test_waiting_for_the_loader_is_part_of_a_step(observed: Watched) -> None:
    waits = observed.steps(_rank("bare"), "wait_s")
    lengths = observed.steps(_rank("bare"), "step_s")
    assert all(0 < wait < length for wait, length in zip(waits[:6], lengths[:6], strict=True))  # type: ignore[operator]
    assert math.fsum(observed.steps(_rank("lbfgs"), "wait_s")) == 0  # type: ignore[arg-type]
