"""A configuration that was adopted from a script trains as the script did: loss by loss."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from rankdeck.config.script import ScriptConfig, ScriptTable
from rankdeck.launch.control import wait_for_end
from rankdeck.launch.start import start_script
from rankdeck.run.run_state import read_run_state
from rankdeck.run_dir import RunDir
from tests.helpers.checkout import CHECKOUT
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.waiting import scale_timeout

SCRIPTS = CHECKOUT / "tests/fixtures/scripts"


def run_script(name: str, ranks: int, runs: Path) -> tuple[RunDir, list[float]]:
    """The run of a script, and the losses that it printed itself."""
    table = ScriptTable(run=f"{name}.py", folder=str(SCRIPTS), python=sys.executable, ranks=ranks)
    run = start_script(
        ScriptConfig(name=name, script=table),
        runs=runs,
        detach=False,
        command_line=["rankdeck", "run", table.run],
        started=time.time(),
    )
    assert wait_for_end(run, timeout_s=scale_timeout(60)), "the script has not ended"
    output = (run.logs_folder / "rank-0.0.out").read_text()
    assert run.outcome() == "completed", (run.logs_folder / "rank-0.0.err").read_text()
    return run, parse_losses(output)


def parse_losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^loss (\S+)$", output, re.MULTILINE)]


def run_in_process(name: str, *arguments: str) -> list[float]:
    """The losses of a script in this process."""
    stdout = io.StringIO()
    with mock.patch.object(sys, "argv", [name, *arguments]), contextlib.redirect_stdout(stdout):
        runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    return parse_losses(stdout.getvalue())


def train_losses(file: Path) -> list[float]:
    """The losses of `rankdeck train`."""
    facts = rankdeck_in_process("train", file, "--json", exit_code=0).json
    return list(read_run_state(RunDir(Path(facts["path"]))).column("loss"))


@pytest.mark.parametrize(
    ("name", "ranks", "strategy"),
    [
        ("single_sgd", 1, "single"),
        pytest.param("ddp_adamw", 2, "ddp", marks=pytest.mark.slow),
        pytest.param("accumulating", 1, "dp", marks=pytest.mark.slow),
        pytest.param("fitting", 1, "single", marks=pytest.mark.slow),
    ],
)
def test_an_adopted_configuration_has_the_losses_of_the_script(
    name: str, ranks: int, strategy: str, tmp_path: Path
) -> None:
    run, printed = run_script(name, ranks, tmp_path / "rankdeck-runs")
    file = tmp_path / "adopted.toml"
    done = rankdeck_in_process("adopt", run.path, "-o", file, exit_code=0)
    assert "Nothing is left to fill in." in done.err
    assert f"{strategy} on cpu:{ranks}" in rankdeck_in_process("validate", file, exit_code=0).out
    trained = train_losses(file)
    assert len(trained) == len(printed) >= 12
    np.testing.assert_allclose(trained, printed, rtol=1e-5)
    if name == "single_sgd":
        other = run_in_process(name, "--lr", "0.051")
        assert len(other) == len(trained) and not np.allclose(trained, other, rtol=1e-5)
