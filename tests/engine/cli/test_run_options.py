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
from rankdeck.cli.torchrun import split
from rankdeck.config.script import ScriptConfig
from tests.engine.config.test_environments import python_at
from tests.helpers.cli import rankdeck_here

VALUES = {"--devices", "--nproc-per-node", "--env"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import torch\n")
    return folder


def configured(folder: Path, *words: str, **options: Any) -> ScriptConfig:
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
    assert split(typed, VALUES) == (ours, theirs)


def test_a_script_alone_is_one_rank_with_its_words_as_they_are(project: Path) -> None:
    config = configured(project, "train.py", "--lr", "", "a b", "--")
    assert config.name == "train" and config.devices is None
    table = config.script
    assert (table.run, table.kind, table.args) == ("train.py", "file", ["--lr", "", "a b", "--"])
    assert (table.folder, table.python, table.ranks) == (str(project), sys.executable, 1)
    assert (table.observe, table.max_restarts, table.master_port) == ("light", 0, None)
    (project / "__main__.py").touch()
    assert configured(project, ".").name == project.name


def test_modules_and_programs_need_no_file(project: Path) -> None:
    module = configured(project, "pkg.train", "x", module=True)
    assert (module.name, module.script.kind, module.script.args) == ("train", "module", ["x"])
    program = configured(project, "./go.sh", no_python=True)
    assert (program.name, program.script.kind) == ("go", "program")
    with pytest.raises(ConfigError, match="exclude each other"):
        configured(project, "x", module=True, no_python=True)


def test_one_process_is_as_behind_python_where_that_is_asked_for(project: Path) -> None:
    assert not configured(project, "train.py").script.plain
    assert configured(project, "train.py", plain=True, environment=["RANK=7"]).script.plain
    with pytest.raises(ConfigError, match="--plain starts one process, and 2 are asked for"):
        configured(project, "train.py", plain=True, devices="cpu:2")
    (project / "rankdeck.toml").write_text('[scripts.alone]\nrun = "train.py"\nplain = true\n')
    assert configured(project, entry="alone").script.plain
    assert not configured(project, entry="alone", nproc_per_node="2").script.plain


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
def test_devices_and_nproc_say_the_number_of_ranks(
    project: Path, devices: str | None, nproc: str | None, ranks: int
) -> None:
    config = configured(project, "train.py", devices=devices, nproc_per_node=nproc)
    assert (config.script.ranks, config.devices) == (ranks, devices)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"devices": "cpu:4", "nproc_per_node": "2"}, "cpu:4 means 4 ranks, and 2 are asked for"),
        ({"nproc_per_node": "0"}, "is not a number of ranks"),
        ({"nproc_per_node": "two"}, "is not a number of ranks"),
        ({"nproc_per_node": "xpu"}, "is not a number of ranks"),
        ({"devices": "gpus"}, "is not a choice of devices"),
        ({"environment": ["A"]}, "--env A is not NAME=VALUE"),
        ({"environment": ["=b"]}, "--env =b is not NAME=VALUE"),
        ({"python": "no/python"}, "there is no Python at no/python"),
        ({"entry": "small"}, "has no rankdeck.toml"),
        ({"python": ""}, "--python names no interpreter"),
        ({"python": "/bin/ls"}, "/bin/ls is no Python"),
        ({"name": "last"}, "names the newest run"),
        ({"name": "x" * 121}, "This name has 121 characters; at most 120 are kept."),
        ({"environment": ["RANK=3"]}, "RANK is set for every rank, and would not be 3"),
        ({"environment": ["WORLD_SIZE=3"]}, "WORLD_SIZE is set"),
        ({"environment": ["RANKDECK_RUN=x"]}, "RANKDECK_RUN is set"),
        ({"environment": ["CUDA_VISIBLE_DEVICES=1"], "devices": "cpu:1"}, "CUDA_VISIBLE_DEVICES is set"),
    ],
)
def test_what_cannot_be_is_refused_in_words(project: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(RankdeckError, match=said) as refused:
        configured(project, "train.py", **options)
    assert refused.value.exit_code == 2 and refused.value.advice


def test_a_script_that_is_not_there_is_told_what_may_be_meant(project: Path) -> None:
    for typed, advice in {
        "trian.py": 'Did you mean "train.py"?',
        "elsewhere/x.sh": "This folder has train.py.",
        "digits-ddp": "A preset is trained with: rankdeck train digits-ddp",
    }.items():
        with pytest.raises(ConfigError) as refused:
            configured(project, typed)
        assert refused.value.advice == advice and refused.value.problem.path == "script.run"
    with pytest.raises(ConfigError, match="needs a script"):
        configured(project)


ENTRY = """\
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


def test_an_entry_says_what_is_not_typed_and_what_is_typed_wins(project: Path) -> None:
    (project / "rankdeck.toml").write_text(ENTRY)
    theirs, other = python_at(project / "theirs"), python_at(project / "other")
    config = configured(project, "--more", entry="small", environment=["B=2=3"])
    table = config.script
    assert (config.name, table.args, table.ranks) == ("small", ["--lr", "1", "--more"], 2)
    assert table.environment == {"A": "1", "B": "2=3"}
    assert (table.observe, table.max_restarts) == ("full", 3)
    assert (table.python, table.python_source) == (str(theirs), "rankdeck.toml")
    module = configured(project, entry="mod").script
    assert (module.kind, module.python) == ("module", str(other))
    typed = configured(project, entry="small", devices="cpu:4", observe="none", max_restarts=0, name="n")
    assert (typed.script.ranks, typed.script.observe, typed.script.max_restarts) == (4, "none", 0)
    assert typed.name == "n"
    assert configured(project, entry="small", nproc_per_node="5").script.ranks == 5
    assert configured(project, "train.py").script.python == str(theirs)
    assert configured(project, "train.py", python=str(other)).script.python == str(other)


def test_the_file_beside_a_script_elsewhere_counts_too(project: Path, tmp_path: Path) -> None:
    (project / "rankdeck.toml").write_text('[run]\npython = "theirs"\n')
    theirs = python_at(project / "theirs")
    assert configured(tmp_path, "project/train.py").script.python == str(theirs)


def test_what_a_rank_keeps_of_a_person_s_variables_may_be_given(project: Path) -> None:
    given = ["OMP_NUM_THREADS=3", "PYTHONPATH=x", "CUDA_VISIBLE_DEVICES=1", "TORCHELASTIC_SIGNALS_TO_HANDLE="]
    table = configured(project, "train.py", environment=given).script
    assert [f"{name}={value}" for name, value in table.environment.items()] == given


def test_an_interpreter_may_have_any_name(project: Path) -> None:
    wrapper = project / "in-container"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    assert configured(project, "train.py", python="in-container").script.python == str(wrapper)


def test_an_entry_that_is_wrong_and_not_used_stops_nothing(project: Path) -> None:
    (project / "rankdeck.toml").write_text(f"{ENTRY}\n[scripts.bad]\nrnks = 2\n")
    python_at(project / "theirs")
    for options in ({"words": ["train.py"]}, {"words": [], "entry": "small"}):
        config, chosen = script_config(RunOptions(**options), folder=project, environ={"PATH": ""})
        assert config.script.run == "train.py"
        (note,) = chosen.notes
        assert "scripts.bad" in note and "rankdeck.toml, line 1" in note and "It is not used" in note
    with pytest.raises(ConfigError, match=r"scripts\.bad\.run is missing"):
        configured(project, entry="bad")


@pytest.mark.parametrize(
    ("typed", "said", "advice"),
    [
        (["--nnodes=2"], "does not take --nnodes 2", "several hosts"),
        (["--rdzv_backend", "c10d"], "does not take --rdzv-backend c10d", "several hosts"),
        (["--node-rank", "1"], "does not take --node-rank 1", "several hosts"),
        (["--master_addr=10.0.0.1"], "does not take --master-addr 10.0.0.1", "several hosts"),
        (["-r", "3"], "does not take -r 3", "run's logs"),
        (["--run-path"], "does not take --run-path", "Leave it out"),
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
            "More arguments for the entry's script stand behind --, as in: -- --epochs",
        ),
        (["-"], "takes no script from stdin", "Write it into a file"),
        (["--observe", "lite"], "'lite' is not one of", "rankdeck run --help"),
    ],
)
def test_options_that_cannot_be_taken_are_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], said: str, advice: str
) -> None:
    monkeypatch.chdir(project)
    done = rankdeck_here("run", *typed, "train.py", "--json", code=2)
    assert done.out == "" and said in done.err and advice in done.err


def test_all_refused_options_are_named_at_once_and_as_json_where_asked(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    done = rankdeck_here("run", "--json", "--nnodes", "2", "--rdzv-id=3", "train.py", code=2)
    assert [problem["path"] for problem in done.json["problems"]] == ["--nnodes", "--rdzv-id"]


@pytest.mark.parametrize(
    ("typed", "said", "advice"),
    [
        (["python", "train.py"], "python is not", "Leave it out, as in: rankdeck run train.py"),
        (["/usr/bin/python3.11", "train.py"], "python3.11 is not", "Leave it out"),
        (["torchrun", "train.py"], "torchrun is not", "Leave it out, as in: rankdeck run train.py"),
        (["train.sh"], "train.sh is not", "rankdeck run --no-python bash train.sh"),
        (["make", "train"], "make is not", "rankdeck run --no-python make ..."),
    ],
)
def test_what_is_no_python_script_is_told_how_it_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], said: str, advice: str
) -> None:
    monkeypatch.chdir(project)
    (project / "train.sh").write_text("torchrun train.py\n", encoding="utf-8")
    done = rankdeck_here("run", *typed, code=2)
    assert f"{said} a Python script." in done.err and advice in done.err


def test_a_hidden_command_is_never_meant() -> None:
    assert "meet" not in rankdeck_here("delete", "last", code=2).err


def test_help_speaks_of_no_types_of_python() -> None:
    told = rankdeck_here("run", "--help", code=0).out
    assert "SCRIPT [ARGS]" in told and "list[" not in told


def test_options_that_change_nothing_here_are_taken(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    harmless = ["--standalone", "--nnodes=1:1", "--node_rank", "0", "--tee", "3", "-t3", "-r=0"]
    harmless += ["--monitor-interval=1", "--start-method", "spawn", "--master-addr", "127.0.0.1"]
    done = rankdeck_here("run", *harmless, "gone.py", code=2)
    assert "There is no script gone.py" in done.err
