"""What would mend a configuration is data: it is there wherever it is known, and it does mend it."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rankdeck.config
from rankdeck.base.errors import ConfigError, Problem, cure_in_words
from rankdeck.config import RunConfig, capabilities, cures, from_dict, from_text
from rankdeck.config.cures import with_cure
from tests.helpers.wrong_configs import REFUSED, WRONG, Wrong

FOLDER = Path("/somewhere")
_ROOMS = ("checks", "rules", "loading", "mesh_sizes", "microbatches")
# Of a command line, of text that is no TOML, and of devices that only a plan can name (1024 GPUs).
_NOT_IN_A_FILE = {"override", "toml", "unreadable", "too-many-devices"}


def problems_of(tables: dict[str, Any]) -> list[Problem]:
    try:
        from_dict(tables, folder=FOLDER)
    except ConfigError as error:
        return error.problems
    return []


def cured(tables: dict[str, Any], cure: dict[str, Any]) -> dict[str, Any]:
    for dotted, value in cure.items():
        *places, key = dotted.split(".")
        table = tables
        for place in places:
            table = table.setdefault(place, {})
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return tables


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.code}-{wrong.path}")
def test_a_mistake_names_its_key_and_line_and_its_cure_mends_it(wrong: Wrong) -> None:
    with pytest.raises(ConfigError) as caught:
        from_text(wrong.text, folder=FOLDER)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == (wrong.code, wrong.path)
    assert problem.line is not None or wrong.code == "missing"
    assert bool(problem.cure) == wrong.has_cure
    if problem.cure:
        left = problems_of(cured(tomllib.loads(wrong.text), problem.cure))
        assert (wrong.code, wrong.path) not in [(other.code, other.path) for other in left]


def test_every_refusal_and_every_rule_has_a_row_above() -> None:
    for row, wrong in zip(capabilities.REFUSALS, REFUSED, strict=True):
        with pytest.raises(ConfigError) as caught:
            from_text(wrong.text, folder=FOLDER)
        assert caught.value.message == row.why
    folder = Path(rankdeck.config.__file__).parent
    said = {code for room in _ROOMS for code in _codes(folder / f"{room}.py")}
    assert said - _NOT_IN_A_FILE == {wrong.code for wrong in WRONG}


def _codes(file: Path) -> set[str]:
    """The codes of all problems that a file makes: first arguments, or `code=`, of what makes them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in ("add", "Problem") and node.args and isinstance(node.args[0], ast.Constant):
            found.add(str(node.args[0].value))
        if name == "ConfigError":
            found |= {str(word.value.value) for word in node.keywords
                      if word.arg == "code" and isinstance(word.value, ast.Constant)}  # fmt: skip
    return found


def test_a_refusals_cure_is_in_its_advice() -> None:
    for row in capabilities.REFUSALS:
        assert row.instead.startswith(cure_in_words(row.cure)) and row.instead.endswith(".")


def test_a_cure_is_written_as_the_file_has_it() -> None:
    assert cure_in_words({"train.clip_norm": 0}) == "Set train.clip_norm = 0"
    assert cure_in_words({"a.b": "bf16", "a.c": False}) == 'Set a.b = "bf16" and a.c = false'
    assert cure_in_words({"train.stpes": None}) == "Leave train.stpes out"
    assert (
        cure_in_words({"train.stpes": None, "train.steps": 5})
        == "Set train.steps = 5 and leave train.stpes out"
    )


def small(**tables: Any) -> RunConfig:
    given = {"model": {"use": "gpt"}, "data": {"use": "text"}, "devices": {"use": "cpu:2"}, **tables}
    return from_dict(given, folder=FOLDER)


@pytest.mark.parametrize(
    ("code", "tables", "expected"),
    [
        ("out-of-memory", {}, {"train.activation_checkpointing": True}),
        ("over-capacity", {"train": {"activation_checkpointing": True}}, {"train.accumulate": 2}),
        ("out-of-memory", {"model": {"use": "mine.py:model"}}, {"train.accumulate": 2}),
        # Nothing is left to cut: the one device's excess goes.
        (
            "out-of-memory",
            {
                "train": {"activation_checkpointing": True, "global_batch": 2},
                "strategy": {"use": "dp"},
            },
            {"strategy.use": "ddp"},
        ),
        ("unused-parameters", {"strategy": {"use": "ddp"}}, {"strategy.find_unused_parameters": True}),
        ("unused-parameters", {"strategy": {"use": "dp"}}, {}),
        ("shared-memory", {"data": {"use": "text", "workers": 2}}, {"data.workers": 0}),
        ("shared-memory", {}, {}),
        ("loss-not-finite", {"train": {"clip_norm": 1.0}}, {}),
        ("rank-killed", {}, {}),
    ],
)
def test_a_problem_of_a_started_run_brings_what_would_mend_it(
    code: str, tables: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = small(**tables)
    problem = with_cure(Problem(code, "It failed."), config)
    assert problem.cure == expected and problem.message == "It failed."
    if expected:
        mended = cures.cured(config, expected).to_dict()
        for dotted, value in expected.items():
            section, _, name = dotted.partition(".")
            assert mended[section][name] == value


def test_a_cure_that_the_configuration_refuses_is_none_and_another_strategy_is_whole() -> None:
    config = small(strategy={"use": "dp", "parallel_loss": True})
    assert with_cure(Problem("config", "No.", cure={"train.global_batch": 3}), config).cure == {}
    mended = cures.cured(config, {"strategy.use": "fsdp", "strategy.reshard": False})
    assert mended.strategy.use == "fsdp" and mended.strategy.options["reshard"] is False
    assert "parallel_loss" not in mended.strategy.options
    assert cures.options_of({"strategy.use": "ddp", "train.accumulate": 2}) == [
        "--strategy", "ddp", "--set", "train.accumulate=2",
    ]  # fmt: skip
    assert cures.options_of({"train.precision": "bf16", "a.b": True}) == [
        "--set", 'train.precision="bf16"', "--set", "a.b=true",
    ]  # fmt: skip
