"""What the editor offers and explains is what the engine takes, wherever the cursor stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.config import from_text
from rankdeck_app.state.toml_schema import complete, hover_text

_DDP = '[strategy]\nuse = "ddp"\n'


def completions(text: str) -> list[str]:
    """At the end of the text."""
    lines = text.split("\n")
    return [item.text for item in complete(text, len(lines) - 1, len(lines[-1])).items]


@pytest.mark.parametrize(
    ("text", "some", "others"),
    [
        ("[", ["train", "model", "model.args", "data.args", "train.optimizer", "devices"], ["args", "name"]),
        ("[tr", ["train", "train.optimizer", "train.schedule"], ["model"]),
        ("[train]\nsteps = 5\n[", ["model"], ["train"]),
        ("[train]\n", ["steps", "global_batch", "optimizer", "precision"], ["use", "width"]),
        ("[train]\nsteps = 5\nst", [], ["steps"]),
        ("[train]\nglo", ["global_batch"], ["steps"]),
        ('[train]\nprecision = "', ['"fp32"', '"bf16"'], ['"adamw"']),
        ("[train]\nprecision = ", ['"fp32"', '"bf16"'], []),
        ("[train]\nallow_tf32 = ", ["true", "false"], []),
        ("[train]\noptimizer = { ", ["use", "lr"], ["steps", "momentum"]),
        ('[train]\noptimizer = { use = "sgd", ', ["momentum", "lr"], ["use"]),
        ('[train]\noptimizer = { use = "', ['"adamw"', '"sgd"'], []),
        ('[train]\noptimizer.use = "', ['"adamw"', '"sgd"'], []),
        ("[strategy]\nuse = ", ['"ddp"', '"fsdp"', '"single"'], []),
        (_DDP, ["bucket_mb"], ["microbatches", "use"]),
        ('[model]\nuse = "gpt"\n[model.args]\n', ["layers", "heads"], ["steps", "use"]),
        ('[model]\nuse = "my_model:make"\n[model.args]\n', [], ["layers", "steps"]),
        ("na", ["name"], ["train"]),
        ("[nowhere]\n", [], []),
        ("# st", [], []),
        ("[train] # st", [], []),
        ("[train]\nsteps = 5 # see", [], []),
    ],
)
def test_completions_fit_the_position(text: str, some: list[str], others: list[str]) -> None:
    texts = completions(text)
    assert set(some) <= set(texts), texts
    assert not set(others) & set(texts), texts
    if not some:
        assert texts == []


def test_a_completion_replaces_the_typed_word() -> None:
    completion = complete('[train]\n  precision = "b', 1, 17)
    assert (completion.start, completion.word, completion.items[0].text) == (14, '"b', '"bf16"')
    completion = complete("[train]\noptimizer.u", 1, 11)
    assert (completion.start, completion.word, [item.text for item in completion.items]) == (
        10,
        "u",
        ["use", "fused"],
    )


def test_completions_are_valid_for_the_engine(tmp_path: Path) -> None:
    text = '[model]\nuse = "mlp"\n[data]\nuse = "digits"\n[strategy]\nuse = {}\n[devices]\nuse = "cpu:2"\n'
    strategies = completions("[strategy]\nuse = ")
    assert len(strategies) > 8
    for name in ('"ddp"', '"single"', '"fsdp"'):
        assert name in strategies
        from_text(text.format(name), folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "column", "expected"),
    [
        (
            "[train]\nglobal_batch = 3",
            1,
            4,
            "train.global_batch: whole number, 1 or more, 32 by default\nSam",
        ),
        ("[train]\nprecision = 'x'", 1, 0, '"fp32", "fp64", "bf16", "fp16"'),
        ('[train]\noptimizer = { use = "sgd", momentum = 0.9 }', 1, 30, "train.optimizer.momentum: number"),
        ("[data]\nworkers = 1", 1, 2, "data.workers: whole number, 0 to 64, 0 by default"),
        ("[train]", 0, 3, "[train]\nsteps, epochs, global_batch"),
        ("[train]\nstesp = 1", 1, 2, ""),
        ("[train]\nsteps = 1", 1, 9, ""),
    ],
)
def test_hovering_a_key_explains_it(text: str, line: int, column: int, expected: str) -> None:
    help_text = hover_text(text, line, column)
    assert expected in help_text and bool(expected) == bool(help_text), help_text
