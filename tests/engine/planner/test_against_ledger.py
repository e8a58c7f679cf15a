"""What is planned is what runs: fake tensors against the ledger of real ranks, device by device."""

from __future__ import annotations

import pytest

from tests.helpers import planning
from tests.helpers.planning import Case, Planner
from tests.helpers.ranks import RankSet

BAR = 0.001
IN_CI = {
    ("mlp", "ddp"),
    ("gpt", "ddp-bucket-view"),
    ("gpt", "fsdp"),
    ("gpt", "1f1b"),
    ("gpt", "1f1b-by-hand"),
    ("mlp", "pipeline-async"),
    ("gpt", "tensor"),
    ("gpt", "data-stage"),
    ("gpt", "data-shard"),
    ("hf-gpt2", "fsdp"),
    ("hf-llama", "gpipe"),
}
ONE_PROCESS_IN_CI = {
    ("mlp", "dp"),
    ("gpt", "single"),
    ("gpt", "dp-parallel-loss"),
    ("gpt", "model"),
    ("hf-bert", "single"),
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def check(case: Case, planner: Planner, ranks: RankSet | None) -> None:
    if case.model.startswith("hf-"):
        pytest.importorskip("transformers", reason="the hf extra is not installed")
    line = planner.plan(case)
    assert line.devices, line.reason
    found = planning.measured_by(case, ranks, lowest_of=3)
    predicted = [device.active_bytes for device in line.devices]
    assert max(map(abs, planning.errors_of(predicted, found))) <= BAR, (predicted, found)


def chosen(*, in_ci: bool, has_ranks: bool) -> list[Case]:
    wanted = IN_CI if has_ranks else ONE_PROCESS_IN_CI
    return [
        case
        for case in planning.cases(4)
        if case.has_ranks == has_ranks and ((case.model, case.strategy) in wanted) == in_ci
    ]


@pytest.mark.parametrize("case", chosen(in_ci=True, has_ranks=False), ids=str)
def test_one_process_on_four_devices(case: Case, planner: Planner) -> None:
    check(case, planner, None)


@pytest.mark.parametrize("case", chosen(in_ci=True, has_ranks=True), ids=str)
def test_ranks(case: Case, planner: Planner, ranks: tuple[int, RankSet]) -> None:
    num_ranks, made = ranks
    if num_ranks == 2 and case.strategy.startswith("data-"):
        pytest.skip("a mesh of two axes needs four ranks")
    check(Case(case.model, case.strategy, num_ranks), planner, made)


@pytest.mark.slow
@pytest.mark.parametrize("case", chosen(in_ci=False, has_ranks=False), ids=str)
def test_one_process_on_four_devices_whole_matrix(case: Case, planner: Planner) -> None:
    check(case, planner, None)


@pytest.mark.slow
@pytest.mark.parametrize("case", chosen(in_ci=False, has_ranks=True), ids=str)
def test_ranks_whole_matrix(case: Case, planner: Planner, ranks: tuple[int, RankSet]) -> None:
    num_ranks, made = ranks
    if num_ranks == 2 and case.strategy.startswith("data-"):
        pytest.skip("a mesh of two axes needs four ranks")
    check(Case(case.model, case.strategy, num_ranks), planner, made)


def test_a_wrong_model_is_seen(planner: Planner) -> None:
    """The negative control: another model's plan is far from what was measured."""
    predicted = [device.active_bytes for device in planner.plan(Case("mlp", "dp", 4)).devices]
    found = planning.measured_by(Case("gpt", "dp", 4), None)
    assert max(map(abs, planning.errors_of(predicted, found))) > 50 * BAR
