"""The zoo finds what is wrong, passes what is right, and goes on where it was."""

from __future__ import annotations

import contextlib
import datetime
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.helpers import rank_main
from tests.zoo import check as checks
from tests.zoo import compare, oracle
from tests.zoo.cache import ResultCache, ZooResult, files_digest
from tests.zoo.compare import Outcome, judge
from tests.zoo.page import format_page
from tests.zoo.registry import Entry, all_entries
from tests.zoo.runner import ZooRunner
from tests.zoo.strategies import SETTINGS, Setting

SOME_ENTRIES = ("models/mlp_in_parts", "models/batch_norms", "losses/weighted_samples", "data/tail_in_parts")


FIXED_BUGS = [
    ("models/pruned", "model x2", "equal"),
    ("models/weight_norms", "pipeline 1f1b x2", "equal"),
    ("models/shifts_of_all_blocks_in_one", "model x2", "equal"),
    ("models/running_mean_attribute", "model x2", "equal"),
    ("models/parameters_of_no_dims", "fsdp x2", "equal"),
    ("data/speech", "pipeline interleaved-zero-bubble x2", "equal"),
    ("data/ragged_batches", "hybrid data x stage", "equal"),
    ("models/experts_without_balance", "tensor sequence_parallel x2", "refused"),
    ("models/returns_numbers_too", "dp x2", "equal"),
    ("models/returns_dataclass_with_none", "pipeline gpipe x2", "equal"),
    ("models/shifts_of_all_blocks_in_one", "pipeline zbv x2", "refused"),
    ("models/flow_with_act_norm", "tensor x2", "refused"),
    ("models/flow_with_act_norm", "dp x2", "refused"),
    ("models/turned_layers", "hybrid shard x tensor", "equal"),
    ("models/gcn_joined", "model x2", "refused"),
    ("data/joined_graphs", "dp x2", "refused"),
    ("data/packed_sentences", "pipeline 1f1b x2", "refused"),
    ("models/used_by_some_samples", "ddp x2", "refused"),
    ("models/gradient_penalty", "fsdp x2", "refused"),
    ("models/own_loss_over_pairs_of_the_batch", "pipeline 1f1b-by-hand x2", "refused"),
    ("models/batch_norms_in_parts", "hybrid data x stage", "refused"),
]
"""Runs that were different or failed until the engine was mended."""
ADVISED_RUNS = [
    ("models/gradient_penalty", "ddp x2"),
    ("models/used_by_some_samples", "ddp find_unused x2"),
    ("data/joined_graphs", "ddp x2"),
    ("data/packed_sentences", "fsdp x2"),
    ("models/shifts_of_all_blocks_in_one", "pipeline 1f1b x2"),
    ("models/experts_without_balance", "tensor x2"),
]
"""What those that are refused there are advised to use."""


@pytest.fixture(scope="module")
def shared_runner() -> Iterator[ZooRunner]:
    with closing(ZooRunner()) as zoo_runner:
        yield zoo_runner


@pytest.fixture
def runner(shared_runner: ZooRunner) -> Iterator[ZooRunner]:
    """Ranks of a test end with it; what they are forked from stays."""
    yield shared_runner
    shared_runner.end_ranks()


@contextlib.contextmanager
def without_gradient_sync() -> Iterator[None]:
    """For ranks: each keeps the gradients of its own share."""
    with rank_main._without_sync():
        yield


@contextlib.contextmanager
def rank_1_hangs() -> Iterator[None]:
    """For ranks: one of them never comes."""
    if torch.distributed.get_rank() == 1:
        signal.pause()
    yield


def test_the_zoo_has_its_number_of_entries() -> None:
    kinds = [entry.kind for entry in all_entries().values()]
    assert kinds.count("models") >= 80
    assert kinds.count("losses") >= 25
    assert kinds.count("optimizers") >= 25
    assert kinds.count("data") >= 15


def test_the_oracle_does_not_import_the_engine() -> None:
    for file in Path(__file__).parent.rglob("*.py"):
        if file.name not in ("inside.py", "test_zoo.py", "nursery.py"):
            assert "rankdeck." not in file.read_text().replace("tests.", ""), file


@pytest.mark.parametrize("key", SOME_ENTRIES)
def test_one_device_equals_the_oracle(runner: ZooRunner, key: str) -> None:
    outcome = runner.run(all_entries()[key], SETTINGS["single"])
    assert outcome.kind == "equal", outcome
    assert outcome.difference is not None and outcome.difference < 1e-12


@pytest.mark.parametrize("key", SOME_ENTRIES[:1] + SOME_ENTRIES[2:])
def test_a_correct_strategy_passes(runner: ZooRunner, key: str) -> None:
    outcome = runner.run(all_entries()[key], SETTINGS["ddp x2"])
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize("setting", ["ddp x2", "fsdp x2", "pipeline 1f1b-by-hand x2"])
def test_a_strategy_without_sync_fails(runner: ZooRunner, setting: str) -> None:
    breaks = f"{__name__}:without_gradient_sync"
    outcome = runner.run(all_entries()["models/mlp_in_parts"], SETTINGS[setting], breaks=breaks)
    assert outcome.kind == "different", outcome
    assert outcome.difference is not None and outcome.difference > 1e-3


@pytest.mark.parametrize("part", range(3))
@pytest.mark.filterwarnings("ignore")
def test_fixed_bugs_do_not_return(runner: ZooRunner, part: int) -> None:
    expected = {(key, setting): kind for key, setting, kind in FIXED_BUGS[part::3]}
    expected |= dict.fromkeys(ADVISED_RUNS[part::3], "equal")
    outcomes = {run: runner.run(all_entries()[run[0]], SETTINGS[run[1]]) for run in expected}
    assert {run: outcome.kind for run, outcome in outcomes.items()} == expected, outcomes


def test_a_refusal_has_its_reason(runner: ZooRunner) -> None:
    outcome = runner.run(all_entries()["models/unet"], SETTINGS["tensor x2"])
    assert outcome.kind == "refused"
    assert "Conv2d" in outcome.reason and "{" in outcome.template


def test_a_hanging_rank_is_killed_and_the_next_run_passes(runner: ZooRunner) -> None:
    entry, setting = all_entries()["models/mlp"], SETTINGS["ddp x2"]
    with mock.patch.object(runner, "deadline_s", 0.5):
        outcome = runner.run(entry, setting, breaks=f"{__name__}:rank_1_hangs")
    assert outcome.kind == "failed" and "no answer" in outcome.reason
    assert runner.run(entry, setting).kind == "equal"


def test_a_small_difference_is_a_difference() -> None:
    entry = all_entries()["models/mlp"]
    expected = oracle.train(entry)
    reports = [{"sums": expected.losses, "counts": [1.0] * len(expected.losses), "notes": []}]
    weights = {name: tensor.clone() for name, tensor in expected.final.items()}
    assert judge(SETTINGS["ddp x2"], expected, weights, reports).kind == "equal"
    weights["0.bias"][0] += 1e-9
    outcome = judge(SETTINGS["ddp x2"], expected, weights, reports)
    assert (outcome.kind, outcome.where) == ("different", "0.bias")
    reports[0]["notes"] = [["dropout-differs", "Dropout differs.", "Dropout differs."]]
    assert judge(SETTINGS["ddp x2"], expected, weights, reports).kind == "noted"
    del weights["0.bias"]
    assert compare.find_difference(expected, weights, expected.losses).size == float("inf")


def test_a_wrong_reported_loss_is_a_difference() -> None:
    expected = oracle.train(all_entries()["models/mlp"])
    difference = compare.find_difference(expected, expected.final, [loss + 1e-6 for loss in expected.losses])
    assert difference.where == "loss" and difference.size > compare.TOLERANCE


@pytest.mark.parametrize("key", ["models/mlp_adamw", "models/gcn_joined", "optimizers/Signs", "models/flow"])
def test_rounding_stays_far_below_the_tolerance(key: str) -> None:
    entry = all_entries()[key]
    nudged = oracle.train(entry, nudge=1e-15)
    assert (
        compare.find_difference(oracle.train(entry), nudged.final, nudged.losses).size
        < compare.TOLERANCE / 100
    )


class FakeRunner(ZooRunner):
    """Says at once what a test wants."""

    def __init__(self) -> None:
        pass

    def run(self, entry: Entry, setting: Setting, *, breaks: str = "") -> Outcome:
        kind = "different" if entry.name == "unet" else "equal"
        return Outcome(kind, 0.5 if kind == "different" else 0.0, "out.weight")

    def close(self) -> None:
        pass


@pytest.fixture
def fake_runner() -> Iterator[None]:
    with mock.patch.object(checks, "ZooRunner", FakeRunner):
        yield


def test_the_cache_resumes_a_cut_off_check(tmp_path: Path, fake_runner: None) -> None:
    runs = checks.RunFilter(("ddp x2", "fsdp x2"), (("models", ("unet", "lm_tied")),)).list_runs()
    assert len(runs) == 4
    checks.run_all(runs[:3], ResultCache(tmp_path))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"entry": "models/un')  # cut off
    assert checks.due_runs(runs, ResultCache(tmp_path)) == runs[3:]


def test_outdated_results_rerun_with_bad_ones_first(tmp_path: Path, fake_runner: None) -> None:
    runs = checks.RunFilter(("ddp x2",), (("models", ("lm_tied", "unet")),)).list_runs()
    checks.run_all(runs, ResultCache(tmp_path))
    assert checks.due_runs(runs, ResultCache(tmp_path)) == []
    assert [entry.name for entry, _ in checks.due_runs(runs, ResultCache(tmp_path), again=["different"])] == [
        "unet"
    ]
    file = tmp_path / "results.jsonl"
    lines = [json.loads(line) | {"engine": "older"} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [entry.name for entry, _ in checks.due_runs(runs, ResultCache(tmp_path))] == ["unet", "lm_tied"]


def test_a_sample_is_drawn_by_seed_from_all_kinds(fake_runner: None) -> None:
    runs = checks.RunFilter().list_runs()
    first, again, other = (checks.shuffle_runs(seed, runs) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len(runs) and {run[0].kind for run in first[:4]} == set(checks.KINDS)
    assert checks.run_sample(seed=1, limit_s=-1.0) == []


@pytest.mark.timeout(900)  # a run that was late is run again
@pytest.mark.filterwarnings("ignore")
def test_a_daily_sample_of_all_runs_passes(runner: ZooRunner) -> None:
    seed = int(f"{datetime.date.today():%Y%m%d}")
    results = checks.run_sample(seed, limit_s=60.0)
    assert {result.entry.partition("/")[0] for result in results} == set(checks.KINDS)
    bad = [result for result in results if result.is_bad and not is_timeout(result, runner)]
    texts = [f"{result.text()}\n{result.outcome.detail}" for result in bad]
    assert not bad, "\n".join([f"python -m tests.zoo --seed {seed} --limit-s 60", *texts])


def is_timeout(result: ZooResult, runner: ZooRunner) -> bool:
    """Whether it only had too little time beside other tests: the same run ends well where it has more."""
    if "no answer" not in result.outcome.reason:
        return False
    with mock.patch.object(runner, "deadline_s", 3 * runner.deadline_s):
        return runner.run(all_entries()[result.entry], SETTINGS[result.setting]).kind not in (
            "different",
            "failed",
        )


def test_the_page_names_errors_and_groups_reasons() -> None:
    page = format_page(make_results())
    assert "- models/unet: 5.0e-01 at `out.weight` under ddp x2\n" in page
    assert "- models/mlp: TypeError: no; under dp x2" in page
    assert "- `A` (2) No {x}\n" in page
    assert "| ddp x2 | 1 | 0 | 0 | 1 | 0 |" in page


def test_a_fresh_clone_resumes_from_the_page(tmp_path: Path, fake_runner: None) -> None:
    file = tmp_path / "equality.md"
    results = make_results()
    file.write_text(format_page(results))
    runs = checks.RunFilter().list_runs()
    cache = ResultCache(tmp_path, file)
    outcomes = {(result.entry, result.setting): result.outcome for run in runs if (result := cache.get(*run))}
    assert outcomes == {
        ("models/mlp", "ddp x2"): Outcome("equal"),
        ("models/mlp", "fsdp x2"): Outcome("equal", notes=[["dropout-differs", "", ""]]),
        ("data/speech", "tensor x2"): Outcome("refused", reason="No {x}", template="No {x}"),
        ("data/points", "tensor x2"): Outcome("refused", reason="No {x}", template="No {x}"),
    }
    assert len(checks.due_runs(runs, cache)) == len(runs)  # those that the page knows are the last
    assert all((entry.key, setting.name) in outcomes for entry, setting in checks.due_runs(runs, cache)[-4:])
    changed = file.read_text().replace(f" {files_digest(all_entries()['data/speech'])[:6]} ", " 000000 ")
    file.write_text(changed)
    assert ResultCache(tmp_path, file).get(all_entries()["data/speech"], SETTINGS["tensor x2"]) is None


def make_results() -> list[ZooResult]:
    noted = Outcome("equal", 0.0, notes=[["dropout-differs", "Dropout {x}", "Dropout 1"]])
    return [
        ZooResult("models/unet", "ddp x2", Outcome("different", 0.5, "out.weight"), is_current=True),
        ZooResult("models/mlp", "dp x2", Outcome("failed", reason="TypeError: no"), is_current=True),
        ZooResult("models/mlp", "ddp x2", Outcome("equal", 0.0), is_current=True),
        ZooResult("models/mlp", "fsdp x2", noted, is_current=True),
        *(
            ZooResult(name, "tensor x2", Outcome("refused", reason=f"No {name}", template="No {x}"), True)
            for name in ("data/speech", "data/points")
        ),
    ]
