"""The lines that the doctor writes, and which problems it is offered for."""

from __future__ import annotations

import pytest

from rankdeck.base.errors import ConfigError, MachineError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.doctor.check_runner import CheckTarget, build_checks
from rankdeck.doctor.doctor_advice import is_machine_problem, with_doctor_advice
from rankdeck.doctor.lines import (
    ROW_TITLES,
    CheckLine,
    DoneLine,
    Verdict,
    announce_rows,
    decode,
    encode,
    make_row,
    summarize_rows,
)


def test_a_line_keeps_its_phrases_through_json() -> None:
    size = phrase("{free} left", free="2 GiB")
    line = make_row(
        "runs",
        Verdict.WARNING,
        phrase("Little: {size}.", size=size),
        size,
        fix=phrase("Tidy up."),
        command="rm",
    )
    back = decode(encode(line))
    assert isinstance(back, CheckLine) and back == line
    assert (back.finding, back.evidence, back.fix, back.command) == (
        "Little: 2 GiB left.",
        ["2 GiB left"],
        "Tidy up.",
        "rm",
    )
    assert back.phrases["Little: 2 GiB left."].template == "Little: {size}."
    assert back.phrases["2 GiB left"].arguments == {"free": "2 GiB"}


@pytest.mark.parametrize("line", [b"", b"{}", b'{"problems": []}', b'{"kind": "later"}', b"[1"])
def test_unknown_lines_decode_to_none(line: bytes) -> None:
    assert decode(line) is None


def test_the_first_line_lists_rows_and_the_last_sums_them_up() -> None:
    first = announce_rows(["clock", "gloo"])
    assert [(row.name, row.title) for row in first.rows] == [
        ("clock", "Clock"),
        ("gloo", "Two ranks with gloo"),
    ]
    rows = [
        make_row("clock", Verdict.WARNING, "x"),
        make_row("gloo", Verdict.FAILED, "x"),
        make_row("files", Verdict.OK, "x"),
    ]
    last = summarize_rows(rows, 1.5)
    assert (last.broken, last.look, last.not_tried, last.seconds) == (["gloo"], ["clock"], [], 1.5)
    assert isinstance(decode(encode(last)), DoneLine)


def test_every_row_has_one_check_and_valid_dependencies(looked: CheckTarget, other: CheckTarget) -> None:
    for target in (looked, other):
        checks = build_checks(target)
        names = [name for check in checks for name in check.names]
        assert len(set(names)) == len(names) and set(names) <= set(ROW_TITLES)
        assert {check.after for check in checks if check.after} <= {check.names[0] for check in checks}
    assert set(names) == set(ROW_TITLES)


def test_machine_problems_suggest_the_doctor() -> None:
    driver = MachineError(
        "No driver.", code="no-driver", advice=phrase("Rehearse on {devices}.", devices="cpu:2")
    ).problem
    offered = with_doctor_advice(driver)
    assert offered.advice == "Rehearse on cpu:2. Check the machine with: rankdeck doctor"
    assert offered.templates["advice.before"] == "Rehearse on {devices}."
    assert with_doctor_advice(MachineError("No process could be started.").problem).advice == (
        "Check the machine with: rankdeck doctor"
    )
    assert is_machine_problem(Problem("communication", "The connection to the other ranks failed.", rank=1))


@pytest.mark.parametrize(
    "problem",
    [
        ConfigError("train.steps is no number.").problem,
        MachineError("Port 1 cannot be used.", code="port").problem,
        Problem("rank-exception", "KeyError: 3", rank=0),
        Problem("driver", "The driver is slow.", severity="warning"),
    ],
)
def test_other_problems_do_not_suggest_the_doctor(problem: Problem) -> None:
    assert with_doctor_advice(problem) is problem
