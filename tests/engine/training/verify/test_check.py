"""The check before the first step finds what a strategy computes otherwise than one device, says why, and
finds nothing where all is the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
import torch

from rankdeck import events
from rankdeck.base.heartbeat import CHECK_BUILD, CHECK_STEP, VERIFYING
from rankdeck.base.phrases import phrase
from rankdeck.config import from_text
from rankdeck.training import workload as workloads
from rankdeck.training.verify.before_run import verification_error, verified_event
from rankdeck.training.verify.budget import CheckBudget
from rankdeck.training.verify.causes import Discrepancy
from rankdeck.training.verify.check import CheckResult, EqualityCheck
from rankdeck.training.verify.compare import TensorDifference
from rankdeck.training.verify.draws import FixedDraws
from rankdeck.training.verify.one_device import OneDevice, OutOfTimeError
from rankdeck.training.verify.scope import NUM_STEPS, drop_layers, make_scope
from tests.helpers import parity
from tests.helpers.deviating import Deep
from tests.helpers.ranks import RankSet
from tests.helpers.verifying import MODELS, check, check_on_ranks, configuration

STRATEGIES = (
    '{ use = "dp" }',
    '{ use = "model" }',
    '{ use = "ddp" }',
    '{ use = "ddp", sync = "ring" }',
    '{ use = "fsdp" }',
    '{ use = "pipeline", schedule = "1f1b" }',
    '{ use = "tensor" }',
)
two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])


@two_ranks
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_supported_strategies_match_one_device(ranks: tuple[int, RankSet], strategy: str) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy, train="clip_norm = 0.5"))
    assert (result["outcome"], result["precision"]) == ("equal", "fp64")
    assert result["largest"] < 1e-14


@two_ranks
@pytest.mark.parametrize(
    ("strategy", "changes", "cause"),
    [
        ('{ use = "ddp" }', {"model": "centred"}, "samples"),
        ('{ use = "dp" }', {"model": "centred"}, "samples"),
        ('{ use = "pipeline" }', {"model": "centred"}, "samples"),
        ('{ use = "ddp" }', {"loss": "contrast"}, "loss"),
        ('{ use = "dp", parallel_loss = true }', {"loss": "contrast"}, "loss"),
        ('{ use = "pipeline" }', {"loss": "contrast"}, "loss"),
        ('{ use = "ddp" }', {"model": "extremes"}, "state"),
        ('{ use = "pipeline" }', {"optimizer": f'{{ use = "{MODELS}:ByPlace", lr = 0.1 }}'}, "optimizer"),
    ],
)
def test_a_difference_is_found_with_its_cause(
    ranks: tuple[int, RankSet], strategy: str, changes: dict[str, str], cause: str
) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy, **changes))  # type: ignore[arg-type]
    assert (result["outcome"], result["cause"]) == ("differs", cause)
    assert result["names"]


@two_ranks
@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ('{ use = "model" }', {"model": "centred"}),
        ('{ use = "model" }', {"loss": "contrast"}),
        ('{ use = "dp" }', {"loss": "contrast"}),  # one loss of all outputs
        ('{ use = "tensor" }', {"loss": "contrast"}),
        ('{ use = "ddp" }', {"model": "frozen_norm"}),
        ('{ use = "ddp" }', {"model": "whole"}),
        ('{ use = "dp" }', {"model": "whole"}),
        ('{ use = "ddp", sync_batchnorm = true }', {"model": "normed"}),
        ('{ use = "ddp" }', {"optimizer": f'{{ use = "{MODELS}:ByPlace", lr = 0.1 }}'}),
    ],
)
def test_no_difference_where_the_strategy_sees_full_batches(
    ranks: tuple[int, RankSet], strategy: str, changes: dict[str, str]
) -> None:
    assert check_on_ranks(ranks[1], configuration(strategy, **changes))["outcome"] == "equal"  # type: ignore[arg-type]


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "dp" }', '{ use = "pipeline" }'])
@pytest.mark.parametrize("model", ["normed", "normed_without_statistics"])
def test_a_batch_norm_difference_is_expected(ranks: tuple[int, RankSet], strategy: str, model: str) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy, model=model))
    assert (result["outcome"], result["cause"]) == ("noted", "batch-norm")


@two_ranks
def test_batch_norm_does_not_hide_a_cross_sample_loss(ranks: tuple[int, RankSet]) -> None:
    result = check_on_ranks(ranks[1], configuration('{ use = "ddp" }', model="normed", loss="contrast"))
    assert (result["outcome"], result["cause"]) == ("differs", "loss")


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "fsdp" }', '{ use = "dp" }'])
def test_random_layers_are_compared_with_fixed_random_numbers(
    ranks: tuple[int, RankSet], strategy: str
) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy, model="noisy"))
    assert (result["outcome"], result["has_drawn"]) == ("equal", True)


def test_dp_replicas_need_their_own_mode_to_fix_random_numbers() -> None:
    with mock.patch("rankdeck.training.verify.draws.FixedDraws.worker_mode", lambda draws: None):
        assert check(configuration('{ use = "dp" }', model="noisy"))["outcome"] == "unchecked"


@two_ranks
def test_a_model_with_unfixable_random_numbers_is_not_checked(ranks: tuple[int, RankSet]) -> None:
    result = check_on_ranks(ranks[1], configuration('{ use = "ddp" }', model="unfixed"))
    assert (result["outcome"], result["why"]) == (
        "unchecked",
        "The model draws random numbers that cannot be reproduced for a comparison.",
    )


@two_ranks
@pytest.mark.parametrize(
    ("strategy", "cause"),
    [('{ use = "pipeline-async" }', "staleness"), ('{ use = "ddp", compress = "bf16" }', "compress")],
)
def test_stale_and_compressed_runs_are_compared_without_that(
    ranks: tuple[int, RankSet], strategy: str, cause: str
) -> None:
    result = check_on_ranks(ranks[1], configuration(strategy))
    assert (result["outcome"], result["cause"]) == ("noted", cause)
    assert result["largest"] < 1e-14


@two_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16", pytest.param("fp64", marks=pytest.mark.slow)])
def test_rounding_is_not_a_difference(ranks: tuple[int, RankSet], precision: str) -> None:
    """AdamW makes a step of full length of a gradient that is zero but for rounding (a bias of keys)."""
    toml = parity.configuration("gpt", '{ use = "ddp" }', 2, precision=precision)
    toml = toml.replace('{ use = "sgd", lr = 0.02 }', '{ use = "adamw", lr = 1e-3 }')
    for strategy in ("ddp", "fsdp", "pipeline"):
        result = check_on_ranks(ranks[1], toml.replace('"ddp"', f'"{strategy}"'), most_fp64_weights=0)
        wide = "fp32" if precision == "bf16" else precision
        assert (result["outcome"], result["precision"]) == ("equal", wide)


@two_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_difference_is_found_despite_rounding(ranks: tuple[int, RankSet], precision: str) -> None:
    toml = configuration('{ use = "ddp" }', loss="contrast", train=f'precision = "{precision}"')
    result = check_on_ranks(ranks[1], toml, most_fp64_weights=0)
    assert (result["outcome"], result["cause"], result["precision"]) == ("differs", "loss", "fp32")


def test_full_batches_are_compared_on_request() -> None:
    toml = configuration('{ use = "model" }', batch=64)
    with mock.patch("rankdeck.training.verify.check._MAX_FULL_BATCH_S", -1.0):
        assert check(toml)["samples"] == 2
    assert check(toml, full=True)["samples"] == 64


def test_a_check_over_its_time_budget_is_skipped_with_a_note() -> None:
    result = check(configuration('{ use = "model" }'), budget_s=0.0)
    assert result["outcome"] == "unchecked"
    assert "more than 5 % of this run" in result["why"]


def test_one_step_is_compared_when_time_runs_out() -> None:
    with mock.patch.object(EqualityCheck, "_has_time_for_second", return_value=False):
        result = check(configuration('{ use = "dp" }'))
        assert (result["outcome"], result["steps"]) == ("equal", 1)
        result = check(configuration('{ use = "dp", parallel_loss = true }', loss="contrast"))
        assert (result["outcome"], result["cause"], result["steps"]) == ("differs", "loss", 1)


def test_a_difference_without_time_for_its_cause_is_reported() -> None:
    toml = configuration('{ use = "dp", parallel_loss = true }', loss="contrast")
    with mock.patch.object(OneDevice, "in_slices", side_effect=OutOfTimeError):
        result = check(toml)
    assert (result["outcome"], result["cause"]) == ("differs", "unknown")
    difference = TensorDifference("weight", 1, "0.weight", 0.5, 0.5)
    error = verification_error(
        Discrepancy("unknown", (difference,)), from_text(toml, folder=Path.cwd()), (16, 8)
    )
    assert "no time to find the cause" in error.message
    assert error.problem.cure == {"train.verify": "full"}


@pytest.mark.parametrize("largest", [float("nan"), float("inf"), 0.5])
def test_a_loss_finite_on_one_device_only_is_reported(largest: float) -> None:
    config = from_text(configuration('{ use = "ddp" }'), folder=Path.cwd())
    difference = TensorDifference("loss", 1, "loss", largest, largest)
    error = verification_error(Discrepancy("forward", (difference,)), config, (16, 8))
    assert ("the loss is NaN or infinite" in error.message) == (largest != 0.5)


def test_sliced_steps_start_only_within_the_budget() -> None:
    workload = workloads.load(from_text(configuration('{ use = "ddp" }'), folder=Path.cwd()))
    scope = make_scope(workload, 2, precision="fp64", whole_batch=True, has_batch_norm=False)
    budget = CheckBudget(has_limit=True)
    one_device = OneDevice(scope, torch.device("cpu"), FixedDraws(), budget, lambda phase: None)
    assert one_device.in_slices(True, whole_state=True) is not None
    with mock.patch.object(budget, "allows", return_value=False), pytest.raises(OutOfTimeError):
        one_device.in_slices(False, whole_state=True)


FAILING_LOSS = """
from torch.nn.functional import cross_entropy
calls = 0

def loss(outputs, targets):
    global calls
    calls += 1
    if {when}:
        raise ValueError("bad batch 17")
    return cross_entropy(outputs, targets, reduction="sum"), len(targets)
"""


def failing_config(tmp_path: Path, when: str) -> str:
    """A loss that raises, on one device and under a strategy alike."""
    (tmp_path / "mine.py").write_text(FAILING_LOSS.format(when=when), encoding="utf-8")
    return configuration('{ use = "dp" }').replace("cross_entropy", f"{tmp_path}/mine.py:loss")


@pytest.mark.parametrize("call", [1, 2, 3])
def test_user_errors_during_the_check_are_raised(tmp_path: Path, call: int) -> None:
    with pytest.raises(ValueError, match="bad batch 17"):
        check(failing_config(tmp_path, f"calls == {call}"))


@pytest.mark.parametrize(
    ("when", "precision"),
    [("'64' in str(outputs.dtype)", "fp32"), ("len(targets) < 8", "fp64")],
)
def test_errors_caused_by_the_check_do_not_fail_the_run(tmp_path: Path, when: str, precision: str) -> None:
    result = check(failing_config(tmp_path, when))
    assert (result["outcome"], result["precision"]) == ("equal", precision)


def test_the_check_sends_heartbeats_and_reports_waits() -> None:
    beats: list[str] = []
    check(configuration('{ use = "dp" }'), beat=beats.append)
    assert beats[0] == CHECK_BUILD and beats[-1] == VERIFYING
    assert beats.count(CHECK_STEP) >= 2 * NUM_STEPS


def test_time_of_other_processes_is_not_counted(tmp_path: Path) -> None:
    scheduled = tmp_path / "schedstat"
    scheduled.write_text("0 0 1")
    with mock.patch("rankdeck.training.verify.budget._SCHEDSTAT", scheduled):
        budget = CheckBudget(has_limit=True)
        scheduled.write_text(f"0 {10**12} 1")
        assert budget.spent_s < 0
        scheduled.unlink()
        assert not CheckBudget(has_limit=True).allows(3.1) and CheckBudget(has_limit=False).allows(1e9)


def test_a_long_run_has_a_larger_budget() -> None:
    budget = CheckBudget(has_limit=True)
    budget.extend_for_run(1000.0)
    assert budget.allows(40.0) and not budget.allows(60.0)


@pytest.mark.parametrize(("schedule", "samples"), [("gpipe", 6), ("zbv", 6), ("dualpipev", 8)])
def test_a_pipeline_check_uses_the_fewest_microbatches(schedule: str, samples: int) -> None:
    strategy = f'{{ use = "pipeline", schedule = "{schedule}", microbatches = 8 }}'
    workload = workloads.load(from_text(configuration(strategy, batch=32), folder=Path.cwd()))
    few, full = (
        make_scope(workload, 2, precision="fp64", whole_batch=whole_batch, has_batch_norm=False)
        for whole_batch in (False, True)
    )
    assert (few.num_samples, full.num_samples, full.num_forwards) == (samples, 32, 8)


def test_adam_on_rounding_sized_gradients_is_not_a_difference() -> None:
    """A bias of keys: softmax takes its gradient away."""
    toml = parity.configuration("gpt", '{ use = "dp" }', 2, precision="fp64")
    toml = toml.replace('{ use = "sgd", lr = 0.02 }', '{ use = "adamw", lr = 1e-3 }')
    with mock.patch.object(OneDevice, "_measure_noise", side_effect=AssertionError):
        result = check(toml)
        assert (result["outcome"], result["largest"] < 1e-12) == ("equal", True)
        with (
            mock.patch("rankdeck.training.verify.compare._zero_bound", return_value=0.0),
            pytest.raises(AssertionError),
        ):
            check(toml)


def test_the_check_leaves_the_run_unchanged() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check(configuration('{ use = "dp" }', model="noisy"))
    assert torch.equal(torch.get_rng_state(), before)
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_every_check_result_encodes_as_an_event() -> None:
    why = phrase("Two steps on one device take {seconds} s.", seconds="4.0")
    written = events.encode(verified_event(CheckResult(skip_reason=why)))
    read = events.decode(written)
    assert isinstance(read, events.Verified)
    assert (read.outcome, read.why) == ("unchecked", "Two steps on one device take 4.0 s.")


_FEW_LAYERS_BYTES = 3_500_000
"""Half of it is enough for a few layers of each kind."""


@two_ranks
@pytest.mark.parametrize(
    ("strategy", "layers"),
    [
        ('{ use = "ddp" }', 2),
        ('{ use = "fsdp" }', 2),
        ('{ use = "dp" }', 2),
        ('{ use = "model" }', 4),
        ('{ use = "pipeline", schedule = "1f1b" }', 4),
    ],
)
def test_a_model_that_does_not_fit_is_checked_with_fewer_layers(
    ranks: tuple[int, RankSet], strategy: str, layers: int
) -> None:
    memory_bytes = _FEW_LAYERS_BYTES
    result = check_on_ranks(ranks[1], configuration(strategy, model="deep"), memory_bytes=memory_bytes)
    assert (result["outcome"], result["layers"]) == ("equal", layers)
    assert result["largest"] < 1e-14
    if "model" not in strategy:
        toml = configuration(strategy, model="deep", loss="contrast")
        if strategy == '{ use = "dp" }':
            toml = configuration('{ use = "dp", parallel_loss = true }', model="deep", loss="contrast")
        result = check_on_ranks(ranks[1], toml, memory_bytes=memory_bytes)
        assert (result["outcome"], result["cause"], result["layers"]) == ("differs", "loss", layers)
    full_result = check_on_ranks(ranks[1], configuration(strategy, model="deep"))
    assert (full_result["outcome"], full_result["layers"]) == ("equal", None)


@two_ranks
def test_a_model_that_never_fits_is_not_checked(ranks: tuple[int, RankSet]) -> None:
    few = check_on_ranks(ranks[1], configuration('{ use = "ddp" }', model="deep"), memory_bytes=100_000)
    smallest = check_on_ranks(ranks[1], configuration('{ use = "ddp" }'), memory_bytes=100_000)
    for result in (few, smallest):
        assert result["outcome"] == "unchecked" and "do not fit in memory" in result["why"]


@two_ranks
def test_excluded_layers_do_not_make_a_strategy_refused(ranks: tuple[int, RankSet]) -> None:
    plan = '{ "blocks.20" = "column", "blocks.21" = "row" }'
    toml = configuration(f'{{ use = "tensor", plan = {plan} }}', model="deep")
    assert check_on_ranks(ranks[1], toml)["outcome"] in ("equal", "differs")
    result = check_on_ranks(ranks[1], toml, memory_bytes=_FEW_LAYERS_BYTES)
    assert result["outcome"] == "unchecked" and "fewer layers" in result["why"]


def test_a_layer_of_each_kind_remains() -> None:
    torch.manual_seed(0)
    model = Deep()
    blocks = list(model.blocks[:6])
    drop_layers(model, 3)
    assert list(model.blocks) == blocks and list(dict(model.blocks.named_children())) == list("012345")
    assert model(torch.ones(2, 64)).shape == (2, 10)
