"""Figures of a plan as one line, and JSON that every reader takes."""

from __future__ import annotations

import json

import pytest

from rankdeck.cli.console import as_json
from rankdeck.cli.plan_tables import PlanOutput
from rankdeck.cli.words import sizes_in_words
from rankdeck.run.plan_lines import PlanLine


def test_equal_neighbours_are_said_once_with_their_number() -> None:
    assert sizes_in_words((5 * 2**30, 2**30, 2**30, 2**30, 5 * 2**30)) == "5.0 GiB, 1.0 GiB x3, 5.0 GiB"


def test_many_devices_that_differ_in_turn_are_said_once_each() -> None:
    assert sizes_in_words((5 * 2**30, 2**30) * 512, most=8) == "5.0 GiB x512, 1.0 GiB x512"


@pytest.mark.parametrize(
    ("verdict", "saves_bytes", "lead"),
    [("fits", None, "try"), ("does-not-fit", 2**30, "try"), ("does-not-fit", None, "nothing fits")],
)
def test_what_helps_and_what_does_not_are_told_apart(
    capsys: pytest.CaptureFixture[str], verdict: str, saves_bytes: int | None, lead: str
) -> None:
    output = PlanOutput(as_json=False)
    output.add(
        PlanLine(
            strategy="fsdp", options={}, label="fsdp", verdict=verdict, target="8 x T4",
            changes={"train.accumulate": 2}, advice="So it is.", saves_bytes=saves_bytes,
        )
    )  # fmt: skip
    assert capsys.readouterr().out.splitlines()[1] == f"{lead.ljust(13)}So it is."


def test_what_is_not_finite_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    as_json({"loss": float("nan"), "all": [1.5, float("inf"), (float("-inf"), None)]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "loss": None,
        "all": [1.5, None, [None, None]],
    }
