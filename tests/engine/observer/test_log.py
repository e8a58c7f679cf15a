"""`rankdeck.log`: found in any environment while observed, harmless everywhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankdeck
from rankdeck import events
from tests.helpers.telling import found, telling
from tests.helpers.watched import INJECT


def test_outside_a_run_it_does_nothing() -> None:
    rankdeck.log(loss=0.5, step=3)
    rankdeck.log({"train/loss": 0.5})
    assert "_rankdeck_observer" not in sys.modules


def test_the_package_knows_its_public_names_only() -> None:
    with pytest.raises(AttributeError, match="'no_such_name'"):
        _ = rankdeck.no_such_name


def test_values_become_curves_under_their_names() -> None:
    told = telling().values("rankdeck")
    assert told["loss"] == list(enumerate(found()["losses"]))
    assert told["accuracy"] == [(0, 0.5), (1, 1.5), (2, 2.5)]
    assert told["train/loss"] == [(9, 1.0)]
    assert set(told) == {"loss", "accuracy", "train/loss"}  # neither texts nor truth values


def test_what_is_no_mapping_is_noted_once_and_the_script_goes_on() -> None:
    assert telling().status == 0
    assert "not a mapping" in telling().off()["rankdeck.log"]


def test_each_value_says_when_it_was_logged() -> None:
    (event,) = (event for event in telling().of(events.Metrics) if event.through == "rankdeck")
    assert event.times == sorted(event.times)
    assert event.after == sorted(event.after) and event.after[-1] == 3


def _bare(code: str, folder: Path, *, observed: bool) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that has neither torch nor this package."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if observed:
        environment.update(PYTHONPATH=str(INJECT), RANKDECK_RUN=str(folder), RANKDECK_OBSERVE="light")
    python = getattr(sys, "_base_executable", sys.executable)
    return subprocess.run(
        [python, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_environment_without_the_package_finds_it_while_observed(tmp_path: Path) -> None:
    code = "import rankdeck; rankdeck.log(loss=1.0, step=2); print(rankdeck.log.__name__, dir(rankdeck)[-1])"
    done = _bare(code, tmp_path, observed=True)
    assert (done.stdout, done.stderr, done.returncode) == ("log log\n", "", 0)
    assert "ModuleNotFoundError" in _bare(code, tmp_path, observed=False).stderr


def test_the_persons_own_module_of_that_name_comes_first(tmp_path: Path) -> None:
    (tmp_path / "rankdeck.py").write_text("mine = 1\n")
    done = _bare("import rankdeck; print(rankdeck.mine)", tmp_path, observed=True)
    assert (done.stdout, done.stderr) == ("1\n", "")
