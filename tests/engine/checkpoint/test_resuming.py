"""A run goes on from what another one saved: to the bit under the same strategy, within rounding under any.

Losses are compared, and final weights. What is not taken over shows at once: without the random states
dropout draws something else, without the optimizer's state the second step is another one.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rankdeck.checkpoint.store import CheckpointStore
from tests.helpers import resume_ranks
from tests.helpers.parity import OWN_MODELS
from tests.helpers.ranks import RankSet

SAVED, STEPS = 2, 4
TOLERANCE = 1e-6
LATER_TOLERANCE = 1e-5
"""Adam divides by the root of tiny numbers: differences of rounding grow from step to step."""
MIN_DIFFERENCE = 1e-3

ONE_PROCESS = ("single", "dp", "model")
TIED = {False: "untied", True: "tied"}
MATRIX = {
    "single": '{ use = "single" }',
    "dp": '{ use = "dp" }',
    "model": '{ use = "model" }',
    "ddp": '{ use = "ddp" }',
    "fsdp": '{ use = "fsdp" }',
    "pipeline": '{ use = "pipeline" }',
    "tensor": '{ use = "tensor" }',
    "hybrid": '{ use = "hybrid", data = 2, tensor = 2 }',
}
IN_CI = [
    ("single", "ddp", True),
    ("dp", "fsdp", False),
    ("ddp", "single", False),
    ("fsdp", "tensor", True),
    ("model", "pipeline", True),
    ("pipeline", "fsdp", True),
    ("tensor", "model", False),
    ("hybrid", "ddp", False),
]


def matrix_pairs(*, with_hybrid: bool) -> list[Any]:
    """(source, target, whether weights are tied) of the matrix, the quick ones for every change."""
    return [
        pytest.param(
            *case, marks=() if case in IN_CI else pytest.mark.slow, id="-".join([*case[:2], TIED[case[2]]])
        )
        for case in itertools.product(MATRIX, MATRIX, TIED)
        if ("hybrid" in case) == with_hybrid and not (with_hybrid and case[2])
    ]


ADAMW = '{ use = "adamw", lr = 0.01 }'
MOMENTUM = '{ use = "sgd", lr = 0.05, momentum = 0.9 }'
BITWISE_CASES = {
    "dp": (MATRIX["dp"], ADAMW),
    "ddp": (MATRIX["ddp"], ADAMW),
    "ddp-powersgd": ('{ use = "ddp", compress = "powersgd", powersgd_rank = 2 }', ADAMW),
    "ddp-ring-powersgd": ('{ use = "ddp", sync = "ring", compress = "powersgd", powersgd_rank = 2 }', ADAMW),
    "fsdp": (MATRIX["fsdp"], MOMENTUM),
    "tensor": (MATRIX["tensor"], ADAMW),
    "model": (MATRIX["model"], MOMENTUM),
    "pipeline-async": ('{ use = "pipeline-async" }', '{ use = "sgd", lr = 0.05 }'),
    "pipeline-async-2bw": ('{ use = "pipeline-async", mode = "2bw" }', '{ use = "sgd", lr = 0.05 }'),
    **{
        f"pipeline-{schedule}": (f'{{ use = "pipeline", schedule = "{schedule}" }}', ADAMW)
        for schedule in (
            "gpipe",
            "1f1b",
            "1f1b-by-hand",
            "interleaved-1f1b",
            "looped-bfs",
            "interleaved-zero-bubble",
            "zbv",
            "dualpipev",
        )
    },
}
QUICK_CASES = ("dp", "ddp-powersgd", "fsdp", "pipeline-1f1b", "pipeline-async")


def toml(
    strategy: str,
    *,
    optimizer: str = ADAMW,
    dropout: float = 0.0,
    tied: bool = False,
    every: int = SAVED,
) -> str:
    asynchronous = "pipeline-async" in strategy
    return f"""
[model]
use = "gpt"
[model.args]
layers = 2
heads = 2
width = 32
context = 16
vocabulary = 64
dropout = {dropout}
tied = {str(tied).lower()}
[data]
use = "synthetic"
args = {{ samples = 128 }}
[train]
steps = {STEPS}
global_batch = 16
accumulate = {2 if "2bw" in strategy else 1}
evaluate_every = 0
clip_norm = {0.0 if asynchronous else 1.0}
checkpoint_every = {every}
optimizer = {optimizer}
schedule = {{ use = "cosine", warmup = 2 }}
[strategy]
{_table_lines(strategy)}
[devices]
use = "cpu:{1 if '"single"' in strategy else 4 if '"hybrid"' in strategy else 2}"
"""


def _table_lines(table: str) -> str:
    return "\n".join(entry.strip() for entry in table.strip("{} ").split(","))


class SavedRuns:
    """Runs here, on two ranks or on four; what each saved half-way is kept for the tests that follow."""

    def __init__(self, ranks: RankSet, folder: Path) -> None:
        self.ranks = {2: ranks}
        self._folder = folder
        self._sources: dict[str, Path] = {}

    def resume(self, strategy: str, config: str, folder: Path, **more: Any) -> dict[int, float]:
        """Step -> loss."""
        world_size = num_ranks(strategy)
        if world_size == 1:
            resume_ranks.run(config, str(folder), **more)
        else:
            ranks = self.ranks[world_size]
            ranks.call("tests.helpers.resume_ranks:run", toml=config, folder=str(folder), **more)
        assert not resume_ranks.problems(folder)
        return resume_ranks.losses(folder, world_size)

    def saved_run(self, strategy: str, config: str) -> Path:
        """The folder of a run that was not disturbed, its newest checkpoint that of half-way."""
        if config not in self._sources:
            folder = self._folder / f"source-{len(self._sources)}"
            self.resume(strategy, config, folder)
            shutil.rmtree(folder / "checkpoints" / str(STEPS))
            self._sources[config] = folder
        return self._sources[config]


@pytest.fixture(scope="module")
def runs(ranks: tuple[int, RankSet], tmp_path_factory: pytest.TempPathFactory) -> SavedRuns:
    assert ranks[0] == 2
    return SavedRuns(ranks[1], tmp_path_factory.mktemp("resuming"))


@pytest.fixture(scope="module")
def with_four_ranks(runs: SavedRuns, rank_set_of: Callable[[int], RankSet]) -> None:
    """Ranks for what needs four, beside the two."""
    runs.ranks[4] = rank_set_of(4)


two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True, ids=["2-ranks"])


def num_ranks(strategy: str) -> int:
    """Of a strategy's name or of a case of it."""
    kind = strategy.split("-")[0]
    return 1 if kind in ONE_PROCESS else 4 if kind == "hybrid" else 2


def read_losses(source: Path, strategy: str) -> dict[int, float]:
    return resume_ranks.losses(source, num_ranks(strategy))


@two_ranks
@pytest.mark.parametrize(("source", "target", "tied"), matrix_pairs(with_hybrid=False))
def test_any_strategy_resumes_any_other(
    runs: SavedRuns, tmp_path: Path, source: str, target: str, tied: bool
) -> None:
    check_pair(runs, tmp_path, source, target, tied=tied)


@two_ranks
@pytest.mark.usefixtures("with_four_ranks")
@pytest.mark.parametrize(("source", "target", "tied"), matrix_pairs(with_hybrid=True))
def test_any_strategy_resumes_a_hybrid_and_back(
    runs: SavedRuns, tmp_path: Path, source: str, target: str, tied: bool
) -> None:
    check_pair(runs, tmp_path, source, target, tied=tied)


def check_pair(runs: SavedRuns, tmp_path: Path, source: str, target: str, *, tied: bool) -> None:
    """Raises: AssertionError where the next steps are others than under the first strategy."""
    folder = runs.saved_run(source, toml(MATRIX[source], tied=tied))
    expected = read_losses(folder, source)
    losses = runs.resume(target, toml(MATRIX[target], tied=tied, every=0), tmp_path, source=str(folder))
    assert list(losses) == list(range(SAVED + 1, STEPS + 1))
    assert abs(losses[SAVED + 1] - expected[SAVED + 1]) < TOLERANCE
    assert all(abs(losses[step] - expected[step]) < LATER_TOLERANCE for step in losses)


@two_ranks
def test_without_optimizer_state_the_second_step_differs(runs: SavedRuns, tmp_path: Path) -> None:
    folder = runs.saved_run("single", toml(MATRIX["single"]))
    expected = read_losses(folder, "single")
    config = toml(MATRIX["ddp"], every=0)
    losses = runs.resume("ddp", config, tmp_path, source=str(folder), without="optimizer")
    assert abs(losses[SAVED + 1] - expected[SAVED + 1]) < TOLERANCE
    assert abs(losses[SAVED + 2] - expected[SAVED + 2]) > MIN_DIFFERENCE


@two_ranks
@pytest.mark.parametrize(
    "case",
    [pytest.param(name, marks=() if name in QUICK_CASES else pytest.mark.slow) for name in BITWISE_CASES],
)
def test_the_same_strategy_resumes_bitwise(runs: SavedRuns, tmp_path: Path, case: str) -> None:
    check_bitwise(runs, tmp_path, case, *BITWISE_CASES[case])


@two_ranks
@pytest.mark.slow
@pytest.mark.usefixtures("with_four_ranks")
def test_a_hybrid_resumes_bitwise(runs: SavedRuns, tmp_path: Path) -> None:
    check_bitwise(runs, tmp_path, "hybrid", MATRIX["hybrid"], ADAMW)


def check_bitwise(runs: SavedRuns, tmp_path: Path, case: str, strategy: str, optimizer: str) -> None:
    """Raises: AssertionError where losses or weights differ; or where random states make no difference."""
    config = toml(strategy, optimizer=optimizer, dropout=0.1)
    folder = runs.saved_run(case, config)
    expected = read_losses(folder, case)
    after = {step: loss for step, loss in expected.items() if step > SAVED}
    assert runs.resume(case, config, tmp_path / "on", source=str(folder)) == after
    weights = load_file(folder / "weights.safetensors")
    assert all(
        torch.equal(tensor, weights[name])
        for name, tensor in load_file(tmp_path / "on" / "weights.safetensors").items()
    )
    other = runs.resume(case, config, tmp_path / "off", source=str(folder), without="random")
    assert other != after


@two_ranks
@pytest.mark.parametrize("strategy", ['{ use = "ddp" }', '{ use = "hybrid", data = 2 }'])
def test_running_stats_are_those_of_the_first_rank(runs: SavedRuns, tmp_path: Path, strategy: str) -> None:
    config = toml(strategy, optimizer=MOMENTUM).replace(
        toml("").split("[train]")[0],
        f'[model]\nuse = "{OWN_MODELS}:tiny_conv"\n[data]\nuse = "digits"\n',
    )
    config = config.replace("cpu:4", "cpu:2")
    folder = runs.saved_run("ddp", config)
    runs.resume("ddp", config, tmp_path, source=str(folder))
    weights = load_file(folder / "weights.safetensors")
    assert any("running_var" in name for name in weights)
    assert all(
        torch.equal(tensor, weights[name])
        for name, tensor in load_file(tmp_path / "weights.safetensors").items()
    )


@two_ranks
def test_an_import_error_in_a_save_is_raised_on_all_ranks(ranks: tuple[int, RankSet], tmp_path: Path) -> None:
    number, rank_set = ranks
    arguments = {"module": "rankdeck.checkpoint.sharded", "folder": str(tmp_path)}
    messages = rank_set.call("tests.helpers.resume_ranks:save_with_import_error", **arguments)
    assert "could not be written" in messages[0] and "None in sys.modules" in messages[0]
    assert messages == [messages[0]] * number and not list(tmp_path.iterdir())


def test_the_resumed_checkpoint_is_never_rewritten(tmp_path: Path) -> None:
    """A run that has nothing left to do saves its last step: a kill then must not cost the only one."""
    config = toml(MATRIX["single"])
    resume_ranks.run(config, str(tmp_path))
    last = tmp_path / "checkpoints" / str(STEPS)
    written = {path.name: path.stat().st_ino for path in last.iterdir()}
    resume_ranks.run(config, str(tmp_path), attempt=1, source=str(tmp_path))
    assert {path.name: path.stat().st_ino for path in last.iterdir()} == written


def test_steps_are_reported_before_their_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed right after the save would otherwise have gaps: it goes on behind them."""
    save, reported_steps = CheckpointStore.save, {}

    def saving(keeper: CheckpointStore, step: int, *rest: Any) -> int:
        reported_steps[step] = sorted(resume_ranks.losses(tmp_path, 1))
        return save(keeper, step, *rest)

    monkeypatch.setattr(CheckpointStore, "save", saving)
    resume_ranks.run(toml(MATRIX["single"]), str(tmp_path))
    assert reported_steps == {step: list(range(1, step + 1)) for step in (SAVED, STEPS)}
