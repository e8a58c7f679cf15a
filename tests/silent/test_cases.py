"""The collection of scripts is well-formed; a few of its cases run here, all of them in slow tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.silent.cases import KINDS, Case, finding_codes, load_cases, read_cases
from tests.silent.page import END, START, format_table, write_table
from tests.silent.trial import Result, judge, run_case

_FAULTS, _HEALTHY = load_cases("fault"), load_cases("healthy")
_QUICK = ("zero_grad_before_step", "drift_bypassed_attribute", "closures-sam")
_MAX_LINES = 45
_HEAD = '"""A fault."""\n\n# ranks: 1\n# expect: ranks-drifted\n# words: no_sync\n\nimport torch\n'


def _case(**changes: Any) -> Case:
    fields = {"kind": "fault", "name": "a", "file": Path("a.py"), "arguments": (), "num_ranks": 1}
    fields |= {"codes": ("ranks-drifted",), "check_codes": ("no-gradient",), "words": "no_sync"}
    return Case(**{**fields, **changes})


def _problem(code: str, advice: str = "") -> dict[str, Any]:
    return {
        "code": code,
        "severity": "warning",
        "message": "m",
        "advice": advice,
        "evidence": [{"text": "e"}],
    }


def _judged(case: Case, *problems: dict[str, Any], level: str = "light") -> Result:
    result = Result(case.name, case.kind, level, expected=list(case.expected_codes(level)))
    judge(result, case, problems)
    return result


def test_there_are_enough_cases_and_each_has_its_own_name() -> None:
    assert len(_FAULTS) >= 45 and len(_HEALTHY) >= 75
    names = [case.name for case in (*_FAULTS, *_HEALTHY)]
    assert len(set(names)) == len(names)


def test_faults_are_short() -> None:
    lines = {case.name: case.file.read_text("utf-8").count("\n") for case in _FAULTS}
    assert not {name: num for name, num in lines.items() if num > _MAX_LINES}


def test_each_expected_code_is_in_the_table() -> None:
    expected = {code for case in _FAULTS for code in case.expected_codes("check")}
    assert not expected - finding_codes()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"""A fault."""\n', "", "docstring"),
        ("# words: no_sync\n", "", "words is missing"),
        ("# ranks: 1\n", "# ranks: 3\n", "ranks must be"),
        ("# ranks: 1\n", "# ranks 1\n", "not '# key: value'"),
        ("# ranks: 1\n", "# ranks: 1\n# rank: 0\n", "rank is unknown"),
        ("# ranks: 1\n", "# ranks: 1\n# expect: no-gradient\n", "expect appears twice"),
        ("# expect: ranks-drifted\n", "", "either expect or expect-check"),
    ],
)
def test_a_wrong_header_is_refused(before: str, after: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(_HEAD)
    assert read_cases("fault", file)[0].codes == ("ranks-drifted",)
    file.write_text(_HEAD.replace(before, after))
    with pytest.raises(ValueError, match=message):
        read_cases("fault", file)


def test_each_line_of_arguments_is_a_case(tmp_path: Path) -> None:
    file = tmp_path / "gan.py"
    file.write_text('"""Right."""\n# ranks: 1\n# args: --kind a\n# args: --kind b --rate 1\nimport torch\n')
    assert [(case.name, case.arguments) for case in read_cases("healthy", file)] == [
        ("gan-a", ("--kind", "a")),
        ("gan-b-1", ("--kind", "b", "--rate", "1")),
    ]


def test_only_the_right_cause_is_right() -> None:
    drift = _problem("ranks-drifted", advice="Leave no_sync() earlier.")
    assert not _judged(_case(), drift).wrong
    assert not _judged(_case(), _problem("no-gradient"), drift).wrong
    assert _judged(_case()).wrong
    assert _judged(_case(), _problem("no-gradient")).wrong
    assert _judged(_case(), _problem("ranks-drifted")).wrong
    checked = _case(words="^m")
    assert not _judged(checked, _problem("no-gradient"), level="check").wrong


def test_any_finding_about_a_healthy_script_is_wrong() -> None:
    healthy = _case(kind="healthy", codes=(), check_codes=(), words="")
    assert not _judged(healthy).wrong
    assert not _judged(healthy, _problem("slow-rank")).wrong
    assert _judged(healthy, _problem("ranks-drifted")).wrong
    assert _judged(healthy, {**_problem("exception"), "severity": "error"}).wrong


def test_the_table_counts_causes_and_false_alarms(tmp_path: Path) -> None:
    cases = [_case(), _case(name="b"), _case(kind="healthy", name="c"), _case(kind="healthy", name="d")]
    results = [_judged(cases[0], _problem("ranks-drifted", "no_sync")), _judged(cases[1])]
    results += [_judged(cases[2]), _judged(cases[3], _problem("ranks-drifted"))]
    table = format_table(cases, results)
    assert "1 of 2 faults with the right cause; false alarms: 1 of 2 healthy scripts" in table
    assert "| b | **nothing**, not `ranks-drifted` |" in table and "| d | **`ranks-drifted`** |" in table
    page = tmp_path / "findings.md"
    page.write_text(f"before\n{START}\nold\n{END}\nafter\n")
    write_table(page, table)
    assert page.read_text() == f"before\n{START}\n\n{table}\n{END}\nafter\n"
    page.write_text("before\n")
    with pytest.raises(ValueError, match=START):
        write_table(page, table)


def _wrong(case: Case, folder: Path) -> list[str]:
    return run_case(case, "light", folder / "case").wrong


@pytest.mark.parametrize("name", _QUICK)
def test_a_case_is_reported_right(name: str, tmp_path: Path) -> None:
    (case,) = (case for case in (*_FAULTS, *_HEALTHY) if case.name == name)
    assert not _wrong(case, tmp_path)
    assert not (tmp_path / "case").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(3600)
def test_all_cases_are_reported_right(kind: str, tmp_path: Path) -> None:
    wrong = {case.name: found for case in load_cases(kind) if (found := _wrong(case, tmp_path))}
    assert not wrong
