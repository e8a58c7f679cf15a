"""What is typed behind `rankdeck run`: torchrun's words mean what they mean there, a script's are its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rankdeck.base.errors import ConfigError, RankdeckError
from rankdeck.cli.run_options import RunOptions, script_config
from rankdeck.cli.torchrun import split_script_arguments
from rankdeck.config.script import ScriptConfig
from tests.engine.config.test_environments import python_at
from tests.helpers.cli import rankdeck_in_process

VALUE_OPTIONS = {"--devices", "--nproc-per-node", "--env"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    return folder


def resolve_config(folder: Path, *words: str, **options: Any) -> ScriptConfig:
    environ = {"PATH": "", "HOME": str(folder)}
    return script_config(RunOptions(words, **options), folder=folder, environ=environ)[0]


@pytest.mark.parametrize(
    ("typed", "ours", "theirs"),
    [
        (["train.py", "--devices", "x", "--json"], [], ["train.py", "--devices", "x", "--json"]),
        (["--devices", "cpu:2", "train.py"], ["--devices", "cpu:2"], ["train.py"]),
        (["--nproc_per_node", "2", "t.py"], ["--nproc_per_node", "2"], ["t.py"]),
        (["--devices=cpu:2", "--json", "t.py"], ["--devices=cpu:2", "--json"], ["t.py"]),
        (["-m", "pkg.mod", "-m"], ["-m"], ["pkg.mod", "-m"]),
        (["--json", "--", "--odd.py", "--", "x"], ["--json"], ["--odd.py", "--", "x"]),
        (["t.py", "--", "x"], [], ["t.py", "--", "x"]),
        (["--rdzv-id", "7", "t.py"], ["--rdzv-id", "7"], ["t.py"]),
        (["-", "x"], [], ["-", "x"]),
        (["--devices"], ["--devices"], []),
        ([], [], []),
    ],
)
def test_options_end_at_the_script(typed: Sequence[str], ours: list[str], theirs: list[str]) -> None:
    assert split_script_arguments(typed, VALUE_OPTIONS) == (ours, theirs)


def test_a_script_runs_on_one_rank_with_unchanged_arguments(project: Path) -> None:
    config = resolve_config(project, "train.py", "--lr", "", "a b", "--")
    assert config.name == "train" and config.devices is None
    table = config.script
    assert (table.run, table.kind, table.args) == ("train.py", "file", ["--lr", "", "a b", "--"])
    assert (table.folder, table.python, table.ranks) == (str(project), sys.executable, 1)
    assert (table.observe, table.max_restarts, table.master_port) == ("light", 0, None)
    (project / "__main__.py").touch()
    assert resolve_config(project, ".").name == project.name


def test_modules_and_programs_need_no_existing_file(project: Path) -> None:
    module = resolve_config(project, "pkg.train", "x", module=True)
    assert (module.name, module.script.kind, module.script.args) == ("train", "module", ["x"])
    program = resolve_config(project, "./go.sh", no_python=True)
    assert (program.name, program.script.kind) == ("go", "program")
    with pytest.raises(ConfigError, match="-m and --no-python cannot be combined"):
        resolve_config(project, "x", module=True, no_python=True)


def test_plain_is_for_one_process_only(project: Path) -> None:
    assert not resolve_config(project, "train.py").script.plain
    assert resolve_config(project, "train.py", plain=True, environment=["RANK=7"]).script.plain
    with pytest.raises(ConfigError, match="--plain starts one process, but 2 ranks were requested"):
        resolve_config(project, "train.py", plain=True, devices="cpu:2")
    (project / "rankdeck.toml").write_text('[scripts.alone]\nrun = "train.py"\nplain = true\n')
    assert resolve_config(project, entry="alone").script.plain
    assert not resolve_config(project, entry="alone", nproc_per_node="2").script.plain


@pytest.mark.parametrize(
    ("devices", "nproc", "ranks"),
    [
        (None, None, 1),
        (None, "3", 3),
        ("cpu:4", None, 4),
        ("cpu:4", "4", 4),
        ("cpu:4", "auto", 4),
        ("gpu:0,2", None, 1),
        ("gpu:0,2", "gpu", 2),
        ("gpu:0,2", "auto", 2),
        (None, "cpu", os.cpu_count()),
    ],
)
def test_devices_and_nproc_set_the_number_of_ranks(
    project: Path, devices: str | None, nproc: str | None, ranks: int
) -> None:
    config = resolve_config(project, "train.py", devices=devices, nproc_per_node=nproc)
    assert (config.script.ranks, config.devices) == (ranks, devices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"devices": "cpu:4", "nproc_per_node": "2"},
            "cpu:4 means 4 ranks, but the requested number of ranks is 2",
        ),
        ({"nproc_per_node": "0"}, "is not a number of ranks"),
        ({"nproc_per_node": "two"}, "is not a number of ranks"),
        ({"nproc_per_node": "xpu"}, "is not a number of ranks"),
        ({"devices": "gpus"}, "is not a valid device selection"),
        ({"environment": ["A"]}, "--env A does not have the form NAME=VALUE"),
        ({"environment": ["=b"]}, "--env =b does not have the form NAME=VALUE"),
        ({"python": "no/python"}, "there is no Python at no/python"),
        ({"entry": "small"}, "has no rankdeck.toml"),
        ({"python": ""}, "--python does not specify an interpreter"),
        ({"python": "/bin/ls"}, "/bin/ls is not a Python interpreter"),
        ({"name": "last"}, "is reserved for the newest run"),
        ({"name": "x" * 121}, "This name has 121 characters, but the limit is 120."),
        ({"environment": ["RANK=3"]}, "Rankdeck sets RANK for every rank, so you cannot set it to 3"),
        ({"environment": ["WORLD_SIZE=3"]}, "Rankdeck sets WORLD_SIZE for"),
        ({"environment": ["RANKDECK_RUN=x"]}, "Rankdeck sets RANKDECK_RUN for"),
        (
            {"environment": ["CUDA_VISIBLE_DEVICES=1"], "devices": "cpu:1"},
            "Rankdeck sets CUDA_VISIBLE_DEVICES for",
        ),
    ],
)
def test_invalid_options_are_refused_with_a_message(
    project: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RankdeckError, match=message) as refused:
        resolve_config(project, "train.py", **options)
    assert refused.value.exit_code == 2 and refused.value.advice


def test_a_missing_script_is_refused_with_a_suggestion(project: Path) -> None:
    for typed, advice in {
        "trian.py": 'Did you mean "train.py"?',
        "elsewhere/x.sh": "This folder contains train.py.",
        "digits-ddp": "This is a preset. Train it with: rankdeck train digits-ddp",
    }.items():
        with pytest.raises(ConfigError) as refused:
            resolve_config(project, typed)
        assert refused.value.advice == advice and refused.value.problem.path == "script.run"
    with pytest.raises(ConfigError, match="needs a script"):
        resolve_config(project)


ENTRY_FILE = """\
[run]
python = "theirs"

[scripts.small]
run = "train.py"
args = ["--lr", "1"]
ranks = 2
environment = { A = "1", B = "1" }
observe = "full"
max_restarts = 3

[scripts.mod]
run = "pkg.mod"
kind = "module"
python = "other"
"""


def test_typed_options_override_the_entry(project: Path) -> None:
    (project / "rankdeck.toml").write_text(ENTRY_FILE)
    theirs, other = python_at(project / "theirs"), python_at(project / "other")
    config = resolve_config(project, "--more", entry="small", environment=["B=2=3"])
    table = config.script
    assert (config.name, table.args, table.ranks) == ("small", ["--lr", "1", "--more"], 2)
    assert table.environment == {"A": "1", "B": "2=3"}
    assert (table.observe, table.max_restarts) == ("full", 3)
    assert (table.python, table.python_source) == (str(theirs), "rankdeck.toml")
    module = resolve_config(project, entry="mod").script
    assert (module.kind, module.python) == ("module", str(other))
    assert resolve_config(project, entry="small", observe="check").script.observe == "check"
    typed = resolve_config(project, entry="small", devices="cpu:4", observe="none", max_restarts=0, name="n")
    assert (typed.script.ranks, typed.script.observe, typed.script.max_restarts) == (4, "none", 0)
    assert typed.name == "n"
    assert resolve_config(project, entry="small", nproc_per_node="5").script.ranks == 5
    assert resolve_config(project, "train.py").script.python == str(theirs)
    assert resolve_config(project, "train.py", python=str(other)).script.python == str(other)


def test_rankdeck_toml_in_the_folder_of_the_script_is_read(project: Path, tmp_path: Path) -> None:
    (project / "rankdeck.toml").write_text('[run]\npython = "theirs"\n')
    theirs = python_at(project / "theirs")
    assert resolve_config(tmp_path, "project/train.py").script.python == str(theirs)


def test_variables_that_ranks_inherit_can_be_set(project: Path) -> None:
    variables = [
        "OMP_NUM_THREADS=3",
        "PYTHONPATH=x",
        "CUDA_VISIBLE_DEVICES=1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE=",
    ]
    table = resolve_config(project, "train.py", environment=variables).script
    assert [f"{name}={value}" for name, value in table.environment.items()] == variables


def test_an_interpreter_can_have_any_name(project: Path) -> None:
    wrapper = project / "in-container"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert resolve_config(project, "train.py", python="in-container").script.python == str(wrapper)


def test_an_invalid_entry_is_only_a_note_unless_it_is_used(project: Path) -> None:
    (project / "rankdeck.toml").write_text(f"{ENTRY_FILE}\n[scripts.bad]\nrnks = 2\n")
    python_at(project / "theirs")
    for options in ({"command": ["train.py"]}, {"command": [], "entry": "small"}):
        config, chosen = script_config(RunOptions(**options), folder=project, environ={"PATH": ""})
        assert config.script.run == "train.py"
        (note,) = chosen.notes
        assert "scripts.bad" in note and "rankdeck.toml, line 1" in note and "The entry is ignored" in note
    with pytest.raises(ConfigError, match=r"scripts\.bad\.run is missing"):
        resolve_config(project, entry="bad")


@pytest.mark.parametrize(
    ("typed", "message", "advice"),
    [
        (["--nnodes=2"], "does not support --nnodes 2", "several hosts"),
        (["--rdzv_backend", "c10d"], "does not support --rdzv-backend c10d", "several hosts"),
        (["--node-rank", "1"], "does not support --node-rank 1", "several hosts"),
        (["--master_addr=10.0.0.1"], "does not support --master-addr 10.0.0.1", "several hosts"),
        (["-r", "3"], "does not support -r 3", "run's logs"),
        (["--run-path"], "does not support --run-path", "Leave it out"),
        (
            ["--nproc-per-nod", "2"],
            "No such option: --nproc-per-nod",
            "Did you mean --nproc-per-node?",
        ),
        (["--device", "cpu:2"], "No such option: --device", "Did you mean --devices?"),
        (["--epochs", "2"], "No such option: --epochs\nSee rankdeck run --help.", ""),
        (
            ["--entry", "small", "--epochs=2"],
            "No such option: --epochs",
            "Write further arguments for the entry's script after --, as in: -- --epochs",
        ),
        (["-"], "does not read the script from stdin", "Save the script to a file"),
        (["--observe", "lite"], "'lite' is not one of", "rankdeck run --help"),
    ],
)
def test_unsupported_options_are_refused_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], message: str, advice: str
) -> None:
    monkeypatch.chdir(project)
    done = rankdeck_in_process("run", *typed, "train.py", "--json", exit_code=2)
    assert done.out == "" and message in done.err and advice in done.err


def test_all_unsupported_options_are_reported_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    done = rankdeck_in_process("run", "--json", "--nnodes", "2", "--rdzv-id=3", "train.py", exit_code=2)
    assert [problem["path"] for problem in done.json["problems"]] == ["--nnodes", "--rdzv-id"]


@pytest.mark.parametrize(
    ("typed", "message", "advice"),
    [
        (["python", "train.py"], "python is not", "Leave it out, as in: rankdeck run train.py"),
        (["/usr/bin/python3.11", "train.py"], "python3.11 is not", "Leave it out"),
        (["torchrun", "train.py"], "torchrun is not", "Leave it out, as in: rankdeck run train.py"),
        (["train.sh"], "train.sh is not", "rankdeck run --no-python bash train.sh"),
        (["make", "train"], "make is not", "rankdeck run --no-python make ..."),
    ],
)
def test_other_programs_are_refused_with_the_command_that_runs_them(
    project: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], message: str, advice: str
) -> None:
    monkeypatch.chdir(project)
    (project / "train.sh").write_text("torchrun train.py\n", encoding="utf-8")
    done = rankdeck_in_process("run", *typed, exit_code=2)
    assert f"{message} a Python script." in done.err and advice in done.err


def test_hidden_commands_are_never_suggested() -> None:
    assert "meet" not in rankdeck_in_process("delete", "last", exit_code=2).err


def test_help_shows_no_python_types() -> None:
    help_text = rankdeck_in_process("run", "--help", exit_code=0).out
    assert "SCRIPT [ARGS]" in help_text and "list[" not in help_text


def test_options_without_effect_are_accepted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    harmless = ["--standalone", "--nnodes=1:1", "--node_rank", "0", "--tee", "3", "-t3", "-r=0"]
    harmless += ["--monitor-interval=1", "--start-method", "spawn", "--master-addr", "127.0.0.1"]
    done = rankdeck_in_process("run", *harmless, "gone.py", exit_code=2)
    assert "There is no script gone.py" in done.err
