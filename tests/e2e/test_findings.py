"""Real runs: of those that train as they should nothing is found, and of one that does not, what is wrong."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from rankdeck.diagnose.findings import FINDING_RULES
from rankdeck.run_dir import list_runs
from tests.helpers import launching
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.scripts import launch_script, wait_for_script_end
from tests.helpers.waiting import scale_timeout

ARCHIVES = sorted((Path(__file__).parents[1] / "fixtures").glob("runs-*.tar.xz"))
EXPECTED_FINDINGS = {
    "imbalance": ("-dp-", "-model-", "-pipeline-"),
    "same-data-on-all-ranks": ("-script-",),
    "loss-not-finite": ("-script-infinite-", "-diverged-"),
}
"""What is rightly found of recorded runs, by parts of their names: devices that hold different parts, a
script that gives its ranks the same random data, and losses that become infinite.
"""
OUT_OF_MEMORY = "-too-small-"

_TRAIN_SCRIPT = """
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
sampler = DistributedSampler(data, rank=0 if sys.argv[1] == "one share" else None)
if sys.argv[1] == "alike":
    sampler = None
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
    ("how", "codes"),
    [
        pytest.param("well", [], id="well"),
        pytest.param("alike", ["same-data-on-all-ranks"], id="all ranks alike"),
        pytest.param("one share", ["same-data-on-all-ranks"], id="one share for all"),
    ],
)
def test_equal_data_on_all_ddp_ranks_is_found(tmp_path: Path, how: str, codes: list[str]) -> None:
    run = launch_script(tmp_path, _TRAIN_SCRIPT, ranks=2, observe="light", args=[how])
    launching.wait_for_exit_record(run, scale_timeout(60))
    assert wait_for_script_end(run)[1] == 0
    problems = rankdeck_in_process("why", run.path, "--json", exit_code=0).json["problems"]
    assert [problem["code"] for problem in problems] == codes


@pytest.mark.parametrize("archive", ARCHIVES, ids=[path.name.split(".tar")[0] for path in ARCHIVES])
def test_recorded_runs_have_only_their_expected_findings(tmp_path: Path, archive: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    codes = {rule.code for rule in FINDING_RULES}
    runs = list_runs(tmp_path / "runs")
    assert len(runs) > 5
    for run in runs:
        if OUT_OF_MEMORY in run.name:
            continue  # why it ended is answered with plans, which take seconds each
        problems = rankdeck_in_process("why", run.path, "--json", exit_code=0).json["problems"]
        found_codes = {problem["code"] for problem in problems} & codes
        assert found_codes <= {
            code
            for code, names in EXPECTED_FINDINGS.items()
            if any(fragment in run.name for fragment in names)
        }
        if "-script-two-ranks-" in run.name:
            assert [problem["code"] for problem in problems] == ["same-data-on-all-ranks"]
