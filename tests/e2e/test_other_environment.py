"""A script runs and is observed in an environment of its own, which has torch and none of our packages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.checkout import CHECKOUT
from tests.helpers.cli import rankdeck
from tests.helpers.script_python import PYTHON, torch_of_scripts

NEEDED_BY_TORCH = (
    "torch",
    "torchgen",
    "functorch",
    "typing_extensions.py",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
    "filelock",
    "numpy",
    "numpy.libs",
)

TRAIN_SCRIPT = """
import importlib.util, sys
import torch
assert not any(map(importlib.util.find_spec, ("msgspec", "pydantic", "typer", "psutil")))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(30):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 0:
        print(sys.prefix, loss.item())
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and a .venv that has links to torch's own files."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / ".venv"], check=True)
    (theirs,) = (folder / ".venv" / "lib").glob("python3*/site-packages")
    ours = Path(torch.__file__).parents[1]
    for package in [*(ours / name for name in NEEDED_BY_TORCH), *ours.glob("torch-*.dist-info")]:
        if package.exists():
            (theirs / package.name).symlink_to(package)
    (folder / "train.py").write_text(TRAIN_SCRIPT)
    return folder


def test_a_script_in_another_environment_is_observed(project: Path) -> None:
    done = rankdeck("run", "train.py", cwd=project, exit_code=0)
    prefix, loss = done.out.split()
    assert Path(prefix) == project / ".venv"
    lines = done.err.splitlines()
    assert lines[0].startswith(f"python: {project}/.venv/bin/python (.venv), Python ")
    assert f"torch {torch.__version__}; run: " in lines[0]
    facts = rankdeck("show", "last", "--json", exit_code=0).json
    assert facts["steps"] == 30 and facts["outcome"] == "completed"
    assert facts["loss"]["first"] == pytest.approx(float(loss), rel=1e-6)
    assert f"30 steps, loss {facts['loss']['first']:.4f} to " in lines[-1]


@pytest.mark.slow
def test_two_ranks_compute_the_same_as_under_torchrun(tmp_path: Path) -> None:
    """DistributedDataParallel, FSDP and fully_shard, at a store of the torch that is there."""
    script = CHECKOUT / "tests/engine/observer/scripts/two_ranks.py"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port", port]
    theirs = [*torchrun, script, tmp_path / "theirs"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(theirs, check=True, env=environment, capture_output=True, timeout=120)
    done = rankdeck("run", "--python", PYTHON, "--nproc-per-node=2", script, tmp_path / "ours", exit_code=0)
    first, last = done.err.splitlines()
    assert first.startswith(f"python: {PYTHON} (--python), Python ")
    assert ", torch " + ".".join(map(str, torch_of_scripts())) in first
    results = [json.loads(Path(f"{tmp_path}/ours.{rank}").read_text()) for rank in (0, 1)]
    assert results == [json.loads(Path(f"{tmp_path}/theirs.{rank}").read_text()) for rank in (0, 1)]
    facts = rankdeck("show", "last", "--json", exit_code=0).json
    assert (facts["outcome"], facts["steps"]) == ("completed", len(results[0]["losses"]))
    assert last.startswith("completed after ") and f" {facts['steps']} steps" in last
