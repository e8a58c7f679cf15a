"""A run of somebody else names code that leaves a mark where it is imported: none is left unasked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from rankdeck import events
from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.cli.app import app
from rankdeck.run_dir import RunDir, default_runs_folder, list_folder
from tests.helpers.cli import RANKDECK, rankdeck_in_process
from tests.helpers.launching import wait_until_gone
from tests.helpers.terminals import Terminal
from tests.helpers.written_run import MIB, WrittenRun, device_infos
from tests.helpers.written_script import WrittenScript

THEIR_MODEL = """
from pathlib import Path
from torch import nn
Path(__file__).with_name("mark").touch()

def model(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
"""
CONFIG = """
name = "theirs"
model = { use = "theirs.py:model", args = { width = 8 } }
data = { use = "digits" }
train = { steps = 4, global_batch = 8, evaluate_every = 0, checkpoint_every = 2 }
strategy = { use = "single" }
devices = { use = "cpu:1" }
"""
UNTRUSTED_FREE_COMMANDS = {
    "train",
    "run",
    "queue",
    "plan",
    "verify",
    "race",
    "adopt",
    "validate",
    "devices",
    "strategies",
    "presets",
    "config",
    "doctor",
}
"""What a person names themselves, or no run at all; `plan` asks with --accuracy."""
REMOTE_COMMANDS = {"serve", "meet", "copy", "install"}
"""What starts the other commands here for a person at another host, or there."""
READ_ONLY_COMMANDS = (
    ("runs",),
    ("show", "RUN"),
    ("watch", "RUN"),
    ("compare", "RUN", "COPY"),
    ("report", "RUN", "--html", "FILE"),
    ("label", "RUN", "--tag", "odd"),
    ("stop", "RUN"),
    ("why", "RUN"),
    ("export", "RUN", "FILE", "--to", "csv"),
    ("export", "RUN", "FILE", "--to", "json"),
    ("export", "RUN", "FILE", "--to", "trace"),
    ("export", "RUN", "BOARD", "--to", "tensorboard"),
)
REFUSED_COMMANDS = (("checkpoint", "RUN"), ("stacks", "RUN"), ("adopt", "RUN"))
ASKING_COMMANDS = (
    ("show", "RUN", "--plan"),
    ("plan", "--accuracy"),
    ("export", "RUN", "FILE", "--to", "safetensors"),
    ("resume", "RUN", "--set", "train.steps=6"),
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of somebody else, in whose home it was started."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "theirs.py").write_text(THEIR_MODEL)
    (folder / "theirs.toml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKDECK_HOME", str(folder / "home"))
        rankdeck_in_process("train", folder / "theirs.toml", "--runs", folder / "runs", exit_code=0)
    (run,) = list_folder(folder / "runs")
    wait_until_gone(run)
    assert (folder / "mark").exists()
    return run


@pytest.fixture
def run(trained: RunDir) -> RunDir:
    """Copied into the runs of a person, and unfinished: its weights are those of a checkpoint."""
    copy = RunDir(shutil.copytree(trained.path, default_runs_folder() / trained.name))
    copy.weights.unlink()
    mark_file(copy).unlink(missing_ok=True)
    return copy


def mark_file(run: RunDir) -> Path:
    return Path(run.config().folder or "", "mark")


def command_arguments(command: Sequence[str], run: RunDir, tmp_path: Path) -> list[str]:
    if "COPY" in command:
        shutil.copytree(run.path, tmp_path / "copy")
    values = {
        "RUN": str(run.path),
        "COPY": str(tmp_path / "copy"),
        "FILE": str(tmp_path / "file.html"),
        "BOARD": str(tmp_path / "board"),
    }
    return [values.get(word, word) for word in command]


def test_every_command_is_classified() -> None:
    commands: Any = typer.main.get_command(app)
    names = (
        UNTRUSTED_FREE_COMMANDS
        | REMOTE_COMMANDS
        | {command[0] for command in (*READ_ONLY_COMMANDS, *REFUSED_COMMANDS, *ASKING_COMMANDS)}
    )
    assert set(commands.commands) <= names


def test_read_only_commands_execute_no_code_of_a_run(run: RunDir, tmp_path: Path) -> None:
    for command in (*READ_ONLY_COMMANDS, *REFUSED_COMMANDS):
        rankdeck_in_process(
            *command_arguments(command, run, tmp_path), exit_code=2 if command in REFUSED_COMMANDS else 0
        )
        assert not mark_file(run).exists(), command


@pytest.mark.parametrize("command", ASKING_COMMANDS, ids=lambda command: command[0])
def test_code_of_an_untrusted_run_needs_confirmation(
    command: Sequence[str], run: RunDir, tmp_path: Path
) -> None:
    arguments = command_arguments(command, run, tmp_path)
    (refused,) = rankdeck_in_process(*arguments, "--json", exit_code=2).json["problems"]
    assert refused["code"] == "untrusted" and f"{mark_file(run).parent}/theirs.py:model" in refused["message"]
    assert "--trust" in refused["advice"] and refused["path"] == str(run.path)
    with Terminal([*RANKDECK, *arguments], cwd=tmp_path) as terminal:
        terminal.wait_for(rb"theirs\.py:model\(width=8\)")
        terminal.wait_for(rb"Run it\? \[y/N\]")
        terminal.type(b"\n")
        code = terminal.wait()
    assert code == (0 if command[0] == "plan" else 130)
    assert not mark_file(run).exists() and not (tmp_path / "file.html").exists()
    rankdeck_in_process(*arguments, "--trust", exit_code=0)
    assert mark_file(run).exists()


def test_consent_is_remembered_until_the_code_changes(run: RunDir, tmp_path: Path) -> None:
    arguments = command_arguments(ASKING_COMMANDS[2], run, tmp_path)
    with Terminal([*RANKDECK, *arguments], cwd=tmp_path) as terminal:
        terminal.wait_for(rb"Run it\?")
        terminal.type(b"y\n")
        assert terminal.wait() == 0
    assert mark_file(run).exists()
    moved = RunDir(Path(shutil.move(run.path, tmp_path / "moved")))
    rankdeck_in_process(*command_arguments(ASKING_COMMANDS[2], moved, tmp_path), exit_code=0)
    text = moved.config_file.read_text().replace("width = 8", "width = 16")
    moved.config_file.write_text(text)
    assert (
        "width=16"
        in rankdeck_in_process(*command_arguments(ASKING_COMMANDS[2], moved, tmp_path), exit_code=2).err
    )


def test_labeling_a_run_does_not_make_it_trusted(run: RunDir, tmp_path: Path) -> None:
    rankdeck_in_process(
        "label", run.path, "--tag", "seen", exit_code=0
    )  # which enters it in the index of runs
    assert (
        "untrusted"
        in rankdeck_in_process(
            *command_arguments(ASKING_COMMANDS[0], run, tmp_path), "--json", exit_code=2
        ).out
    )


def test_runs_started_on_this_machine_need_no_confirmation(
    trained: RunDir, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home is the one that it was started in."""
    monkeypatch.setenv("RANKDECK_HOME", str(trained.path.parents[1] / "home"))
    assert run.path.parent == default_runs_folder()
    rankdeck_in_process(
        "resume", "last", "--set", "train.steps=6", "--set", "model.args.width=8", exit_code=0
    )
    rankdeck_in_process("show", "last", "--plan", exit_code=0)


def write_out_of_memory_run(folder: Path) -> WrittenRun:
    """A stranger's run that ran out of memory, whose ways out nobody has planned."""
    (folder / "theirs.py").write_text(THEIR_MODEL)
    model = {"use": "theirs.py:model", "args": {"width": 8}}
    written = WrittenRun(folder / "runs", config={"model": model})
    devices = device_infos(1)
    (written.path / "environment.json").write_text(json.dumps({"devices": msgspec.to_builtins(devices)}))
    written.start(1, devices)
    written.write_memory(0, 2, {0: {"parameters": MIB}})
    allocation = Allocation(asked_bytes=MIB, capacity_bytes=MIB, free_bytes=0)
    written.writer("rank-0").write(events.OutOfMemory(rank=0, step=3, device=0, allocation=allocation))
    problem = Problem("out-of-memory", "OutOfMemoryError: no room.", rank=0)
    written.writer("supervisor").write(events.ProblemRaised(problem=problem))
    written.end("failed", 1)
    return written


def test_fixes_of_an_untrusted_run_need_confirmation(tmp_path: Path) -> None:
    run, page = write_out_of_memory_run(tmp_path).dir, tmp_path / "page.html"
    for command in (["why", str(run.path)], ["report", str(run.path), "--html", str(page)]):
        (refused,) = rankdeck_in_process(*command, "--json", exit_code=2).json["problems"]
        assert refused["code"] == "untrusted" and not page.exists()
    with Terminal([*RANKDECK, "why", str(run.path)], cwd=tmp_path) as terminal:
        terminal.wait_for(rb"ran out of memory")
        terminal.wait_for(rb"Run it\?")
        terminal.type(b"n\n")
        assert terminal.wait() == 0
    rankdeck_in_process("report", run.path, "--html", page, "--no-plan", exit_code=0)
    assert page.exists() and not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_fixes_of_a_trusted_run_are_planned(tmp_path: Path) -> None:
    run = write_out_of_memory_run(tmp_path).dir
    assert rankdeck_in_process("why", run.path, "--trust", "--json", exit_code=0).out
    assert (tmp_path / "mark").exists()


def test_an_untrusted_script_runs_again_only_after_confirmation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('mark', 'w')\n")
    config = {"python": sys.executable, "args": ["--lr", "0.1\x1b[2K\nno"], "environment": {"LD_DEBUG": "x"}}
    written = WrittenScript(tmp_path / "runs", config=config)
    written.start_script()
    written.end()
    refused = rankdeck_in_process("resume", written.path, exit_code=2).err
    assert "LD_DEBUG=x" in refused and "train.py --lr" in refused and f"[{tmp_path}]" in refused
    with Terminal([*RANKDECK, "resume", str(written.path)], cwd=tmp_path) as terminal:
        question = terminal.wait_for(rb"(?s).*Run it\? \[y/N\]").group()
        terminal.type(b"n\n")
        assert terminal.wait() == 130
    assert b"\x1b[2K" not in question and b"0.1?[2K?no" in question, "nothing in it moves the cursor"
    assert not (tmp_path / "mark").exists()
    again = rankdeck_in_process("resume", written.path, "--trust", "--detach", exit_code=0).out.strip()
    wait_until_gone(RunDir(Path(again)))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("asking", [("show", "RUN", "--plan"), ("plan", "--accuracy")])
def test_the_trust_question_comes_before_importing_torch(run: RunDir, asking: tuple[str, ...]) -> None:
    arguments = [str(run.path) if word == "RUN" else word for word in asking]
    code = (
        f"import sys; from rankdeck.cli.app import run; run({arguments!r}); sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, stdin=subprocess.DEVNULL)
