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

from rankdeck import run_dir
from rankdeck.base.errors import RunNotFoundError
from rankdeck.cli.app import EXIT_BROKEN_PIPE
from rankdeck.cli.options import find_run
from rankdeck.config import from_dict
from tests.helpers.cli import rankdeck, rankdeck_in_process
from tests.helpers.written_run import WrittenRun

FIVE_MISTAKES = """\
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
    file.write_text(FIVE_MISTAKES)
    return file


def run_cli(*argv: str | Path) -> tuple[int, str, str]:
    done = rankdeck_in_process(*argv)
    assert "Traceback" not in done.out + done.err
    return done.exit_code, done.out, done.err


def run_cli_json(*argv: str | Path) -> tuple[int, list[dict[str, Any]]]:
    code, out, err = run_cli(*argv)
    assert err == ""
    return code, json.loads(out)["problems"]


@pytest.mark.parametrize("command", ["validate", "train"])
def test_each_mistake_is_one_message_with_file_and_line(five: Path, command: str) -> None:
    code, out, err = run_cli(command, five)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert len(lines) == 10
    assert lines[0] == f'There is no model called "gtp" ({five}, line 2).'
    assert lines[3] == 'Did you mean "steps"?'


def test_problems_as_json_are_one_document_on_stdout(five: Path) -> None:
    code, problems = run_cli_json("validate", five, "--json")
    assert code == 2
    assert [problem["line"] for problem in problems] == [2, 5, 6, 7, 11]
    keys = {"code", "path", "line", "message", "advice", "cure", "evidence", "templates", "arguments"}
    assert all(set(problem) == keys for problem in problems)
    assert all(problem["advice"] for problem in problems)


@pytest.mark.parametrize(
    ("argv", "message"),
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
def test_a_mistyped_command_exits_with_2_and_refers_to_help(argv: list[str], message: str) -> None:
    code, out, err = run_cli(*argv)
    assert (code, out) == (2, "")
    assert message in err and "--help" in err
    code, problems = run_cli_json(argv[0], "--json", *argv[1:])
    assert code == 2 and problems[0]["code"] == "usage"


@pytest.mark.parametrize(
    ("argv", "code", "advice"),
    [
        (["train", "digits-mpl"], "unknown-config", 'Did you mean "digits-mlp"?'),
        (["validate", "x" * 5000], "unknown-config", "Presets:"),
        (["validate", "~nobody-of-this-name/x.toml"], "unknown-config", "Presets:"),
        (["validate", "/"], "unreadable", "Specify the TOML file"),
        (["validate", ""], "unknown-config", "Presets:"),
        (["train", "digits-mlp", "--devices", "tpu:1"], "device", "cpu:N"),
        (["train", "digits-mlp", "--devices", ""], "device", "cpu:N"),
        (["train", "digits-mlp", "--strategy", ""], "unknown-choice", "ddp"),
        (["train", "digits-mlp", "--strategy", "dpp"], "unknown-choice", "dp"),
        (["train", "digits-mlp", "--set", "train.steps=many"], "wrong-value", "whole number"),
        (["train", "digits-ddp", "--devices", "cpu:5"], "batch", "Use 30 or 35"),
        (["plan", "digits-mlp", "--strategy", "ddpp"], "unknown-strategy", 'Did you mean "ddp"?'),
        (["show", "nothing"], "run-not-found", "no runs yet"),
        (["show", "x" * 5000], "run-not-found", "no runs yet"),
        (["show", "~nobody-of-this-name"], "run-not-found", "no runs yet"),
        (["watch", "last"], "run-not-found", "rankdeck train"),
        (["stop", "nothing"], "run-not-found", "no runs yet"),
        (["export", "last", "--to", "csv", "f"], "run-not-found", "rankdeck train"),
    ],
)
def test_a_wrong_argument_exits_with_2_and_advice(argv: list[str], code: str, advice: str) -> None:
    exit_code, out, err = run_cli(*argv)
    assert (exit_code, out) == (2, "") and advice in err
    exit_code, problems = run_cli_json(*argv, "--json")
    assert (exit_code, problems[0]["code"]) == (2, code)
    assert advice in problems[0]["advice"]


def test_a_similar_file_in_the_same_folder_is_suggested(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(five.parent)
    assert 'Did you mean "five.toml"?' in run_cli("validate", "fiev.toml")[2]
    assert f'Did you mean "{five}"?' in run_cli("validate", five.with_name("fife.toml"))[2]


def test_paths_of_a_preset_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_cli("validate", "digits-mlp")[0] == 0
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli(
        "train", "resnet50-images", "--devices", "cpu:1", "--set", "data.args.path=pictures",
        "--set", "train.precision=fp32",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert str(tmp_path / "pictures") in err


def test_validate_accepts_a_valid_configuration() -> None:
    assert "digits-ddp is valid: ddp on auto" in run_cli("validate", "digits-ddp")[1]
    code, out, _ = run_cli("validate", "digits-ddp", "--json")
    assert (code, json.loads(out)) == (0, {"problems": []})


def test_strategies_and_presets_are_listed_with_descriptions() -> None:
    code, out, _ = run_cli("strategies")
    assert code == 0 and all(name in out for name in ("single", "dp", "ddp", "parallel_loss"))
    assert "strategy.sync = native (native, " in out
    code, out, _ = run_cli("presets")
    assert code == 0 and "gpt-dp-parallel-loss" in out and "See how much of gpt-dp" in out


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["train", "--help"]])
def test_help_is_printed_on_stdout(argv: list[str]) -> None:
    code, out, err = run_cli(*argv)
    assert (code, err) == (0, "") and "Usage" in out
    assert "<bool>" not in out, "a flag takes no value"


def test_install_without_a_host_is_refused_with_advice() -> None:
    assert "Install Rankdeck on another host" in run_cli("--help")[1]
    assert "--python" in run_cli("--host", "nowhere.invalid", "install", "--help")[1]
    code, _, err = run_cli("install")
    assert code == 2 and "For example: rankdeck --host NAME install" in err


def test_the_version_is_printed() -> None:
    code, out, _ = run_cli("--version")
    assert code == 0 and out.startswith("rankdeck ")


def cpu_time_s(*args: str) -> float:
    """Of a processor: by the clock on the wall a command waits for whatever else the machine does."""
    before = os.times()
    subprocess.run([sys.executable, "-P", *args], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_is_fast_and_commands_do_not_import_torch(tmp_path: Path) -> None:
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
    help_s = min(cpu_time_s("-m", "rankdeck", "--help") for _ in range(2))
    assert 0 < help_s < cpu_time_s("-c", "import torch") / 3
    without_numpy = (["presets"], ["strategies"], ["runs"], ["validate", "gpt-dp"])
    commands = json.dumps([*without_numpy, ["show", "last"], ["watch", "last"]])
    subprocess.run([sys.executable, "-P", "-c", script, commands], check=True, capture_output=True)


def test_wrong_plan_options_are_refused_before_importing_torch() -> None:
    messages = {
        ("--devices", "2 x A1000"): "is not a known GPU",
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
    argv = [sys.executable, "-P", "-c", script, json.dumps(list(messages))]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["2 False"] * len(messages), done.stderr
    for message, err in zip(messages.values(), done.stderr.split("\0"), strict=False):
        assert message in err and "Traceback" not in err


def test_an_os_error_is_printed_without_a_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RANKDECK_RUNS", str(tmp_path / "file"))
    code, _, err = run_cli("train", "digits-mlp", "--devices", "cpu:1")
    assert code in (2, 3) and "--runs" in err


@pytest.mark.parametrize("argv", ["--help", "presets", "strategies", "runs --json"])
def test_a_closed_stdout_ends_the_command_silently(tmp_path: Path, argv: str) -> None:
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
    assert command.returncode == EXIT_BROKEN_PIPE


def test_the_script_and_the_module_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("rankdeck")
    version = subprocess.run([script, "--version"], capture_output=True, text=True, check=True).stdout
    assert version == rankdeck("--version", exit_code=0).out


def test_ctrl_c_during_imports_prints_no_traceback() -> None:
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


def test_the_start_time_of_a_command_is_that_of_its_process() -> None:
    code = "from rankdeck.cli.wait import command_start_time; print(command_start_time())"
    before = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert before - 0.05 < float(done.stdout) < time.time()


def test_json_that_cannot_be_written_is_reported_on_stderr() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "rankdeck", "validate", "digits-mlp", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "No space left on device.\n")


@pytest.mark.parametrize(
    ("encoding", "as_text", "in_json"),
    [
        ("ascii", r"\U0001f680", r"\ud83d\ude80"),
        pytest.param("latin-1", r"\U0001f680", r"\ud83d\ude80", marks=pytest.mark.slow),
        ("utf-8", "🚀", "🚀"),
    ],
)
def test_characters_missing_in_the_encoding_are_escaped(encoding: str, as_text: str, in_json: str) -> None:
    WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "🚀 up").end()
    for args, expected in ((["runs"], as_text), (["runs", "--json"], in_json)):
        command = [sys.executable, "-m", "rankdeck", *args]
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(command, capture_output=True, env=environment)
        assert done.returncode == 0 and expected in done.stdout.decode(encoding), done.stderr


def test_an_empty_tag_is_refused() -> None:
    WrittenRun(Path(os.environ["RANKDECK_RUNS"]), "one").end()
    assert run_cli("label", "one", "--tag", " ")[::2] == (
        2,
        "A tag must not be empty.\nFor example: --tag baseline\n",
    )


def test_a_preset_name_finds_the_newest_run_of_that_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = run_dir.default_runs_folder()
    for preset in ("digits-mlp", "gpt-dp"):
        config = from_dict({}, folder=tmp_path)
        hidden = run_dir.create_run_dir(runs, config, {"command_line": ["rankdeck", "train", preset]})
        hidden.path.rename(run_dir.final_path(hidden))
    (preset_run,) = [
        run for run in run_dir.list_runs(runs) if "digits-mlp" in run.environment()["command_line"]
    ]
    assert find_run("digits-mlp").path == preset_run.path
    with pytest.raises(RunNotFoundError):
        find_run("gpt-fsdp")
