"""Changes that fix a configuration are data: they are there wherever they are known, and do fix it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rankdeck.config
from rankdeck.base.errors import ConfigError, Problem, format_fix
from rankdeck.config import compatibility, from_dict, from_text
from tests.helpers.wrong_configs import REFUSED, WRONG, WrongConfig

FOLDER = Path("/somewhere")
_MODULES = ("checks", "rules", "loading", "mesh_sizes", "microbatches")
# Of a command line, of text that is no TOML, and of devices that only a plan can name (1024 GPUs).
_NOT_IN_A_FILE = {"override", "toml", "unreadable", "too-many-devices"}


def problems_of(tables: dict[str, Any]) -> list[Problem]:
    try:
        from_dict(tables, folder=FOLDER)
    except ConfigError as error:
        return error.problems
    return []


def apply_changes(tables: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for dotted, value in changes.items():
        *parents, key = dotted.split(".")
        table = tables
        for name in parents:
            table = table.setdefault(name, {})
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return tables


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.code}-{wrong.path}")
def test_a_mistake_names_its_key_and_line_and_its_changes_fix_it(wrong: WrongConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(wrong.text, folder=FOLDER)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == (wrong.code, wrong.path)
    assert problem.line is not None or wrong.code == "missing"
    assert bool(problem.cure) == wrong.has_fix
    if problem.cure:
        left = problems_of(apply_changes(tomllib.loads(wrong.text), problem.cure))
        assert (wrong.code, wrong.path) not in [(other.code, other.path) for other in left]


def test_every_incompatibility_and_rule_has_a_test_row() -> None:
    for row, wrong in zip(compatibility.INCOMPATIBILITIES, REFUSED, strict=True):
        with pytest.raises(ConfigError) as caught:
            from_text(wrong.text, folder=FOLDER)
        assert caught.value.message == row.why
    folder = Path(rankdeck.config.__file__).parent
    codes = {code for room in _MODULES for code in _codes(folder / f"{room}.py")}
    assert codes - _NOT_IN_A_FILE == {wrong.code for wrong in WRONG}


def _codes(file: Path) -> set[str]:
    """The codes of all problems that a file makes: first arguments, or `code=`, of what makes them."""
    codes = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("add", "Problem") and node.args and isinstance(node.args[0], ast.Constant):
            codes.add(str(node.args[0].value))
        if name == "ConfigError":
            codes |= {str(word.value.value) for word in node.keywords
                      if word.arg == "code" and isinstance(word.value, ast.Constant)}  # fmt: skip
    return codes


def test_the_advice_of_an_incompatibility_starts_with_its_fix() -> None:
    for row in compatibility.INCOMPATIBILITIES:
        assert row.advice.startswith(format_fix(row.changes)) and row.advice.endswith(".")


def test_a_fix_is_formatted_as_in_the_file() -> None:
    assert format_fix({"train.clip_norm": 0}) == "Set train.clip_norm = 0"
    assert format_fix({"a.b": "bf16", "a.c": False}) == 'Set a.b = "bf16" and a.c = false'
    assert format_fix({"train.stpes": None}) == "Leave train.stpes out"
    assert (
        format_fix({"train.stpes": None, "train.steps": 5}) == "Set train.steps = 5 and leave train.stpes out"
    )
