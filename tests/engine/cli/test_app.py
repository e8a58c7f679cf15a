"""The table of commands: quick to start, and every mistake ends in words and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rankdeck import rundir
from rankdeck.base.errors import RunNotFoundError
from rankdeck.cli.app import BROKEN_PIPE
from rankdeck.cli.options import find_run
from rankdeck.config import from_dict
from tests.helpers.cli import rankdeck, rankdeck_here
from tests.helpers.written_run import WrittenRun

FIVE = """\
[model]
use = "gtp"

[train]
step = 50
global_batch = "many"
precision = "fp31"

[strategy]
use = "ddp"
parallel_loss = true
"""


@pytest.fixture
def five(tmp_path: Path) -> Path:
    file = tmp_path / "five.toml"
    file.write_text(FIVE)
    return file


def spoken(*argv: str | Path) -> tuple[int, str, str]:
    done = rankdeck_here(*argv)
    assert "Traceback" not in done.out + done.err
    return done.code, done.out, done.err


def told(*argv: str | Path) -> tuple[int, list[dict[str, Any]]]:
    code, out, err = spoken(*argv)
    assert err == ""
    return code, json.loads(out)["problems"]


@pytest.mark.parametrize("command", ["validate", "train"])
def test_five_mistakes_are_five_messages_on_stderr_with_file_and_line(five: Path, command: str) -> None:
    code, out, err = spoken(command, five)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 10
    assert lines[0] == f'There is no model called "gtp" ({five}, line 2).'
    assert lines[3] == 'Did you mean "steps"?'


def test_with_json_the_problems_are_one_document_on_stdout(five: Path) -> None:
    code, problems = told("validate", five, "--json")
    assert code == 2
    assert [problem["line"] for problem in problems] == [2, 5, 6, 7, 11]
    said = {"code", "path", "line", "message", "advice", "cure", "evidence", "templates", "arguments"}
    assert all(set(problem) == said for problem in problems)
    assert all(problem["advice"] for problem in problems)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["trian"], "Did you mean 'train'?"),
        (["train"], "Missing argument 'CONFIG'"),
        (["train", "digits-mlp", "--strateg", "ddp"], "Did you mean --strategy?"),
        (["train", "digits-mlp", "extra"], "extra"),
        (["train", "digits-mlp", "--set"], "--set"),
        (["export", "last", "--to", "xml", "file"], "'safetensors', 'csv', 'json'"),
        (["export", "last", "file"], "--to"),
        (["show", "--nonsense"], "--nonsense"),
    ],
)
def test_a_mistyped_command_ends_with_2_and_says_where_to_look(argv: list[str], words: str) -> None:
    code, out, err = spoken(*argv)
    assert (code, out) == (2, "")
    assert words in err and "--help" in err
    code, problems = told(argv[0], "--json", *argv[1:])
    assert code == 2 and problems[0]["code"] == "usage"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["train", "digits-mpl"], "unknown-config", 'Did you mean "digits-mlp"?'),
        (["validate", "x" * 5000], "unknown-config", "Presets:"),
        (["validate", "~nobody-of-this-name/x.toml"], "unknown-config", "Presets:"),
        (["validate", "/"], "unreadable", "Name the TOML file"),
        (["validate", ""], "unknown-config", "Presets:"),
        (["train", "digits-mlp", "--devices", "tpu:1"], "device", "cpu:N"),
        (["train", "digits-mlp", "--devices", ""], "device", "cpu:N"),
        (["train", "digits-mlp", "--strategy", ""], "unknown-choice", "ddp"),
        (["train", "digits-mlp", "--strategy", "dpp"], "unknown-choice", "dp"),
        (["train", "digits-mlp", "--set", "train.steps=many"], "wrong-value", "whole number"),
        (["train", "digits-ddp", "--devices", "cpu:5"], "batch", "Use 30 or 35"),
        (["plan", "digits-mlp", "--strategy", "ddpp"], "unknown-strategy", 'Did you mean "ddp"?'),
        (["show", "nothing"], "run-not-found", "no run yet"),
        (["show", "x" * 5000], "run-not-found", "no run yet"),
        (["show", "~nobody-of-this-name"], "run-not-found", "no run yet"),
        (["watch", "last"], "run-not-found", "rankdeck train"),
        (["stop", "nothing"], "run-not-found", "no run yet"),
        (["export", "last", "--to", "csv", "f"], "run-not-found", "rankdeck train"),
    ],
)
def test_a_wrong_argument_ends_with_2_and_advice(argv: list[str], code: str, words: str) -> None:
    exit_code, out, err = spoken(*argv)
    assert (exit_code, out) == (2, "") and words in err
    exit_code, problems = told(*argv, "--json")
    assert (exit_code, problems[0]["code"]) == (2, code)
    assert words in problems[0]["advice"]


def test_a_file_beside_the_mistyped_one_is_suggested(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(five.parent)
    assert 'Did you mean "five.toml"?' in spoken("validate", "fiev.toml")[2]
    assert f'Did you mean "{five}"?' in spoken("validate", five.with_name("fife.toml"))[2]


def test_a_presets_name_works_and_its_paths_start_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spoken("validate", "digits-mlp")[0] == 0
    monkeypatch.chdir(tmp_path)
    code, out, err = spoken(
        "train", "resnet50-images", "--devices", "cpu:1", "--set", "data.args.path=pictures",
        "--set", "train.precision=fp32",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert str(tmp_path / "pictures") in err


def test_a_valid_configuration_is_said_to_be_one() -> None:
    assert "digits-ddp is valid: ddp on auto" in spoken("validate", "digits-ddp")[1]
    code, out, _ = spoken("validate", "digits-ddp", "--json")
    assert (code, json.loads(out)) == (0, {"problems": []})


def test_strategies_and_presets_are_listed_with_what_they_teach() -> None:
    code, out, _ = spoken("strategies")
    assert code == 0 and all(name in out for name in ("single", "dp", "ddp", "parallel_loss"))
    assert "strategy.sync = native (native, " in out
    code, out, _ = spoken("presets")
    assert code == 0 and "gpt-dp-parallel-loss" in out and "Learn from it" in out


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["train", "--help"]])
def test_help_is_a_result(argv: list[str]) -> None:
    code, out, err = spoken(*argv)
    assert (code, err) == (0, "") and "Usage" in out
    assert "<bool>" not in out, "a flag takes no value"


def test_install_is_in_the_help_and_asks_for_a_host() -> None:
    assert "Install Rankdeck on another host" in spoken("--help")[1]
    assert "--python" in spoken("--host", "nowhere.invalid", "install", "--help")[1]
    code, _, err = spoken("install")
    assert code == 2 and "As in: rankdeck --host NAME install" in err


def test_the_version_is_told() -> None:
    code, out, _ = spoken("--version")
    assert code == 0 and out.startswith("rankdeck ")


def used_s(*args: str) -> float:
    """Of a processor: by the clock on the wall a command waits for whatever else the machine does."""
    before = os.times()
    subprocess.run([sys.executable, "-P", *args], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_is_cheap_beside_torch_and_no_command_but_a_rank_needs_it(tmp_path: Path) -> None:
    script = (
        "import json, sys\n"
        "from rankdeck.cli.app import run\n"
        "for argv in json.loads(sys.argv[1]):\n"
        "    assert run(argv) == 0, argv\n"
        "    folds = {'show', 'watch'} & set(argv)\n"
        "    heavy = {'torch', 'sklearn', *(() if folds else ('numpy',))} & set(sys.modules)\n"
        "    assert not heavy, (argv, heavy)\n"
    )
    WrittenRun(tmp_path / "rankdeck-runs").end()
    help_s = min(used_s("-m", "rankdeck", "--help") for _ in range(2))
    assert 0 < help_s < used_s("-c", "import torch") / 3
    without_numpy = (["presets"], ["strategies"], ["runs"], ["validate", "gpt-dp"])
    commands = json.dumps([*without_numpy, ["show", "last"], ["watch", "last"]])
    subprocess.run([sys.executable, "-P", "-c", script, commands], check=True, capture_output=True)


def test_what_is_mistyped_of_a_plan_is_refused_before_torch_is_imported() -> None:
    said = {
        ("--devices", "2 x A1000"): "is no GPU that is known here",
        ("--strategy", "ddpp"): "is not a strategy",
        ("--capacity", "lots"): "is not a size",
        ("--fit-batch",): "--capacity 24GiB",
    }
    script = (
        "import json, sys\n"
        "from rankdeck.cli.app import run\n"
        "for options in json.loads(sys.argv[1]):\n"
        "    code = run(['plan', 'digits-mlp', '--devices', 'cpu:2', *options])\n"
        "    print(code, 'torch' in sys.modules)\n"
        "    print(file=sys.stderr, end='\\0')\n"
    )
    argv = [sys.executable, "-P", "-c", script, json.dumps(list(said))]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["2 False"] * len(said), done.stderr
    for words, err in zip(said.values(), done.stderr.split("\0"), strict=False):
        assert words in err and "Traceback" not in err


def test_an_error_of_the_system_is_told_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKDECK_RUNS", str(tmp_path / "file"))
    code, _, err = spoken("train", "digits-mlp", "--devices", "cpu:1")
    assert code in (2, 3) and "--runs" in err


@pytest.mark.parametrize("argv", ["--help", "presets", "strategies", "runs --json"])
def test_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path: Path, argv: str) -> None:
    """stdout is a pipe whose other end is closed before the command writes a single byte."""
    read_end, write_end = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "rankdeck", *argv.split()],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        os.close(write_end)
        os.close(read_end)
        _, err = command.communicate(timeout=30)
    assert err == ""
    assert command.returncode == BROKEN_PIPE


def test_both_ways_to_start_it_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("rankdeck")
    said = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == rankdeck("--version", code=0).out


def test_ctrl_c_while_the_command_is_still_loading_is_no_traceback() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder

class Interrupted(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from rankdeck.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "")


def test_a_command_began_when_it_was_started() -> None:
    code = "from rankdeck.cli.until_end import command_started; print(command_started())"
    before = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 0.05 < float(done.stdout) < time.time()


def test_json_that_a_full_disk_refuses_is_told_on_stderr() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rankdeck", "validate", "digits-mlp", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "No space left on device.\n")


@pytest.mark.parametrize(
    ("encoding", "in_words", "in_json"),
    [
        ("ascii", r"\U0001f680", r"\ud83d\ude80"),
        pytest.param("latin-1", r"\U0001f680", r"\ud83d\ude80", marks=pytest.mark.slow),
        ("utf-8", "🚀", "🚀"),
    ],
)
def test_signs_that_the_terminal_does_not_know_are_spelled_out(
    encoding: str, in_words: str, in_json: str
) -> None:
    WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "🚀 up").end()
    for args, shown in ((["runs"], in_words), (["runs", "--json"], in_json)):
        command = [sys.executable, "-m", "rankdeck", *args]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0 and shown in done.stdout.decode(encoding), done.stderr


def test_a_tag_needs_a_word() -> None:
    WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "one").end()
    assert spoken("label", "one", "--tag", " ")[::2] == (2, "A tag needs a word.\nAs in --tag baseline.\n")


def test_a_presets_name_finds_the_run_that_it_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = rundir.default_runs_folder()
    for preset in ("digits-mlp", "gpt-dp"):
        config = from_dict({}, folder=tmp_path)
        hidden = rundir.create(runs, config, {"command_line": ["rankdeck", "train", preset]})
        hidden.path.rename(rundir.final_path(hidden))
    (made,) = [run for run in rundir.list_runs(runs) if "digits-mlp" in run.environment()["command_line"]]
    assert find_run("digits-mlp").path == made.path
    with pytest.raises(RunNotFoundError):
        find_run("gpt-fsdp")
