"""Reads the headers of the scripts: how many ranks run them, and what must be reported.

A script starts with a docstring. Comments follow, one key each:

    # ranks: 2                    number of ranks, 1 or 2
    # args: --kind wgan           arguments; each such line is a case of its own
    # expect: ranks-drifted       codes of which one must be found (CODE|CODE); only for faults
    # expect-check: CODE          the same where light observation cannot find it
    # words: no_sync|wrapped      a pattern that the finding's text must match
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.checkout import CHECKOUT

FOLDER = Path(__file__).parent
KINDS = {"fault": "faults", "healthy": "healthy"}
FINDINGS_PAGE = CHECKOUT / "docs/findings.md"
_HEADER = re.compile(r"^# ([a-z-]+): (.+)$", re.M)
_REQUIRED = {"fault": {"ranks", "words"}, "healthy": {"ranks"}}
_ALLOWED = {"fault": {"ranks", "words", "expect", "expect-check"}, "healthy": {"ranks", "args"}}


@dataclass(frozen=True)
class Case:
    """A script with its arguments and what must be reported about it."""

    kind: str
    name: str
    file: Path
    arguments: tuple[str, ...]
    num_ranks: int
    codes: tuple[str, ...]
    check_codes: tuple[str, ...]
    words: str

    def expected_codes(self, level: str) -> tuple[str, ...]:
        """Return the codes of which one must be found at this level of observation."""
        return self.codes if level == "light" else (*self.codes, *self.check_codes)


def load_cases(kind: str) -> list[Case]:
    """Return all cases of a kind, sorted by name."""
    return [case for file in sorted((FOLDER / KINDS[kind]).glob("*.py")) for case in read_cases(kind, file)]


def read_cases(kind: str, file: Path) -> list[Case]:
    """Return the cases of a script.

    Raises ValueError with the file's name if its header is not as described above.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if not ast.get_docstring(tree):
        raise ValueError(f"{file.name}: it has no docstring")
    head = "\n".join(_head_lines(tree, file))
    pairs = _HEADER.findall(head)
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value.strip())
    keys = values.keys()
    if len(pairs) != head.count("\n") + 1:
        raise ValueError(f"{file.name}: the header has lines that are not '# key: value'")
    if missing := _REQUIRED[kind] - keys:
        raise ValueError(f"{file.name}: {', '.join(sorted(missing))} is missing")
    if unknown := keys - _ALLOWED[kind]:
        raise ValueError(f"{file.name}: {', '.join(sorted(unknown))} is unknown")
    if kind == "fault" and len(keys & {"expect", "expect-check"}) != 1:
        raise ValueError(f"{file.name}: either expect or expect-check is needed")
    if repeated := [key for key in keys if key != "args" and len(values[key]) > 1]:
        raise ValueError(f"{file.name}: {', '.join(repeated)} appears twice")
    if values["ranks"][0] not in ("1", "2"):
        raise ValueError(f"{file.name}: ranks must be 1 or 2")
    return [
        Case(
            kind=kind,
            name="-".join([file.stem, *arguments.split()[1::2]]),
            file=file,
            arguments=tuple(arguments.split()),
            num_ranks=int(values["ranks"][0]),
            codes=_codes(values, "expect"),
            check_codes=_codes(values, "expect-check"),
            words=re.compile(values.get("words", [""])[0]).pattern,
        )
        for arguments in values.get("args", [""])
    ]


def _head_lines(tree: ast.Module, file: Path) -> list[str]:
    """Return the comments between the docstring and the first statement."""
    lines = file.read_text(encoding="utf-8").splitlines()
    end = tree.body[1].lineno - 1 if len(tree.body) > 1 else len(lines)
    return [line for line in lines[tree.body[0].end_lineno : end] if line.strip()]


def _codes(values: dict[str, list[str]], key: str) -> tuple[str, ...]:
    return tuple(code for value in values.get(key, []) for code in value.split("|"))


def finding_codes() -> set[str]:
    """Return the codes in the tables of docs/findings.md."""
    return set(re.findall(r"^\| `([a-z-]+)` \|", FINDINGS_PAGE.read_text(encoding="utf-8"), re.M))
