"""What a Python caller may pass, and errors that speak of it; nothing is started here."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankdeck
from rankdeck.api import arguments
from rankdeck.base.errors import RankdeckError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")


def error_text(error: RankdeckError) -> str:
    """All that a traceback shows of it."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize(
    ("script", "args", "options", "expected"),
    [
        (None, (), {}, "script = None is not the path of a script."),
        (["train.py", "--lr"], (), {}, "script = ['train.py', '--lr'] is not the path of a script."),
        ("", (), {}, "script = '' is not the path of a script."),
        ("trian.py", (), {}, 'Did you mean "train.py"?'),
        ("train.py", (None,), {}, "args[0] = None is neither a string nor a number."),
        ("train.py", ("--lr", [1, 2]), {}, "args[1] = [1, 2] is neither a string nor a number."),
        ("train.py", (np.arange(2),), {}, "args[0] = array([0, 1]) is neither a string nor a number."),
        ("train.py", (), {"observe": "lots"}, "observe = 'lots' is not a valid observe level."),
        ("train.py", (), {"ranks": 0}, "ranks = 0 is not a valid number of ranks."),
        ("train.py", (), {"ranks": 1025}, "ranks = 1025 is not a valid number of ranks."),
        ("train.py", (), {"ranks": True}, "ranks = True is not a valid number of ranks."),
        ("train.py", (), {"ranks": "many"}, "ranks = 'many' is not a valid number of ranks."),
        ("train.py", (), {"max_restarts": -1}, "max_restarts = -1 is not a valid number of restarts."),
        ("train.py", (), {"max_restarts": "x"}, "max_restarts = 'x' is not a valid number of restarts."),
        (
            "train.py",
            (),
            {"devices": 2},
            'devices = 2 is not a string.\nPass a string, as in devices="cpu:2".',
        ),
        ("train.py", (), {"python": "nowhere"}, "python: there is no Python at nowhere."),
        ("train.py", (), {"name": 3}, "name = 3 is not a string."),
        ("train.py", (), {"runs": 3}, "runs = 3 is not a string."),
        ("train.py", (), {"runs": "train.py"}, "Choose another folder with runs."),
        ("train.py", (), {"env": ["A=1"]}, "env = ['A=1'] is not a dictionary of environment variables."),
        ("train.py", (), {"env": {"A": None}}, "env['A'] = None is neither a string nor a number."),
        ("train.py", (), {"env": {"A=B": "x"}}, "'A=B' is not a valid name."),
    ],
)
def test_wrong_arguments_of_run_are_refused_by_name(
    script: Any, args: tuple[Any, ...], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RankdeckError) as raised:
        rankdeck.run(script, *args, progress=False, **options)
    message = error_text(raised.value)
    assert expected in message and not message.endswith("\n")
    assert "--" not in message.replace('"--lr"', "").replace("'--lr'", "") and "rankdeck run" not in message


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, {}, "config = {} defines nothing to train."),
        (None, {}, "config = None is not a configuration."),
        (["digits-mlp"], {}, "config = ['digits-mlp'] is not a configuration."),
        (
            {"train": {"steps": datetime.date(2020, 1, 1)}},
            {},
            "train.steps = datetime.date(2020, 1, 1) cannot be expressed",
        ),
        ({"train": 3}, {}, "train must be a table."),
        ({"model": {"use": error_text}}, {}, 'refer to it as "mine.py:error_text"'),
        (
            {"model": {"use": lambda: None}},
            {},
            "is an object in this process, but each rank is a separate process",
        ),
        (
            {"data": {"use": object()}},
            {},
            'define a function that creates the object, and refer to the function as "mine.py:make"',
        ),
        ({"model": {"use": "__main__:net"}}, {}, 'refer to it as "path/to/file.py:net".'),
        (
            "digits-mlp",
            {"overrides": "train.steps=3"},
            "overrides = 'train.steps=3' is not a dictionary of options.",
        ),
        ("digits-mlp", {"overrides": 3}, "overrides = 3 is not a dictionary of options."),
        ("digits-mlp", {"overrides": [3]}, "overrides = 3 is not a string."),
        ("digits-mlp", {"overrides": ["train.steps"]}, 'Write it as {"train.steps": 50}.'),
        ("digits-mlp", {"strategy": 3}, "strategy = 3 is not a string."),
    ],
)
def test_wrong_arguments_of_train_are_refused_by_name(
    config: Any, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RankdeckError) as raised:
        rankdeck.train(config, progress=False, **options)
    message = error_text(raised.value)
    assert expected in message and "--" not in message and "(line" not in message


def test_script_arguments_are_text_numbers_or_paths() -> None:
    command = arguments.script_command(Path("a.py"), ["--lr", 0.1, 3, True, Path("b"), np.float32(0.5)])
    assert command == ["a.py", "--lr", "0.1", "3", "True", "b", "0.5"]
    assert arguments.environment_pairs({"A": 1, "B": "x y"}) == ["A=1", "B=x y"]
    assert arguments.environment_pairs(None) == []


def test_overrides_are_mappings_or_strings() -> None:
    overrides = {
        "train.steps": np.int64(5),
        "model.args.hidden": np.array([1, 2]),
        "data.args.path": Path("x"),
    }
    assert arguments.override_arguments(overrides) == [
        "train.steps=5",
        "model.args.hidden=[1, 2]",
        'data.args.path="x"',
    ]
    assert arguments.override_arguments(["train.steps=5"]) == ["train.steps=5"]
    assert arguments.override_arguments(None) == []
    assert arguments.to_toml_tables({"model": None, "train": {"steps": 1, "seed": None}}) == {
        "train": {"steps": 1}
    }


def test_skipped_interpreters_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "gone"))
    with pytest.raises(RankdeckError):
        rankdeck.run("train.py", runs="train.py")
    assert "contains no Python." in " ".join(capsys.readouterr().err.split())
