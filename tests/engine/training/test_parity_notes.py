"""Where a run ends with other weights than one device, the run and its plan say so, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.config import from_text
from rankdeck.planner.candidates import Target, TargetDevice
from rankdeck.planner.rank_plan import plan_rank
from tests.helpers.parity import TOLERANCES, WORKLOADS, configuration, single_device_weights
from tests.helpers.rank_main import train_once
from tests.helpers.ranks import RankSet, largest_difference
from tests.helpers.verifying import MODELS

FROZEN, PAUSED = (
    f'model = {{ use = "{MODELS}:{norm}_norm" }}\ndata = {{ use = "digits" }}'
    for norm in ("frozen", "paused")
)
DROPPING = 'model = { use = "mlp", args = { hidden = [32], dropout = 0.5 } }\ndata = { use = "digits" }'
NORMS, DRAWS = "batch-norm-differs", "dropout-differs"


@pytest.mark.parametrize("ranks", [2], indirect=True)
@pytest.mark.parametrize(
    ("workload", "strategy", "codes", "note"),
    [
        ("batch-norm", "dp", [NORMS], "over 8 samples at a time instead of 16"),
        ("batch-norm", "model", [], ""),
        ("batch-norm", "ddp", [NORMS], "Set strategy.sync_batchnorm = true"),
        ("batch-norm", "ddp, sync_batchnorm = true", [], ""),
        ("batch-norm", "hybrid, stage = 2, microbatches = 4", [NORMS], "over 4 samples"),
        ("frozen", "ddp", [], ""),
        ("frozen", "dp", [], ""),
        ("frozen", "pipeline", [], ""),
        ("paused", "ddp", [NORMS], "over 8 samples"),
        ("paused", "pipeline", [NORMS], "over 4 samples"),
        ("dropping", "dp", [DRAWS], "different random numbers on each device"),
        ("dropping", "model", [], ""),
        ("mlp", "ddp", [], ""),
    ],
)
def test_differences_from_one_device_are_noted_in_run_and_plan(
    ranks: tuple[int, RankSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workload: str,
    strategy: str,
    codes: list[str],
    note: str,
) -> None:
    for name, tables in (("dropping", DROPPING), ("frozen", FROZEN), ("paused", PAUSED)):
        monkeypatch.setitem(WORKLOADS, name, tables)
    use, _, options = strategy.partition(", ")
    chosen = f'{{ use = "{use}"{", " if options else ""}{options} }}'
    toml = configuration(workload, chosen, 2)
    if use in ("dp", "model"):
        train_once({"toml": toml, "out": str(tmp_path / "out"), "events": str(tmp_path)}, 0, 1)
        weights = load_file(tmp_path / "out")
    else:
        weights = ranks[1].train(toml, events=str(tmp_path))
    notes = read_notes(tmp_path)
    assert [problem.code for problem in notes] == codes
    assert (largest_difference(weights, single_device_weights(workload)) <= TOLERANCES["fp32"]) is not bool(
        codes
    )
    texts = [f"{problem.message} {problem.advice}" for problem in notes]
    assert all(note in text for text in texts)
    target = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)
    assert plan_rank(from_text(toml, folder=Path.cwd()), 0, target).notes == texts


def read_notes(folder: Path) -> list[Problem]:
    written = b"".join(file.read_bytes() for file in sorted(folder.glob("*.jsonl")))
    rank_events = events.decode_lines(written)
    return [event.problem for event in rank_events if isinstance(event, events.ProblemRaised)]
