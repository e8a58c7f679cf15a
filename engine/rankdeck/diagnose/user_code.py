"""Determine whose code a traceback frame is in: show the user's own frames and fold all others.

torch often raises an error ten frames below the wrong line of a model. `fold_frames` keeps the lines of user
code in a printed traceback and replaces the other frames with a count of them; `user_lines` returns only the
lines of user code. The whole traceback is in the rank's log. Read exceptions.py next.
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
# Some distributions have compiled modules in a folder of their own (lib64), hence both.
_STDLIB_FOLDERS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


@dataclass(frozen=True)
class CodeLine:
    """A line of code named in a traceback; `function` and `text` are empty if the traceback omits them."""

    file: str
    line: int
    function: str = ""
    text: str = ""


def code_owner(file: str) -> str | None:
    """Return a file's owner: a package's name, "Rankdeck" or "Python"; None for the user's own code."""
    path = Path(file)
    parts = path.parts
    # The observer may run from another copy of Rankdeck than this one.
    of_observer = path.parent.name == "observer" and path.parent.parent.name == "rankdeck"
    if of_observer or path.is_relative_to(_RANKDECK_FOLDER):
        return "Rankdeck"
    # A virtual environment may include another one's packages, so this process's own folders are not enough.
    for number, part in enumerate(parts[:-1]):
        if part in _PACKAGE_FOLDERS:
            return Path(parts[number + 1]).stem
    of_python = any(_PYTHON_FOLDER.fullmatch(part) for part in parts[:-1])
    if of_python or file.startswith("<") or any(path.is_relative_to(folder) for folder in _STDLIB_FOLDERS):
        return "Python"
    return None


def is_user_file(file: str) -> bool:
    """Check whether a file is not part of Python, an installed package or Rankdeck."""
    return code_owner(file) is None


def user_lines(lines: Sequence[str]) -> list[CodeLine]:
    """Return the lines of user code named in a printed traceback, the innermost first."""
    code_lines = []
    for number, line in enumerate(lines):
        match = FRAME.match(line)
        if match is None or not is_user_file(match["file"]):
            continue
        following = lines[number + 1] if number + 1 < len(lines) else ""
        # Python omits the source line of a file that it cannot read, and the next line is then another frame
        # or the message.
        text = following.strip() if _belongs_to_frame(following, match["dent"]) else ""
        code_lines.append(CodeLine(match["file"], int(match["line"]), match["function"] or "", text))
    return code_lines[::-1]


def short_traceback(lines: Sequence[str]) -> list[str]:
    """Return at most five of the lines, for a terminal; the log has all of them.

    If the lines contain a traceback, return its lines of user code, innermost last; otherwise the last lines.
    """
    if not any(map(FRAME.match, lines)):
        return list(lines[-_MAX_SHOWN:])
    return [
        f"{code_line.file}, line {code_line.line}"
        + (f", in {code_line.function}" if code_line.function else "")
        + (f": {code_line.text}" if code_line.text else "")
        for code_line in reversed(user_lines(lines)[:_MAX_SHOWN])
    ]


def fold_frames(lines: Sequence[str]) -> list[str]:
    """Return the lines with consecutive library frames folded into one line; return all lines unchanged if no
    frame is in user code."""
    # Without user code the library's frames are all that the reader has to go by.
    if not any(is_user_file(match["file"]) for line in lines if (match := FRAME.match(line))):
        return list(lines)
    output: list[str] = []
    owners: list[str] = []
    dent: str | None = None
    """Indentation of the library frame that is being folded; None outside library frames."""
    for line in lines:
        match = FRAME.match(line)
        owner = code_owner(match["file"]) if match else None
        if match is not None and owner is not None:
            dent = match["dent"]
            owners.append(owner)
        elif dent is None or not (_belongs_to_frame(line, dent) or line.strip().startswith(_REPEATED_LINE)):
            output += _folded_line(owners, dent)
            owners, dent = [], None
            output.append(line)
    return output + _folded_line(owners, dent)


def _belongs_to_frame(line: str, dent: str) -> bool:
    """Check whether a line belongs to the frame above it, whose first line is indented by `dent`."""
    return line.startswith(f"{dent}  ") and FRAME.match(line) is None


def _folded_line(owners: Sequence[str], dent: str | None) -> list[str]:
    """Return a list with one line such as '  ... 6 frames of torch'; an empty list if there are no frames to
    fold."""
    if not owners or dent is None:
        return []
    count = f"{len(owners)} frame{'s' if len(owners) > 1 else ''}"
    return [f"{dent}... {count} of {format_choices(dict.fromkeys(owners)).replace(' or ', ' and ')}"]
