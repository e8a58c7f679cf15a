"""What a strategy computes otherwise than one device ends a run before its first step, and `rankdeck verify`
says so without a run.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rankdeck import events, run_dir
from rankdeck.run_dir import EventReader, RunDir
from tests.helpers.cli import rankdeck_in_process, start_rankdeck
from tests.helpers.verifying import MODELS, configuration
from tests.helpers.waiting import wait_until


def write_config(folder: Path, strategy: str = '{ use = "ddp" }', **changes: str) -> Path:
    """A configuration as a file."""
    file = folder / "contrast.toml"
    file.write_text(configuration(strategy, **changes))  # type: ignore[arg-type]
    return file


def read_verifications(run: RunDir, attempt: int) -> list[events.Verified]:
    reader = EventReader(run, first_attempt=attempt, last_attempt=attempt)
    return [event for _, event in reader.read() if isinstance(event, events.Verified)]


def test_a_non_additive_loss_is_refused_under_ddp_unless_unverified(
    tmp_path: Path,
) -> None:
    file = write_config(tmp_path, loss="contrast")
    refused = rankdeck_in_process("train", file, exit_code=2)
    assert "it is computed for 8 of 16 samples at a time" in refused.err
    facts = rankdeck_in_process("show", "last", "--json", exit_code=0).json
    assert (facts["outcome"], facts["steps"]) == ("failed", 0)
    assert (facts["verified"]["outcome"], facts["verified"]["cause"]) == ("differs", "loss")
    rankdeck_in_process("train", file, "--set", "train.verify=off", exit_code=0)
    facts = rankdeck_in_process("show", "last", "--json", exit_code=0).json
    assert (facts["outcome"], facts["verified"]) == ("completed", None)


def test_verify_checks_every_strategy_and_leaves_no_run(tmp_path: Path) -> None:
    file = write_config(tmp_path, loss="contrast")
    lines = rankdeck_in_process("verify", file, "--strategy", "model,single", "--json", exit_code=0).lines
    outcomes = {row["label"]: row["verified"] and row["verified"]["outcome"] for row in lines}
    assert outcomes == {"model": "equal", "single": None}
    (line,) = rankdeck_in_process("verify", file, "--json", exit_code=1).lines
    assert (line["label"], line["verified"]["outcome"]) == ("ddp", "differs")
    assert line["problems"][0]["code"] == "differs-from-one-device"
    assert run_dir.list_runs(Path(os.environ["RANKDECK_RUNS"])) == []
    output = rankdeck_in_process("verify", write_config(tmp_path), exit_code=0).out
    assert output.startswith("ddp") and "Verified: matches one device" in output


def test_verify_fails_if_no_strategy_can_run(tmp_path: Path) -> None:
    file, odd = write_config(tmp_path, '{ use = "single" }'), ("--set", "train.global_batch=15")
    assert "Cannot run" in rankdeck_in_process("verify", file, *odd, "--strategy", "ddp", exit_code=1).out
    assert (
        "Cannot run" in rankdeck_in_process("verify", file, *odd, "--strategy", "ddp,single", exit_code=0).out
    )


def test_resuming_verifies_again_only_under_another_strategy(tmp_path: Path) -> None:
    """Under strategies that see the whole loss."""
    file = write_config(tmp_path, loss="contrast", train="checkpoint_every = 5")
    advised = rankdeck_in_process(
        "train", file, "--strategy", "model", "--name", "kept", "--json", exit_code=0
    ).json
    assert advised["verified"]["outcome"] == "equal"
    # A layer split is one process on two devices.
    devices = advised["devices"]
    assert len(devices) == 2 and all(device["peak_bytes"] > 0 for device in devices)
    more = ("--set", "train.steps=25")
    rankdeck_in_process("resume", "kept", *more, exit_code=0)
    rankdeck_in_process("resume", "kept", "--strategy", "dp", "--set", "train.steps=30", exit_code=0)
    run = RunDir(Path(rankdeck_in_process("show", "kept", "--json", exit_code=0).json["path"]))
    assert [len(read_verifications(run, attempt)) for attempt in range(3)] == [1, 0, 1]


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


def test_an_exception_in_a_factory_ends_a_reduced_verification(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FIRST_CALL_FAILS, encoding="utf-8")
    file = tmp_path / "mine.toml"
    text = configuration('{ use = "ddp" }').replace(f"{MODELS}:plain", "mine.py:make")
    file.write_text(text, encoding="utf-8")
    rankdeck_in_process("train", file, exit_code=2)
    problems = rankdeck_in_process("show", "last", "--json", exit_code=0).json["problems"]
    assert [(problem["code"], problem["rank"]) for problem in problems] == [("model", 1)]
    assert "KeyError: 'no such layer'" in problems[0]["message"]


DEVICES = ("--devices", "cpu:2", "--strategy", "ddp", "--json")


@pytest.mark.parametrize("command", [("verify", "digits-mlp"), ("plan", "digits-mlp", "--verify")])
def test_a_terminated_verification_leaves_no_ranks_or_files(tmp_path: Path, command: tuple[str, ...]) -> None:
    with start_rankdeck(*command, *DEVICES, env={"TMPDIR": str(tmp_path)}) as verifying:
        wait_until(lambda: list(tmp_path.glob("rankdeck-verify-*/*/guard.lock")))
        verifying.send_signal(signal.SIGTERM)
        assert verifying.wait(60) == 130
    assert not list(tmp_path.glob("rankdeck-verify-*"))
