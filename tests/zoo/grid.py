"""Every run of docs/equality.md as one character: a row for each entry, a column for each setting.

A clone that has run nothing goes on from there. Reasons have a letter each, which the page explains.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.zoo.compare import Outcome
from tests.zoo.registry import all_entries
from tests.zoo.strategies import SETTINGS

Reason = tuple[str, str]
"""The kind of an outcome, and what it has in common with others."""
NOTES = "Equal, though a note says otherwise"
TITLES = {"noted": "Noted, by reason", "refused": "Refused, by reason", "equal": NOTES}
_LETTERS = (
    string.ascii_uppercase + string.ascii_lowercase + string.digits + "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ"
)
_EQUAL, _BAD, _UNKNOWN = "=", "!", "."
_REASON = re.compile(r"- `(.)` \(\d+\) (.+)")
_ROW = re.compile(r"(\w+/\w+) +([0-9a-f]{6}) (\S+)")


def outcome_reason(outcome: Outcome) -> Reason:
    """Of an outcome that has one; else with an empty text."""
    if outcome.kind == "equal":
        return "equal", ", ".join(code for code, _, _ in outcome.notes)
    return outcome.kind, outcome.template or outcome.reason


def assign_letters(outcomes: Iterable[Outcome]) -> dict[Reason, str]:
    """A letter for each reason, those of each kind together, the most frequent first."""
    counts = Counter(reason for outcome in outcomes if (reason := outcome_reason(outcome))[1])
    ordered = [key for kind in TITLES for key, _ in counts.most_common() if key[0] == kind]
    if len(ordered) > len(_LETTERS):
        raise ValueError(f"{len(ordered)} reasons, and {len(_LETTERS)} letters")
    return dict(zip(ordered, _LETTERS, strict=False))


def format_reason(letter: str, number: int, text: str) -> str:
    return f"- `{letter}` ({number}) {text}"


def format_rows(outcomes: Mapping[tuple[str, str], Outcome], digests: Mapping[str, str]) -> list[str]:
    """`outcomes` by entry and setting; `digests` are of the files of each entry."""
    letters = assign_letters(outcomes.values())
    entries = {entry for entry, _ in outcomes}
    names = [name for name in all_entries() if name in entries]
    width = max(map(len, names), default=0)
    rows = []
    for name in names:
        cells = (_format_cell(outcomes.get((name, setting)), letters) for setting in SETTINGS)
        rows.append(f"{name:{width}} {digests[name][:6]} {''.join(cells)}")
    return rows


def _format_cell(outcome: Outcome | None, letters: Mapping[Reason, str]) -> str:
    if outcome is None:
        return _UNKNOWN
    return letters.get(outcome_reason(outcome), _EQUAL if outcome.kind == "equal" else _BAD)


def parse_page(page: Path) -> Iterator[tuple[str, str, str, Outcome]]:
    """Entry, setting, the first characters of its files' digest, outcome: of each run that was not wrong."""
    lines = page.read_text().splitlines() if page.exists() else []
    outcomes = {_EQUAL: Outcome("equal")} | _parse_reasons(lines)
    for line in lines:
        if (row := _ROW.fullmatch(line)) and row[1] in all_entries() and len(row[3]) == len(SETTINGS):
            for setting, cell in zip(SETTINGS, row[3], strict=True):
                if cell in outcomes:
                    yield row[1], setting, row[2], outcomes[cell]


def _parse_reasons(lines: Sequence[str]) -> dict[str, Outcome]:
    kinds = {f"## {title}": kind for kind, title in TITLES.items()}
    outcomes, kind = {}, ""
    for line in lines:
        if line.startswith("#"):
            kind = kinds.get(line, "")
        elif kind and (match := _REASON.fullmatch(line)):
            letter, text = match.groups()
            notes = [[code, "", ""] for code in text.split(", ")] if kind == "equal" else []
            reason = "" if notes else text
            outcomes[letter] = Outcome(kind, reason=reason, template=reason, notes=notes)
    return outcomes
