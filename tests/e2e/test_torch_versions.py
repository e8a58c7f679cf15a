"""A torch that is not known is said once by a plan and by a run, which go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdeck import run_dir
from tests.helpers.cli import rankdeck
from tests.helpers.launching import read_problems


@pytest.fixture
def unknown_torch(tmp_path: Path) -> dict[str, str]:
    """What is installed says that torch is of a version to come."""
    facts = tmp_path / "installed" / "torch-9.9.9.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(facts.parent), before)))}


def test_an_unknown_torch_is_a_warning_of_plan(unknown_torch: dict[str, str]) -> None:
    result = rankdeck("plan", "digits-mlp", "--strategy", "single", "--json", exit_code=0, env=unknown_torch)
    assert result.err.count("Rankdeck was not tested with torch 9.9.9") == 1
    assert result.lines[0]["verdict"] == "fits"


def test_an_unknown_torch_is_a_warning_of_a_run(unknown_torch: dict[str, str]) -> None:
    """Under ddp on one device, where there is nobody to send anything to."""
    options = ("--set", "train.steps=3", "--set", "train.clip_norm=1.0", "--devices", "cpu:1")
    result = rankdeck(
        "train", "digits-mlp", *options, "--strategy", "ddp", "--json", exit_code=0, env=unknown_torch
    )
    assert (result.json["outcome"], result.json["steps"]) == ("completed", 3)
    assert result.json["comm"] is None or result.json["comm"]["sent_bytes_per_step"] == [0]
    (run,) = run_dir.list_runs(run_dir.default_runs_folder())
    assert [problem.code for problem in read_problems(run, "warning")] == ["torch-unknown"]
    assert read_problems(run) == []
