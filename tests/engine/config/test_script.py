"""A run's own copy of what a person started: written, read back, and refused in words when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import script
from rankdeck.config.script import ScriptConfig, ScriptTable


def _config(**changes: object) -> ScriptConfig:
    table = {"run": "train.py", "args": ["--lr", "1e-3", ""], "folder": "/p", "python": "/usr/bin/python3"}
    return ScriptConfig(name="train", script=ScriptTable.model_validate({**table, **changes}))


@pytest.mark.parametrize("changes", [{}, {"kind": "module", "run": "a.b"}, {"environment": {"A": "b\n\"c'"}}])
def test_a_script_configuration_survives_writing_and_reading(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    config = _config(**changes)
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert script.load_script(tmp_path / "config.toml") == config


def test_the_command_equals_the_one_of_torchrun() -> None:
    assert _config().command() == ["/usr/bin/python3", "-u", "train.py", "--lr", "1e-3", ""]
    module = _config(kind="module", run="a.b").command()
    assert module == ["/usr/bin/python3", "-u", "-m", "a.b", "--lr", "1e-3", ""]
    assert _config(run="-x.py").command()[2] == "./-x.py", "no option of Python's"
    assert _config(kind="program", run="./go", args=["x"]).command() == ["./go", "x"]


def test_a_configuration_is_no_script(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[model]\nuse = "mlp"\n')
    assert script.load_script(tmp_path / "config.toml") is None


DAMAGED = [(b"[script", "not TOML"), (b"[script]\nranks = 0\n", "required"), (b"\xff\xfe=", "not TOML")]


@pytest.mark.parametrize(("text", "message"), DAMAGED)
def test_a_damaged_script_configuration_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        script.load_script(path)
    path.unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        script.load_script(path)
