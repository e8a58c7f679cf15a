"""The reference explains every key of a configuration, and what it shows as an example is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomlkit

from rankdeck.base.errors import ConfigError
from rankdeck.config import from_text
from rankdeck.config.reference import (
    CONTRACTS,
    config_keys,
    describe,
    example_of,
    find_keys,
)
from rankdeck.config.schema import RunConfig
from tests.helpers.cli import rankdeck_in_process

KEYS = {f"{key.name} {' '.join(key.uses)}".strip(): key for key in config_keys()}
NEEDED = {
    "data.args": 'data.use = "text"',
    "data.args.size images": 'data.args.path = "~/images"',
    "rehearsal.device_gflops": 'rehearsal.pace = "simulated"',
    **dict.fromkeys(
        ("strategy.reshard hybrid", "strategy.plan hybrid", "strategy.sequence_parallel hybrid"),
        "strategy.shard = 2\nstrategy.tensor = 2",
    ),
    "strategy.loss_parallel hybrid": "strategy.tensor = 2",
    "hosts.use": 'strategy.use = "ddp"',
    "hosts.devices": 'strategy.use = "ddp"\nhosts.use = ["box1", "box2"]',
}
"""What else a configuration needs to have before it takes a key."""
FILES = {
    "model.use": "model",
    "data.use": "data",
    "loss.use": "loss",
    "train.optimizer.use": "optimizer",
    "rankdeck.log": "log",
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_is_explained_with_an_example_that_is_valid(name: str) -> None:
    key = KEYS[name]
    assert key.field.text[:1].isupper() or key.field.choices, key.field.text
    assert key.field.text.endswith("."), key.field.text
    lines = [NEEDED.get(name, ""), example_of(key)]
    if key.uses:
        table = ".".join(component for component in key.path[:-1] if component != "args")
        lines.insert(0, f'{table}.use = "{key.uses[0]}"')
    from_text("\n".join(lines), folder=Path())


def test_every_key_that_a_run_writes_is_in_the_reference() -> None:
    """The resolved copy of a configuration spells out every default."""
    names = {key.name for key in KEYS.values()}

    def leaves(table: object, path: str) -> list[str]:
        if not isinstance(table, dict) or path in names:
            return [path]
        return [leaf for key, inner in table.items() for leaf in leaves(inner, f"{path}.{key}".lstrip("."))]

    assert set(leaves(tomlkit.parse(RunConfig().to_toml()).unwrap(), "")) <= names


def test_bounds_and_defaults_are_those_that_are_enforced() -> None:
    assert str(describe(KEYS["train.global_batch"].field)) == "whole number, 1 or more, 32 by default"
    assert str(describe(KEYS["launch.timeout_s"].field)).startswith("number, above 0, at most 1000000")
    for line in ("train.global_batch = 0", "launch.timeout_s = 0.0", "launch.timeout_s = 1000001.0"):
        with pytest.raises(ConfigError):
            from_text(line, folder=Path())
    from_text("launch.timeout_s = 1000000.0", folder=Path())


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("train.steps", {"train.steps"}),
        ("hosts", {"hosts.use", "hosts.devices", "hosts.address", "hosts.min", "hosts.across"}),
        ("dp", {"strategy.parallel_loss"}),
        ("microbatches", {"strategy.microbatches"}),
        ("single", {"strategy.use"}),
        ("cross_entropy", {"loss.use"}),
        ("rankdeck.log", set()),
    ],
)
def test_a_name_finds_a_key_a_table_or_the_options_of_a_choice(name: str, keys: set[str]) -> None:
    assert {key.name for key in find_keys(name)} == keys


@pytest.mark.parametrize(
    ("name", "advice"),
    [("batch_size", "train.global_batch"), ("train.stepz", "train.steps"), ("qqq", "`rankdeck config`")],
)
def test_an_unknown_name_suggests_another(name: str, advice: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_keys(name)
    assert advice in str(raised.value.problem.advice)


@pytest.mark.parametrize("loss", ["loss", "log"])
def test_the_examples_of_the_contracts_train(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for key, file in FILES.items():
        example = f"import torch\nimport rankdeck\n\n{CONTRACTS[key].example}"
        Path(f"my_{file}.py").write_text(example, encoding="utf-8")
    text = f"""
        train.steps = 3
        model.use = "my_model.py:build"
        data.use = "my_data.py:build"
        loss.use = "my_{loss}.py:loss"
        train.optimizer = {{ use = "my_optimizer.py:Plain", lr = 0.1 }}
    """
    Path("my.toml").write_text(text, encoding="utf-8")
    rankdeck_in_process("train", "my.toml", "--devices", "cpu:1", exit_code=0)
    rankdeck_in_process("export", "last", "metrics.csv", "--to", "csv", exit_code=0)
    assert ("largest_logit" in Path("metrics.csv").read_text("utf-8")) == (loss == "log")


def test_the_command_explains_a_key_and_lists_all() -> None:
    listed = rankdeck_in_process("config", exit_code=0).out
    assert all(key.name in listed for key in KEYS.values())
    explained = rankdeck_in_process("config", "loss.use", exit_code=0).out
    assert "Choices: " in explained and CONTRACTS["loss.use"].example in explained
    assert CONTRACTS["rankdeck.log"].text in rankdeck_in_process("config", "rankdeck.log", exit_code=0).out
    assert "model.use" in rankdeck_in_process("config", "model", exit_code=0).out
    contract = rankdeck_in_process("config", "rankdeck.log", "--json", exit_code=0).json["contracts"][
        "rankdeck.log"
    ]
    assert contract["text"] == CONTRACTS["rankdeck.log"].text
    keys = rankdeck_in_process("config", "ddp", "--json", exit_code=0).json["keys"]
    assert {key["key"] for key in keys} >= {"strategy.sync", "strategy.bucket_mb"}
    assert "train.global_batch" in rankdeck_in_process("config", "batch_size", exit_code=2).err
