"""What does not combine is refused with the reason and a way out, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.config import Choice, TrainConfig, from_text
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.compatibility import INCOMPATIBILITIES, Facts, find_incompatibilities


def problems_of(strategy: str, train: str = "") -> list[Problem]:
    text = f"[strategy]\n{strategy}\n[train]\n{train}"
    with pytest.raises(ConfigError) as caught:
        from_text(text, folder=Path("/somewhere"))
    return caught.value.problems


@pytest.mark.parametrize(
    ("strategy", "train", "path", "advice"),
    [
        ('use = "ddp"\nstatic_graph = true', "accumulate = 2", "strategy.static_graph", "accumulate = 1"),
        (
            'use = "ddp"\nstatic_graph = true\nfind_unused_parameters = true',
            "",
            "strategy.find_unused_parameters",
            "static_graph out",
        ),
        ('use = "ddp"\nsync = "ring"\nstatic_graph = true', "", "strategy.static_graph", '"native"'),
        (
            'use = "ddp"\nsync = "ring"\ngradient_as_bucket_view = true',
            "",
            "strategy.gradient_as_bucket_view",
            '"native"',
        ),
        ('use = "pipeline-async"', "clip_norm = 1.0", "train.clip_norm", "clip_norm = 0"),
        ('use = "fsdp"', 'precision = "fp16"', "train.precision", "bf16"),
        (
            'use = "single"',
            'optimizer = { use = "adamw", foreach = true, fused = true }',
            "train.optimizer.foreach",
            "or leave train.optimizer.fused",
        ),
        (
            'use = "fsdp"',
            'optimizer = { use = "torch.optim:Adagrad", foreach = true, fused = true }',
            "train.optimizer.foreach",
            "or leave train.optimizer.fused",
        ),
        ('use = "single"', 'optimizer = { use = "torch.optim:LBFGS" }', "train.optimizer.use", "adamw"),
        ('use = "tensor"', 'optimizer = { use = "torch.optim:Adafactor" }', "train.optimizer.use", "ddp"),
        (
            'use = "hybrid"\ndata = 1\nshard = 2',
            'optimizer = { use = "torch.optim:Muon" }',
            "train.optimizer.use",
            "ddp",
        ),
        ('use = "dp"', "compile = true", "train.compile", "single or ddp"),
        (
            'use = "single"',
            "compile = true\nactivation_checkpointing = true",
            "train.compile",
            "checkpointing out",
        ),
        (
            'use = "pipeline"\nschedule = "zbv"',
            "activation_checkpointing = true",
            "train.activation_checkpointing",
            '"1f1b"',
        ),
    ],
)
def test_an_incompatible_pair_is_refused_with_line_and_advice(
    strategy: str, train: str, path: str, advice: str
) -> None:
    (problem,) = problems_of(strategy, train)
    assert (problem.code, problem.path) == ("does-not-combine", path)
    assert problem.line is not None and problem.advice is not None and advice in problem.advice


def test_pairs_outside_the_table_are_accepted() -> None:
    text = '[strategy]\nuse = "ddp"\nstatic_graph = true\ncompress = "powersgd"'
    assert from_text(text, folder=Path("/somewhere")).strategy.options["static_graph"]
    assert find_incompatibilities(Facts(Choice(use="single"), TrainConfig(accumulate=4))) == []


@pytest.mark.parametrize("row", INCOMPATIBILITIES, ids=lambda row: row.path)
def test_every_row_has_known_strategies_a_reason_and_advice(row: object) -> None:
    assert isinstance(row, type(INCOMPATIBILITIES[0]))
    assert set(row.strategies) <= set(STRATEGIES)
    assert row.why.endswith(".") and row.advice.endswith(".")
