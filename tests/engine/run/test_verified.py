"""What the check before the first step found is said in one line, in a cell, and as data."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rankdeck import events
from rankdeck.api.run_object import Run
from rankdeck.run.summary_builder import verified_summary
from rankdeck.run.verified import (
    compared_text,
    verified_cell,
    verified_detail,
    verified_text,
)
from tests.helpers.verified import VERIFIED
from tests.helpers.written_run import WrittenRun


@pytest.mark.parametrize(
    ("outcome", "text", "cell", "more"),
    [
        (
            "equal",
            "Verified: matches one device (largest difference 6e-16 after two steps in fp64)",
            "equal",
            "largest difference 6e-16",
        ),
        (
            "noted",
            "Verified: matches one device except for its batch norms",
            "equal except for batch norms",
            "largest difference 2e-03",
        ),
        (
            "differs",
            "Differs from one device: head.weight, head.bias",
            "differs",
            "head.weight, head.bias",
        ),
        (
            "unchecked",
            "Not verified: Two steps of the model on one device do not fit the memory",
            "not verified",
            "Two steps of the model on one device do not fit the memory",
        ),
    ],
)
def test_each_outcome_has_a_text_a_cell_and_a_detail(outcome: str, text: str, cell: str, more: str) -> None:
    verification = VERIFIED[outcome]
    assert (verified_text(verification), verified_cell(verification), verified_detail(verification)) == (
        text,
        cell,
        more,
    )
    summed_up = verified_summary(verification)
    assert summed_up is not None and (summed_up.text, summed_up.outcome) == (text, outcome)


def test_a_check_of_a_few_layers_is_mentioned() -> None:
    verification = msgspec.structs.replace(VERIFIED["equal"], layers=4)
    assert verified_text(verification) == (
        "Verified with 4 layers of each kind: matches one device (largest difference 6e-16 in fp64)"
    )
    assert compared_text(verification) == "two steps of 32 samples in fp64, 0.4 s, 4 layers of each kind"


def test_the_compared_amount_is_mentioned() -> None:
    assert compared_text(VERIFIED["equal"]) == "two steps of 32 samples in fp64, 0.4 s"
    assert compared_text(VERIFIED["unchecked"]) == ""


def test_an_unknown_outcome_is_shown_unchanged() -> None:
    assert verified_cell(events.Verified(rank=0, outcome="new")) == "new"


def test_the_python_api_returns_the_verification(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "runs")
    run.start(2)
    assert Run(run.path).verified is None, "an old run, and one device alone"
    run.writer("rank-0").write(VERIFIED["noted"])
    verification = Run(run.path).verified
    assert verification is not None and verification["cause"] == "batch-norm"
    assert "one device" in Run(run.path)._repr_html_()
    run.lose()
