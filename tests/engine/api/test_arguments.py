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
    ("script", "args", "options", "words"),
    [
        (None, (), {}, "script = None is no script."),
        (["train.py", "--lr"], (), {}, "script = ['train.py', '--lr'] is no script."),
        ("", (), {}, "script = '' is no script."),
        ("trian.py", (), {}, 'Did you mean "train.py"?'),
        ("train.py", (None,), {}, "args[0] = None is no text and no number."),
        ("train.py", ("--lr", [1, 2]), {}, "args[1] = [1, 2] is no text and no number."),
        ("train.py", (np.arange(2),), {}, "args[0] = array([0, 1]) is no text and no number."),
        ("train.py", (), {"observe": "lots"}, "observe = 'lots' is not a way to watch a script."),
        ("train.py", (), {"ranks": 0}, "ranks = 0 is no number of ranks."),
        ("train.py", (), {"ranks": 1025}, "ranks = 1025 is no number of ranks."),
        ("train.py", (), {"ranks": True}, "ranks = True is no number of ranks."),
        ("train.py", (), {"ranks": "many"}, "ranks = 'many' is no number of ranks."),
        ("train.py", (), {"max_restarts": -1}, "max_restarts = -1 is no number of restarts."),
        ("train.py", (), {"max_restarts": "x"}, "max_restarts = 'x' is no number of restarts."),
        ("train.py", (), {"devices": 2}, 'devices = 2 is no text.\nAs in devices="cpu:2".'),
        ("train.py", (), {"python": "nowhere"}, "python: there is no Python at nowhere."),
        ("train.py", (), {"name": 3}, "name = 3 is no text."),
        ("train.py", (), {"runs": 3}, "runs = 3 is no text."),
        ("train.py", (), {"runs": "train.py"}, "Name another folder with runs."),
        ("train.py", (), {"env": ["A=1"]}, "env = ['A=1'] is no table of variables."),
        ("train.py", (), {"env": {"A": None}}, "env['A'] = None is no text and no number."),
        ("train.py", (), {"env": {"A=B": "x"}}, "'A=B' is no name."),
    ],
)
def test_wrong_arguments_of_run_are_refused_by_name(
    script: Any, args: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RankdeckError) as raised:
        rankdeck.run(script, *args, progress=False, **options)
    told = error_text(raised.value)
    assert words in told and not told.endswith("\n")
    assert "--" not in told.replace('"--lr"', "").replace("'--lr'", "") and "rankdeck run" not in told


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({}, {}, "config = {} is nothing that trains."),
        (None, {}, "config = None is no configuration."),
        (["digits-mlp"], {}, "config = ['digits-mlp'] is no configuration."),
        ({"train": {"steps": datetime.date(2020, 1, 1)}}, {}, "train.steps = datetime.date(2020, 1, 1) is"),
        ({"train": 3}, {}, "train must be a table."),
        ({"model": {"use": error_text}}, {}, 'name it there, as in "mine.py:error_text"'),
        ({"model": {"use": lambda: None}}, {}, "is an object of this process, and ranks are processes"),
        (
            {"data": {"use": object()}},
            {},
            'a function that makes it in a file, and name that, as in "mine.py:make"',
        ),
        ({"model": {"use": "__main__:net"}}, {}, 'name it there: "path/to/file.py:net".'),
        ("digits-mlp", {"overrides": "train.steps=3"}, "overrides = 'train.steps=3' is no table of options."),
        ("digits-mlp", {"overrides": 3}, "overrides = 3 is no table of options."),
        ("digits-mlp", {"overrides": [3]}, "overrides = 3 is no text."),
        ("digits-mlp", {"overrides": ["train.steps"]}, 'Write it as {"train.steps": 50}.'),
        ("digits-mlp", {"strategy": 3}, "strategy = 3 is no text."),
    ],
)
def test_wrong_arguments_of_train_are_refused_by_name(
    config: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(RankdeckError) as raised:
        rankdeck.train(config, progress=False, **options)
    told = error_text(raised.value)
    assert words in told and "--" not in told and "(line" not in told


def test_script_arguments_are_text_numbers_or_paths() -> None:
    words = arguments.script_command(Path("a.py"), ["--lr", 0.1, 3, True, Path("b"), np.float32(0.5)])
    assert words == ["a.py", "--lr", "0.1", "3", "True", "b", "0.5"]
    assert arguments.environment_pairs({"A": 1, "B": "x y"}) == ["A=1", "B=x y"]
    assert arguments.environment_pairs(None) == []


def test_overrides_are_mappings_or_strings() -> None:
    given = {"train.steps": np.int64(5), "model.args.hidden": np.array([1, 2]), "data.args.path": Path("x")}
    assert arguments.override_arguments(given) == [
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
    assert "which has no Python; it is passed over." in " ".join(capsys.readouterr().err.split())
