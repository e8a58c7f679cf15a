"""The table of cases, from the recorded results alone, and its place in docs/findings.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.silent.cases import Case
from tests.silent.trial import Result, result_key

START, END = "<!-- silent cases -->", "<!-- end of silent cases -->"
LEVELS = ("light", "check")


def format_table(cases: Sequence[Case], results: Iterable[Result]) -> str:
    """Return the totals and a row for each case that has run."""
    by_key = {result.key: result for result in results}
    faults, healthy = ([case for case in cases if case.kind == kind] for kind in ("fault", "healthy"))
    lines = [*_totals(faults, healthy, by_key), ""]
    lines += ["| case | light | check | words |", "| --- | --- | --- | --- |"]
    lines += [row for case in faults if (row := _row(case, by_key))]
    lines += [row for case in healthy if (row := _row(case, by_key)) and "**" in row]
    return "\n".join(lines) + "\n"


def _totals(faults: Sequence[Case], healthy: Sequence[Case], by_key: dict[str, Result]) -> list[str]:
    lines = []
    for level in _levels(by_key):
        expected = [result for result in _results_of(faults, level, by_key) if result.expected]
        right = sum(result.is_found and result.matches_words for result in expected)
        quiet = _results_of(healthy, level, by_key)
        false = sum(bool(result.codes) for result in quiet)
        broken = sum(bool(result.wrong and not result.codes) for result in quiet)
        lines.append(
            f"- `{level}`: {right} of {len(expected)} faults with the right cause; "
            f"false alarms: {false} of {len(quiet)} healthy scripts"
            + (f" ({broken} did not run)" if broken else "")
        )
    return lines


def _results_of(cases: Iterable[Case], level: str, by_key: dict[str, Result]) -> list[Result]:
    keys = [result_key(case.kind, case.name, level) for case in cases]
    return [by_key[key] for key in keys if key in by_key]


def _levels(by_key: dict[str, Result]) -> list[str]:
    return sorted(
        {result.level for result in by_key.values()}, key=lambda level: (level not in LEVELS, level)
    )


def _row(case: Case, by_key: dict[str, Result]) -> str:
    results = [by_key.get(result_key(case.kind, case.name, level)) for level in LEVELS]
    if not any(results):
        return ""
    cells = [_cell(case, result) for result in results]
    judged = [result for result in results if result is not None and result.is_found]
    words = ("yes" if all(result.matches_words for result in judged) else "no") if judged else ""
    return " ".join(f"| {case.name} | {cells[0]} | {cells[1]} | {words} |".split())


def _cell(case: Case, result: Result | None) -> str:
    if result is None:
        return ""
    codes = ", ".join(f"`{code}`" for code in result.codes) or "nothing"
    if result.wrong and not result.codes and not result.expected:
        return "**did not run**"
    if case.kind == "healthy":
        return f"**{codes}**" if result.codes else codes
    return (
        codes if result.is_found or not result.expected else f"**{codes}**, not `{'|'.join(result.expected)}`"
    )


def write_table(page: Path, table: str) -> None:
    """Replace the text between the page's two markers.

    Raises ValueError if the page does not have both.
    """
    before, start, rest = page.read_text(encoding="utf-8").partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{page.name} does not have the lines '{START}' and '{END}'.")
    page.write_text(f"{before}{START}\n\n{table}\n{END}{after}", encoding="utf-8")
