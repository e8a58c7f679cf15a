"""What came of each break and of each right combination, in words and in tables."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.verify_breaks.rows import Case, CheckedBreak

_KINDS = ("found", "other class", "missed", "refused before", "broke otherwise", "harmless")


@dataclass(frozen=True)
class BreakResult:
    """`kind` of a break: found (with a right class), other class, missed, refused before (by the engine in a
    sentence), broke otherwise (an exception, or ranks that hang), harmless. Of a right combination: quiet,
    alarm, refused before, broke otherwise, unchecked."""

    of: str
    name: str
    kind: str
    said: str
    seconds: float
    is_bad: bool = False

    def text(self) -> str:
        return f"{self.seconds:5.1f} s  {self.kind:15}  {self.of}: {self.name}  [{self.said}]"

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def judge_break(row: CheckedBreak, outcome: dict[str, Any], seconds: float) -> BreakResult:
    """What came of a break."""
    kind, text = _verdict_of(outcome)
    if kind == "quiet" or kind == "unchecked":
        kind = "harmless" if row.harmless else "missed"
        text = f"{row.harmless} / {text}" if row.harmless else text
    elif kind == "alarm":
        kind = "found" if outcome["cause"] in row.causes else "other class"
    if kind == "other class":
        text += f", not {' or '.join(row.causes)}"
    return BreakResult(row.of, f"{row.name}, {row.case.name}", kind, text, seconds, kind == "missed")


def judge_correct_case(case: Case, outcome: dict[str, Any], seconds: float) -> BreakResult:
    """What came of a case in which nothing is broken."""
    kind, text = _verdict_of(outcome)
    return BreakResult("right", case.name, kind, text, seconds, kind == "alarm")


def _verdict_of(outcome: dict[str, Any]) -> tuple[str, str]:
    if "hung" in outcome:
        return "broke otherwise", f"hung: {outcome['hung'][-300:]}"
    if "error" in outcome:
        kind = "refused before" if outcome["is_refusal"] else "broke otherwise"
        return kind, outcome["error"].replace("\n", " ")[:300]
    text = ", ".join(filter(None, (outcome["outcome"], outcome["cause"], *outcome["names"])))
    if outcome["outcome"] == "unchecked":
        return "unchecked", outcome["why"]
    if outcome["outcome"] == "differs":
        return "alarm", text
    return "quiet", f"{text}, {outcome['largest']:.1e} in {outcome['precision']}"


def format_tables(results: Sequence[BreakResult]) -> str:
    """How many of each kind, by what was broken."""
    groups = sorted({result.of for result in results})
    kinds = [
        kind for kind in (*_KINDS, "quiet", "alarm", "unchecked") if any(o.kind == kind for o in results)
    ]
    counts = Counter((result.of, result.kind) for result in results)
    rows = [f"| of | rows | {' | '.join(kinds)} |", f"| --- |{' ---: |' * (len(kinds) + 1)}"]
    for group in [*groups, "all"]:
        numbers = [sum(counts[of, kind] for of in groups if group in (of, "all")) for kind in kinds]
        rows.append(f"| {group} | {sum(numbers)} | {' | '.join(map(str, numbers))} |")
    return "\n".join(rows) + "\n" + _format_ratios(results)


def _format_ratios(results: Sequence[BreakResult]) -> str:
    """Of the breaks that reached the check."""
    kinds = Counter(result.kind for result in results)
    reached = kinds["found"] + kinds["other class"] + kinds["missed"]
    if not reached:
        return ""
    num_found = kinds["found"] + kinds["other class"]
    return (
        f"\n{num_found} of {reached} that reached the check were found ({num_found / reached:.1%}), "
        f"{kinds['found']} with a right class ({kinds['found'] / max(num_found, 1):.1%} of those found)"
    )
