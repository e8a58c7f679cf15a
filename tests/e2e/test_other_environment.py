"""A script runs and is observed in an environment of its own, which has torch and none of our packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.cli import rankdeck

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

TRAINS = """
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
    for found in [*(ours / name for name in NEEDED_BY_TORCH), *ours.glob("torch-*.dist-info")]:
        if found.exists():
            (theirs / found.name).symlink_to(found)
    (folder / "train.py").write_text(TRAINS)
    return folder


def test_it_runs_there_and_is_observed(project: Path) -> None:
    done = rankdeck("run", "train.py", cwd=project, code=0)
    prefix, loss = done.out.split()
    assert Path(prefix) == project / ".venv"
    words = done.err.splitlines()
    assert words[0].startswith(f"python: {project}/.venv/bin/python (.venv), Python ")
    assert f"torch {torch.__version__}; run: " in words[0]
    facts = rankdeck("show", "last", "--json", code=0).json
    assert facts["steps"] == 30 and facts["outcome"] == "completed"
    assert facts["loss"]["first"] == pytest.approx(float(loss), rel=1e-6)
    assert f"30 steps, loss {facts['loss']['first']:.4f} to " in words[-1]
