"""Figures of a plan as one line, and JSON that every reader takes."""

from __future__ import annotations

import json

import pytest

from rankdeck.cli.console import print_json
from rankdeck.cli.formatting import sizes_text
from rankdeck.cli.plan_tables import PlanOutput
from rankdeck.run.plan_lines import PlanLine


def test_equal_neighboring_sizes_are_grouped() -> None:
    assert sizes_text((5 * 2**30, 2**30, 2**30, 2**30, 5 * 2**30)) == "5.0 GiB, 1.0 GiB x3, 5.0 GiB"


def test_too_many_groups_are_merged_by_size() -> None:
    assert sizes_text((5 * 2**30, 2**30) * 512, max_groups=8) == "5.0 GiB x512, 1.0 GiB x512"


@pytest.mark.parametrize(
    ("verdict", "saves_bytes", "lead"),
    [("fits", None, "try"), ("does-not-fit", 2**30, "try"), ("does-not-fit", None, "nothing fits")],
)
def test_advice_that_helps_has_another_label_than_advice_that_does_not(
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


def test_non_finite_numbers_are_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": float("nan"), "all": [1.5, float("inf"), (float("-inf"), None)]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "loss": None,
        "all": [1.5, None, [None, None]],
    }
