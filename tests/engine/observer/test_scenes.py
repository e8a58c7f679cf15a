"""Trainings in many styles, alone and observed: the same output and weights, and steps as they print them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, run_script
from tests.helpers.script_python import unavailable_parts
from tests.helpers.waiting import scale_timeout

SCENES = Path(__file__).parent / "scripts/scenes.py"
NAMES = re.findall(r"@scene\ndef (\w+)", SCENES.read_text())
WITHOUT_STEPS = {"never_steps"}
ON_ITS_OWN = {"zero_redundancy"}
"""It is rank 0 of a process group, and goes on in the file that another scene has left."""


@pytest.fixture(scope="module")
def alone() -> ObservedProcess:
    return run_script([SCENES], None)


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> ObservedProcess:
    return run_script([SCENES], tmp_path_factory.mktemp("observed"))


def _printed_results(done: ObservedProcess) -> dict[str, Any]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {name: scene for line in lines for name, scene in line.items()}


def _rank(name: str) -> int:
    return NAMES.index(name)


def test_observing_changes_neither_output_nor_weights(
    alone: ObservedProcess, observed: ObservedProcess
) -> None:
    assert (alone.status, observed.status) == (0, 0), alone.stderr + observed.stderr
    expected, actual = _printed_results(alone), _printed_results(observed)
    assert list(expected) == NAMES
    for results in (expected, actual):  # How many steps it took in its time is no matter of the script.
        del results["leaves_at_once"]
    assert actual == expected


def test_observing_does_not_change_stderr(alone: ObservedProcess, observed: ObservedProcess) -> None:
    def without_times(text: str) -> list[str]:
        return [re.sub(r"^W\d+ [\d:.]+ \d+", "", line) for line in text.splitlines()]

    assert without_times(observed.stderr) == without_times(alone.stderr)


@pytest.mark.parametrize(
    "name", [n for n in NAMES if n not in WITHOUT_STEPS | ON_ITS_OWN | {"leaves_at_once"}]
)
def test_steps_and_losses_are_what_the_script_prints(observed: ObservedProcess, name: str) -> None:
    result, rank = _printed_results(observed)[name], _rank(name)
    num = len(result["losses"])
    losses = observed.steps(rank, "loss_sum")[:num]
    assert len(losses) == num
    assert losses == [
        None if loss is None or (i >= 20 and losses[i] is None) else pytest.approx(loss, rel=1e-6)
        for i, loss in enumerate(result["losses"])
    ]
    for column in ("samples", "backwards", "lr"):
        if result.get(column):
            assert observed.steps(rank, column)[:num] == pytest.approx(result[column]), column
    if result.get("norms"):
        assert observed.steps(rank, "grad_norm")[:num] == pytest.approx(result["norms"], rel=1e-5)
    if "samples" not in result and name != "bare":
        assert set(observed.steps(rank, "samples")) == {None}
    if name != "bare":
        assert len(observed.steps(rank, "loss_sum")) == num
    observation = observed.last_observed(rank)
    assert set(observation.parts) == {*unavailable_parts(), *result.get("parts", ())}
    assert observation.skipped == result.get("skipped", 0)
    assert observation.wrapper == result.get("wrapper")


def test_a_rank_continues_the_event_file_of_its_last_process(observed: ObservedProcess) -> None:
    """The process group says rank 0, whose process before has ended: steps are counted on."""
    before = len(_printed_results(observed)["bare"]["losses"])
    losses = _printed_results(observed)["zero_redundancy"]["losses"]
    assert observed.steps(0, "loss_sum")[before:] == losses
    started = [event for event in observed.events(0) if isinstance(event, events.RankStarted)]
    assert len({event.pid for event in started}) == 2
    assert (
        observed.last_observed(0).optimizer
        == "torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer"
    )
    assert not (observed.run / f"events/rank-{_rank('zero_redundancy')}.0.jsonl").exists()  # type: ignore[operator]


def test_a_process_without_optimizer_steps_is_no_rank(observed: ObservedProcess) -> None:
    """Nor are loader workers, the process that forked all scenes, and helpers."""
    expected = {_rank(name) for name in NAMES} - {_rank("never_steps"), _rank("zero_redundancy")}
    assert set(observed.ranks()) == expected


def test_an_os_exit_loses_at_most_half_a_second_of_steps(observed: ObservedProcess) -> None:
    result, rank = _printed_results(observed)["leaves_at_once"], _rank("leaves_at_once")
    ended = observed.steps(rank, "ended")
    assert 0 < len(ended) <= len(result["losses"])
    # It trained for 1.5 s, its first step and words included.
    assert ended[-1] - ended[0] > 1.5 - scale_timeout(0.75)  # type: ignore[operator]


def test_steps_of_other_optimizers_are_counted_separately(observed: ObservedProcess) -> None:
    assert observed.last_observed(_rank("two_optimizers")).other_optimizers == {"Adam": 10}
    assert observed.last_observed(_rank("a_second_phase")).other_optimizers == {"SGD": 514}


def test_the_first_non_finite_loss_is_reported(observed: ObservedProcess) -> None:
    assert observed.last_observed(_rank("loses_its_loss")).not_finite == 3
    assert observed.last_observed(_rank("scaler_that_skips")).not_finite is None


def test_model_data_and_optimizer_are_reported(observed: ObservedProcess) -> None:
    lines = observed.events(_rank("bare"))
    other = [i for i, event in enumerate(lines) if isinstance(event, events.RankStarted)][1]
    observation = [event for event in lines[:other] if isinstance(event, events.Observed)][-1]
    assert observation.script == str(SCENES)
    assert observation.model == "torch.nn.modules.container:Sequential"
    assert observation.num_parameters == 16 * 32 + 32 + 32 * 4 + 4
    assert (observation.dataset, observation.num_samples) == ("torch.utils.data.dataset:TensorDataset", 128)
    assert (observation.batch, observation.loader_workers, observation.accumulate) == (24, 2, 1)
    assert observed.last_observed(_rank("data_parallel")).model == observation.model
    adam = observed.last_observed(_rank("closures_with_accumulation"))
    assert adam.optimizer == "torch.optim.adamw:AdamW"
    assert adam.accumulate == 2
    (group,) = adam.parameter_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.01, [0.9, 0.999], 0.01)
    precisions = (observation.precision, observed.last_observed(_rank("narrow_and_sparse")).precision)
    assert precisions == ((None, None) if "precision" in unavailable_parts() else ("fp32", "bf16"))
    assert set(adam.versions) >= {"python", "torch"}


def test_a_step_includes_the_wait_for_the_loader(observed: ObservedProcess) -> None:
    waits = observed.steps(_rank("bare"), "wait_s")
    lengths = observed.steps(_rank("bare"), "step_s")
    assert all(0 < wait < length for wait, length in zip(waits[:6], lengths[:6], strict=True))  # type: ignore[operator]
    assert math.fsum(observed.steps(_rank("lbfgs"), "wait_s")) == 0  # type: ignore[arg-type]
