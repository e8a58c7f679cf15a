"""The check before the first step finds what a strategy computes otherwise than one device, says why, and
finds nothing where all is the same.
"""

from __future__ import annotations

import os
from unittest import mock

import pytest
import torch

from rankdeck import events
from rankdeck.base.phrases import phrase
from rankdeck.training.verify.check import Result
from rankdeck.training.verify.verdict import event_of
from tests.helpers import parity
from tests.helpers.ranks import RankSet
from tests.helpers.verifying import MODELS, check, checked, configuration

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
def test_an_ordinary_run_equals_one_device(ranks: tuple[int, RankSet], strategy: str) -> None:
    found = checked(ranks[1], configuration(strategy, train="clip_norm = 0.5"))
    assert (found["outcome"], found["precision"]) == ("equal", "fp64")
    assert found["largest"] < 1e-14


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
def test_what_differs_is_found_with_its_cause(
    ranks: tuple[int, RankSet], strategy: str, changes: dict[str, str], cause: str
) -> None:
    found = checked(ranks[1], configuration(strategy, **changes))  # type: ignore[arg-type]
    assert (found["outcome"], found["cause"]) == ("differs", cause)
    assert found["names"]


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
def test_where_the_strategy_sees_all_of_it_nothing_is_found(
    ranks: tuple[int, RankSet], strategy: str, changes: dict[str, str]
) -> None:
    assert checked(ranks[1], configuration(strategy, **changes))["outcome"] == "equal"  # type: ignore[arg-type]


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "dp" }', '{ use = "pipeline" }'])
def test_a_batch_norm_differs_by_nature(ranks: tuple[int, RankSet], strategy: str) -> None:
    found = checked(ranks[1], configuration(strategy, model="normed"))
    assert (found["outcome"], found["cause"]) == ("noted", "batch-norm")


@two_ranks
def test_a_loss_across_samples_does_not_hide_behind_a_batch_norm(ranks: tuple[int, RankSet]) -> None:
    found = checked(ranks[1], configuration('{ use = "ddp" }', model="normed", loss="contrast"))
    assert (found["outcome"], found["cause"]) == ("differs", "loss")


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "fsdp" }', '{ use = "dp" }'])
def test_what_draws_is_compared_with_fixed_numbers(ranks: tuple[int, RankSet], strategy: str) -> None:
    found = checked(ranks[1], configuration(strategy, model="noisy"))
    assert (found["outcome"], found["has_drawn"]) == ("equal", True)


def test_draws_in_replicas_of_dp_are_not_fixed_without_a_mode_of_their_own() -> None:
    with mock.patch("rankdeck.training.verify.draws.FixedDraws.in_another_thread", lambda draws: None):
        assert check(configuration('{ use = "dp" }', model="noisy"))["outcome"] == "unchecked"


@two_ranks
def test_draws_that_cannot_be_fixed_are_said_and_not_blamed(ranks: tuple[int, RankSet]) -> None:
    found = checked(ranks[1], configuration('{ use = "ddp" }', model="unfixed"))
    assert (found["outcome"], found["why"]) == (
        "unchecked",
        "The model draws random numbers that cannot be fixed for a comparison.",
    )


@two_ranks
@pytest.mark.parametrize(
    ("strategy", "cause"),
    [('{ use = "pipeline-async" }', "staleness"), ('{ use = "ddp", compress = "bf16" }', "compress")],
)
def test_what_is_stale_or_compressed_is_compared_without_it(
    ranks: tuple[int, RankSet], strategy: str, cause: str
) -> None:
    found = checked(ranks[1], configuration(strategy))
    assert (found["outcome"], found["cause"]) == ("noted", cause)
    assert found["largest"] < 1e-14


@two_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_rounding_is_no_difference(ranks: tuple[int, RankSet], precision: str) -> None:
    """AdamW makes a step of full length of a gradient that is zero but for rounding (a bias of keys)."""
    toml = parity.configuration("gpt", '{ use = "ddp" }', 2, precision=precision)
    toml = toml.replace('{ use = "sgd", lr = 0.02 }', '{ use = "adamw", lr = 1e-3 }')
    for strategy in ("ddp", "fsdp", "pipeline"):
        found = checked(ranks[1], toml.replace('"ddp"', f'"{strategy}"'), most_fp64_weights=0)
        assert (found["outcome"], found["precision"]) == ("equal", precision)


@two_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_difference_is_found_among_rounding_too(ranks: tuple[int, RankSet], precision: str) -> None:
    toml = configuration('{ use = "ddp" }', loss="contrast", train=f'precision = "{precision}"')
    found = checked(ranks[1], toml, most_fp64_weights=0)
    assert (found["outcome"], found["cause"], found["precision"]) == ("differs", "loss", precision)


def test_whole_batches_are_compared_where_that_is_asked_for() -> None:
    toml = configuration('{ use = "model" }', batch=64)
    with mock.patch("rankdeck.training.verify.check._WHOLE_BATCH_S", 0.0):
        assert check(toml)["samples"] == 2
    assert check(toml, full=True)["samples"] == 64


def test_a_check_that_takes_too_long_is_left_out_and_says_so() -> None:
    found = check(configuration('{ use = "model" }'), budget_s=0.0)
    assert found["outcome"] == "unchecked"
    assert "more than 5 % of this run" in found["why"]


def test_the_run_after_it_begins_as_if_there_had_been_none() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    check(configuration('{ use = "dp" }', model="noisy"))
    assert torch.equal(torch.get_rng_state(), before)
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_every_result_can_be_written_as_an_event() -> None:
    why = phrase("Two steps on one device take {seconds} s.", seconds="4.0")
    written = events.encode(event_of(Result(unchecked=why)))
    read = events.decode(written)
    assert isinstance(read, events.Verified)
    assert (read.outcome, read.why) == ("unchecked", "Two steps on one device take 4.0 s.")
