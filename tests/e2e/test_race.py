"""`rankdeck race` with real runs, as a person and a program call it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

from rankdeck.base.errors import Problem
from rankdeck.cli.race import split_by_verdict
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run_dir import RaceDir, list_races, list_runs
from tests.helpers.cli import RANKDECK, rankdeck, rankdeck_in_process, start_rankdeck
from tests.helpers.racing import plan_line
from tests.helpers.waiting import scale_timeout, wait_until

TINY = """
[model]
use = "mlp"
args = { hidden = [16] }
[data]
use = "digits"
[train]
steps = 30
global_batch = 16
checkpoint_every = 5
clip_norm = 1.0
evaluate_every = 5
optimizer = { use = "sgd", lr = 0.1 }
[devices]
use = "cpu:2"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return str(path)


def test_a_race_is_run_and_listed_as_one_row(config: str, tmp_path: Path) -> None:
    done = rankdeck_in_process(
        "race", config, "--only", "single,pipeline-async", "--steps", "20", exit_code=0
    )
    lines = done.out.splitlines()
    assert lines[0].startswith("1 strategy on 2 virtual devices, 20 steps each with seed 0")
    assert "These times are from this CPU." in lines[0]
    assert lines[1].split()[:2] == ["1/2", "single"] and "the reference" in lines[1]
    assert lines[2].split()[:3] == ["2/2", "single", "again"] and "agree to the last bit" in lines[2]
    assert any(text.startswith("losses       1 of 1 agree with single in every step") for text in lines)
    assert any(text.startswith("left out     pipeline-async, mode = stash: ") for text in lines)
    (folder,) = list_races(tmp_path / "rankdeck-runs")
    assert lines[-1].split() == ["race", str(folder.path)]

    (row,) = rankdeck_in_process("runs", "--json", exit_code=0).json
    assert (row["run"], row["title"], row["outcome"]) == (folder.name, "Race · tiny", "completed")
    assert (row["entries"], row["entries_done"], row["steps"]) == (1, 1, 20)
    assert "race, 1 of 1" in rankdeck_in_process("runs", exit_code=0).out
    output = rankdeck_in_process("show", "last", exit_code=0).out
    assert output.splitlines()[0] == "Race · tiny" and output.splitlines()[-1] == lines[-1]
    facts = rankdeck_in_process("show", folder.name, "--json", exit_code=0).json
    (entry, again) = facts["entries"]
    assert facts["verdicts"]["winner"] is None and facts["verdicts"]["fastest"] == 1
    assert (
        entry["measured"]["losses"] == again["measured"]["losses"] and len(entry["measured"]["step_s"]) == 15
    )
    # Beside it stands what was predicted, of each device to the byte.
    assert entry["measured"]["peak_bytes"] == [
        device["active_bytes"] for device in entry["predicted"]["devices"]
    ]

    entry_facts = rankdeck_in_process("show", f"{folder.name}/{entry['folder']}", "--json", exit_code=0).json
    assert (
        entry_facts["outcome"],
        entry_facts["steps"],
        entry_facts["evaluation"],
        entry_facts["weights"],
    ) == ("completed", 20, None, None)
    assert list_runs(tmp_path / "rankdeck-runs") == []
    stderr = rankdeck_in_process("watch", folder.name, exit_code=2).err
    assert "is a race, not a run" in stderr and str(folder.entries_folder) in stderr


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--save", "w.toml"], 2, "speed on virtual devices does not predict speed on GPUs"),
        (["--only", "dpp"], 2, 'Did you mean "dp"?'),
        (["--only", "hybrid"], 2, "no suitable options for hybrid on 2 virtual devices"),
        (["--detach", "--only", "hybrid"], 2, "no suitable options for hybrid"),
        (["--set", f"name={'x' * 121}"], 2, "This name has 121 characters"),
        (["--steps", "5"], 2, "greater than or equal to 20"),
        (["--devices", "cpu:x"], 2, "is not a valid number of virtual devices"),
        (["--set", "rehearsal.capacity=1KiB", "--only", "single"], 2, "No strategy is predicted to fit"),
    ],
)
def test_an_impossible_race_is_refused_and_leaves_no_folder(
    config: str, tmp_path: Path, more: list[str], code: int, message: str
) -> None:
    run_command = rankdeck if "--detach" in more else rankdeck_in_process
    done = run_command("race", config, *more, exit_code=code)
    assert message in done.err and "Traceback" not in done.err
    assert not (tmp_path / "rankdeck-runs").exists() and not Path("w.toml").exists()


def test_an_unusable_runs_folder_is_refused_before_planning(config: str, tmp_path: Path) -> None:
    (tmp_path / "broken").symlink_to("nowhere")
    for runs, why in (
        (f"{config}/runs", "Not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "broken", "No such file"),
    ):
        done = rankdeck_in_process("race", config, "--runs", runs, exit_code=2)
        assert f"Runs cannot be stored in {runs}: {why}" in done.err and "planning" not in done.err
    done = rankdeck_in_process(
        "race", config, "--runs", tmp_path / "a" / "b", "--only", "hybrid", exit_code=2
    )
    assert "no suitable options" in done.err and not (tmp_path / "a").exists()


def test_only_strategies_that_fit_or_are_named_race() -> None:
    fits, tight, large, refused, unknown = (plan_line("ddp") for _ in range(5))
    tight.verdict, large.verdict, refused.verdict, unknown.verdict = (
        "tight",
        "does-not-fit",
        "cannot",
        "cannot",
    )
    large.reason, refused.devices, unknown.devices = "device 0 lacks 2.0 GiB", [], []
    refused.refusal = Problem("options", "4 stages need 4 devices.")
    every = [fits, tight, large, refused, unknown]
    lines, left_out = split_by_verdict(every, is_explicit=False)
    assert lines == [fits, tight] and left_out[0].reason == large.reason
    assert [entry.verdict for entry in left_out] == ["does-not-fit", "cannot", "cannot"]
    assert split_by_verdict(every, is_explicit=True)[0] == [fits, tight, unknown]


# The model is too large for a thousand steps to end meanwhile.
SLOW = ["--set", "model.args.hidden=[2048, 2048, 2048]", "--steps", "1000", "--only", "single"]


@pytest.mark.parametrize("how", [pytest.param("ctrl-c", marks=pytest.mark.slow), "stop"])
def test_stopping_a_race_keeps_its_measurements(config: str, tmp_path: Path, how: str) -> None:
    if how == "ctrl-c":
        with start_rankdeck("race", config, *SLOW) as racer:
            (folder,) = wait_until(lambda: list_races(tmp_path / "rankdeck-runs"), deadline_s=60)
            wait_until(lambda: list(folder.path.glob("entries/1-single/events/rank-*")), deadline_s=60)
            racer.send_signal(signal.SIGINT)
            out, err = racer.communicate(timeout=scale_timeout(60))
        assert racer.returncode == 130 and "Traceback" not in err, err
    else:
        # It goes on when the command has left, and says the rest in its folder.
        answer = rankdeck("race", config, *SLOW, "--detach", "--json", exit_code=0).json
        folder = RaceDir(Path(answer["path"]))
        assert folder.is_alive() and folder.name == answer["run"]
        assert rankdeck("stop", folder.name, exit_code=0).out.strip() == f"{folder.name}: stopped"
        out = (folder.path / "race.log").read_text()
        assert json.loads(out)["outcome"] == "stopped"
        out = rankdeck_in_process("show", folder.name, exit_code=0).out
    assert "stopped      0 of 1 finished; their measurements are kept." in out
    facts = json.loads(folder.file.read_text())
    assert (facts["outcome"], facts["entries"][0]["state"]) == ("stopped", "stopped")
    assert not folder.is_alive()
    assert "is not running" in rankdeck_in_process("stop", folder.name, exit_code=0).err


GPT = """
[model]
use = "gpt"
args = { layers = 6, heads = 4, width = 32, context = 16, vocabulary = 64 }
[data]
use = "synthetic"
args = { samples = 512 }
[train]
global_batch = 16
[devices]
use = "cpu:4"
"""


@pytest.mark.slow
def test_all_strategies_agree_in_loss_and_with_predicted_memory(tmp_path: Path) -> None:
    (tmp_path / "gpt.toml").write_text(GPT)
    done = rankdeck("race", tmp_path / "gpt.toml", "--json", timeout_s=900, exit_code=0)
    entries = [entry for entry in done.json["entries"] if entry["repeats"] is None]
    verdicts = {entry["label"]: entry["agreement"]["verdict"] for entry in entries}
    assert len(verdicts) >= 15 and {entry["strategy"] for entry in entries} == set(STRATEGIES)
    assert verdicts.pop("single") == "reference"
    assert verdicts.pop("pipeline-async, mode = stash") == "expected"
    assert set(verdicts.values()) == {"agrees"}, verdicts
    for entry in entries:
        measured = sum(entry["measured"]["peak_bytes"])
        predicted = sum(device["active_bytes"] for device in entry["predicted"]["devices"])
        assert predicted == pytest.approx(measured, rel=0.05), entry["label"]


@pytest.mark.slow
def test_differing_losses_due_to_batch_norm_are_explained(tmp_path: Path) -> None:
    command = ("race", "digits-resnet18-ddp", "--devices", "cpu:2", "--only", "single,ddp", "--steps", "20")
    done = rankdeck(*command, timeout_s=600, exit_code=0)
    assert "as expected  ddp: Batch norms normalise over" in done.out
    assert "\x1b" not in done.out


@pytest.mark.slow
def test_a_terminal_shows_the_running_entry(config: str, tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    command = [*RANKDECK, "race", config, "--only", "single", "--steps", "400"]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal) as racer:
        os.close(terminal)
        output = b""
        while chunk := _read_screen(screen):
            output += chunk
        racer.wait(timeout=60)
    os.close(screen)
    assert racer.returncode == 0
    assert "━" in output.decode() and "left" in output.decode()


def _read_screen(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # nobody has the terminal open any more
        return b""
