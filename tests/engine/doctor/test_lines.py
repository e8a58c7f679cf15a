"""The lines that the doctor writes, and which problems it is offered for."""

from __future__ import annotations

import pytest

from rankdeck.base.errors import ConfigError, MachineError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.doctor.lines import (
    TITLES,
    CheckLine,
    DoneLine,
    Verdict,
    announced,
    decode,
    encode,
    row,
    summed_up,
)
from rankdeck.doctor.looking import Looked, checks_of
from rankdeck.doctor.offering import may_explain, with_offer


def test_a_line_comes_back_with_what_its_sentences_were_made_of() -> None:
    size = phrase("{free} left", free="2 GiB")
    line = row(
        "runs", Verdict.LOOK, phrase("Little: {size}.", size=size), size, fix=phrase("Tidy up."), command="rm"
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
def test_what_is_no_line_of_this_version_is_none(line: bytes) -> None:
    assert decode(line) is None


def test_the_first_line_names_all_rows_and_the_last_sums_up() -> None:
    first = announced(["clock", "gloo"])
    assert [(one.name, one.title) for one in first.rows] == [
        ("clock", "Clock"),
        ("gloo", "Two ranks by gloo"),
    ]
    rows = [
        row("clock", Verdict.LOOK, "x"),
        row("gloo", Verdict.BROKEN, "x"),
        row("files", Verdict.GOOD, "x"),
    ]
    last = summed_up(rows, 1.5)
    assert (last.broken, last.look, last.not_tried, last.seconds) == (["gloo"], ["clock"], [], 1.5)
    assert isinstance(decode(encode(last)), DoneLine)


def test_every_row_is_of_one_check_and_what_is_waited_for_is_there(looked: Looked, other: Looked) -> None:
    for told in (looked, other):
        checks = checks_of(told)
        names = [name for check in checks for name in check.names]
        assert len(set(names)) == len(names) and set(names) <= set(TITLES)
        assert {check.after for check in checks if check.after} <= {check.names[0] for check in checks}
    assert set(names) == set(TITLES)


def test_the_doctor_is_offered_where_the_machine_may_be_the_fault() -> None:
    driver = MachineError(
        "No driver.", code="no-driver", advice=phrase("Rehearse on {devices}.", devices="cpu:2")
    ).problem
    offered = with_offer(driver)
    assert offered.advice == "Rehearse on cpu:2. Look the machine over with: rankdeck doctor"
    assert offered.templates["advice.before"] == "Rehearse on {devices}."
    assert with_offer(MachineError("No process could be started.").problem).advice == (
        "Look the machine over with: rankdeck doctor"
    )
    assert may_explain(Problem("communication", "The connection to the other ranks failed.", rank=1))


@pytest.mark.parametrize(
    "problem",
    [
        ConfigError("train.steps is no number.").problem,
        MachineError("Port 1 cannot be used.", code="port").problem,
        Problem("rank-exception", "KeyError: 3", rank=0),
        Problem("driver", "The driver is slow.", severity="warning"),
    ],
)
def test_it_is_not_offered_for_anything_else(problem: Problem) -> None:
    assert with_offer(problem) is problem
