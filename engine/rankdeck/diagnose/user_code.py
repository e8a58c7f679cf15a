"""Whose code a frame of a traceback stands in: the person's own comes first, what others wrote is folded.

An error in a model is raised by torch, ten frames below the line that is wrong. Of printed lines,
`fold_frames` keeps the frames of the person's own code and says in a line how many of others stood between
them; `user_lines` says where those are. The whole traceback is in the rank's log. Read exceptions.py next.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base.errors import format_choices

FRAME = re.compile(r'^(?P<dent> *)File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_REPEATED_LINE = "[Previous line repeated"
_MAX_SHOWN = 5
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
_PYTHON_FOLDER = re.compile(r"python3\.\d+t?")
_RANKDECK_FOLDER = Path(__file__).parent.parent
_STDLIB_FOLDERS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


@dataclass(frozen=True)
class CodeLine:
    """A line of code that a traceback names; `function` and `text` are empty where it does not say them."""

    file: str
    line: int
    function: str = ""
    text: str = ""


def code_owner(file: str) -> str | None:
    """Whose a file is: a package's name, "Rankdeck" or "Python"; None for the person's own."""
    path = Path(file)
    parts = path.parts
    of_observer = path.parent.name == "observer" and path.parent.parent.name == "rankdeck"
    if of_observer or path.is_relative_to(_RANKDECK_FOLDER):
        return "Rankdeck"
    # An environment may see packages of another one: this process's own folders are not all that there are.
    for number, part in enumerate(parts[:-1]):
        if part in _PACKAGE_FOLDERS:
            return Path(parts[number + 1]).stem
    of_python = any(_PYTHON_FOLDER.fullmatch(part) for part in parts[:-1])
    if of_python or file.startswith("<") or any(path.is_relative_to(folder) for folder in _STDLIB_FOLDERS):
        return "Python"
    return None


def is_user_file(file: str) -> bool:
    """Whether code belongs to neither Python, an installed package nor Rankdeck."""
    return code_owner(file) is None


def user_lines(lines: Sequence[str]) -> list[CodeLine]:
    """The lines of the person's own code that a printed traceback names, the innermost first."""
    found = []
    for number, line in enumerate(lines):
        match = FRAME.match(line)
        if match is None or not is_user_file(match["file"]):
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        text = following.strip() if _belongs_to_frame(following, match["dent"]) else ""
        found.append(CodeLine(match["file"], int(match["line"]), match["function"] or "", text))
    return found[::-1]


def short_traceback(lines: Sequence[str]) -> list[str]:
    """At most five lines for a terminal: of a traceback the person's own, the innermost last; else the
    last ones. The log has them all."""
    if not any(map(FRAME.match, lines)):
        return list(lines[-_MAX_SHOWN:])
    return [
        f"{one.file}, line {one.line}"
        + (f", in {one.function}" if one.function else "")
        + (f": {one.text}" if one.text else "")
        for one in reversed(user_lines(lines)[:_MAX_SHOWN])
    ]


def fold_frames(lines: Sequence[str]) -> list[str]:
    """The lines with a run of others' frames as one; as they are where none is the person's own."""
    if not any(is_user_file(match["file"]) for line in lines if (match := FRAME.match(line))):
        return list(lines)
    kept: list[str] = []
    owners: list[str] = []
    dent: str | None = None
    """That of the frame of others whose lines are left out; None where lines are kept."""
    for line in lines:
        match = FRAME.match(line)
        owner = code_owner(match["file"]) if match else None
        if match is not None and owner is not None:
            dent = match["dent"]
            owners.append(owner)
        elif dent is None or not (_belongs_to_frame(line, dent) or line.strip().startswith(_REPEATED_LINE)):
            kept += _folded_line(owners, dent)
            owners, dent = [], None
            kept.append(line)
    return kept + _folded_line(owners, dent)


def _belongs_to_frame(line: str, dent: str) -> bool:
    """Whether a line says more of the frame above it."""
    return line.startswith(f"{dent}  ") and FRAME.match(line) is None


def _folded_line(owners: Sequence[str], dent: str | None) -> list[str]:
    """'  ... 6 frames of torch', or nothing."""
    if not owners or dent is None:
        return []
    count = f"{len(owners)} frame{'s' if len(owners) > 1 else ''}"
    return [f"{dent}... {count} of {format_choices(dict.fromkeys(owners)).replace(' or ', ' and ')}"]
