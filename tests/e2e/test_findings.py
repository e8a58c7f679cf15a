"""Real runs: of those that train as they should nothing is found, and of one that does not, what is wrong."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from rankdeck.diagnose.findings import RULES
from rankdeck.rundir import list_runs
from tests.helpers import launching
from tests.helpers.cli import rankdeck_here
from tests.helpers.scripts import finished, launch_script
from tests.helpers.waiting import with_load

ARCHIVES = sorted((Path(__file__).parents[1] / "fixtures").glob("runs-*.tar.xz"))
TRUE_OF = {
    "imbalance": ("-dp-", "-model-", "-pipeline-"),
    "same-data-on-all-ranks": ("-script-",),
}
"""What is rightly found of recorded runs, by parts of their names: devices that hold different parts, and a
script that gives its ranks the same random data.
"""
OUT_OF_MEMORY = "-too-small-"

_TRAINS = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(1)
data = TensorDataset(torch.randn(512, 16, generator=generator), torch.randn(512, 1, generator=generator))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
sampler = DistributedSampler(data) if sys.argv[1] == "well" else None
loader = DataLoader(data, 16, sampler=sampler)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
dist.destroy_process_group()
"""


# Both kinds are among the archives below, and what the observer tells of it is tested beside it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "found"),
    [
        pytest.param("well", [], id="well"),
        pytest.param("alike", ["same-data-on-all-ranks"], id="all ranks alike"),
    ],
)
def test_a_script_under_ddp(tmp_path: Path, how: str, found: list[str]) -> None:
    run = launch_script(tmp_path, _TRAINS, ranks=2, observe="light", args=[how])
    launching.ended(run, with_load(60))
    assert finished(run)[1] == 0
    problems = rankdeck_here("why", run.path, "--json", code=0).json["problems"]
    assert [problem["code"] for problem in problems] == found


@pytest.mark.parametrize("archive", ARCHIVES, ids=[path.name.split(".tar")[0] for path in ARCHIVES])
def test_of_runs_that_train_as_they_should_nothing_is_found(tmp_path: Path, archive: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    codes = {rule.code for rule in RULES}
    runs = list_runs(tmp_path / "runs")
    assert len(runs) > 5
    for run in runs:
        if OUT_OF_MEMORY in run.name:
            continue  # why it ended is answered with plans, which take seconds each
        problems = rankdeck_here("why", run.path, "--json", code=0).json["problems"]
        found = {problem["code"] for problem in problems} & codes
        assert found <= {code for code, names in TRUE_OF.items() if any(part in run.name for part in names)}
        if "-script-two-ranks-" in run.name:
            assert [problem["code"] for problem in problems] == ["same-data-on-all-ranks"]
