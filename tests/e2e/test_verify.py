"""What a strategy computes otherwise than one device ends a run before its first step, and `rankdeck verify`
says so without a run.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rankdeck import events, rundir
from rankdeck.rundir import EventReader, RunDir
from tests.helpers.cli import rankdeck_here, start_rankdeck
from tests.helpers.verifying import MODELS, configuration
from tests.helpers.waiting import wait_until


def written(folder: Path, strategy: str = '{ use = "ddp" }', **changes: str) -> Path:
    """A configuration as a file."""
    file = folder / "contrast.toml"
    file.write_text(configuration(strategy, **changes))  # type: ignore[arg-type]
    return file


def verified_in(run: RunDir, attempt: int) -> list[events.Verified]:
    reader = EventReader(run, first_attempt=attempt, last_attempt=attempt)
    return [event for _, event in reader.read() if isinstance(event, events.Verified)]


def test_a_loss_that_does_not_add_up_is_refused_under_ddp_and_trains_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, loss="contrast")
    refused = rankdeck_here("train", file, code=2)
    assert "computes it for 8 of 16 samples at a time" in refused.err
    facts = rankdeck_here("show", "last", "--json", code=0).json
    assert (facts["outcome"], facts["steps"]) == ("failed", 0)
    assert (facts["verified"]["outcome"], facts["verified"]["cause"]) == ("differs", "loss")
    rankdeck_here("train", file, "--set", "train.verify=off", code=0)
    facts = rankdeck_here("show", "last", "--json", code=0).json
    assert (facts["outcome"], facts["verified"]) == ("completed", None)


def test_verify_says_it_of_every_strategy_and_leaves_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, loss="contrast")
    lines = rankdeck_here("verify", file, "--strategy", "model,single", "--json", code=0).lines
    outcomes = {row["label"]: row["verified"] and row["verified"]["outcome"] for row in lines}
    assert outcomes == {"model": "equal", "single": None}
    (own,) = rankdeck_here("verify", file, "--json", code=1).lines
    assert (own["label"], own["verified"]["outcome"]) == ("ddp", "differs")
    assert own["problems"][0]["code"] == "differs-from-one-device"
    assert rundir.list_runs(Path(os.environ["RANKDECK_RUNS"])) == []
    words = rankdeck_here("verify", written(tmp_path), code=0).out
    assert words.startswith("ddp") and "Verified: equals one device" in words


def test_where_nothing_that_was_asked_for_can_run_the_command_fails(tmp_path: Path) -> None:
    file, odd = written(tmp_path, '{ use = "single" }'), ("--set", "train.global_batch=15")
    assert "Cannot run" in rankdeck_here("verify", file, *odd, "--strategy", "ddp", code=1).out
    assert "Cannot run" in rankdeck_here("verify", file, *odd, "--strategy", "ddp,single", code=0).out


def test_a_resumed_run_is_verified_again_under_another_strategy_only(tmp_path: Path) -> None:
    """Under strategies that see the whole loss."""
    file = written(tmp_path, loss="contrast", train="checkpoint_every = 5")
    advised = rankdeck_here("train", file, "--strategy", "model", "--name", "kept", "--json", code=0).json
    assert advised["verified"]["outcome"] == "equal"
    # A layer split is one process on two devices.
    devices = advised["devices"]
    assert len(devices) == 2 and all(device["peak_bytes"] > 0 for device in devices)
    more = ("--set", "train.steps=25")
    rankdeck_here("resume", "kept", *more, code=0)
    rankdeck_here("resume", "kept", "--strategy", "dp", "--set", "train.steps=30", code=0)
    run = RunDir(Path(rankdeck_here("show", "kept", "--json", code=0).json["path"]))
    assert [len(verified_in(run, attempt)) for attempt in range(3)] == [1, 0, 1]


FIRST_CALL_FAILS = """
import os
from types import SimpleNamespace
import psutil
from torch import nn

psutil.virtual_memory = lambda: SimpleNamespace(available=3_500_000)  # too little for all layers
calls = 0

def make():
    global calls
    calls += 1
    if os.environ["RANK"] == "1" and calls == 1:
        raise KeyError("no such layer")
    layers = [nn.Linear(32, 32) for _ in range(24)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *layers, nn.Linear(32, 10))
"""


def test_a_factory_that_raises_on_one_rank_ends_a_check_with_fewer_layers_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FIRST_CALL_FAILS, encoding="utf-8")
    file = tmp_path / "mine.toml"
    text = configuration('{ use = "ddp" }').replace(f"{MODELS}:plain", "mine.py:make")
    file.write_text(text, encoding="utf-8")
    rankdeck_here("train", file, code=2)
    problems = rankdeck_here("show", "last", "--json", code=0).json["problems"]
    assert [(found["code"], found["rank"]) for found in problems] == [("model", 1)]
    assert "KeyError: 'no such layer'" in problems[0]["message"]


DEVICES = ("--devices", "cpu:2", "--strategy", "ddp", "--json")


@pytest.mark.parametrize("command", [("verify", "digits-mlp"), ("plan", "digits-mlp", "--verify")])
def test_one_that_is_ended_leaves_neither_ranks_nor_files(tmp_path: Path, command: tuple[str, ...]) -> None:
    with start_rankdeck(*command, *DEVICES, env={"TMPDIR": str(tmp_path)}) as verifying:
        wait_until(lambda: list(tmp_path.glob("rankdeck-verify-*/*/guard.lock")))
        verifying.send_signal(signal.SIGTERM)
        assert verifying.wait(60) == 130
    assert not list(tmp_path.glob("rankdeck-verify-*"))
