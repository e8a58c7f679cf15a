"""Read a code file named in a traceback, or report why it cannot be shown. Since the traceback, the file may
have been replaced by something other than a regular file, such as a named pipe."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.units import format_bytes
from rankdeck_app.language import tr

MAX_FILE_BYTES = 2 << 20


@dataclass(frozen=True)
class CodeText:
    """Text of a code file; `problem` explains why the text cannot be shown."""

    text: str = ""
    problem: str = ""


def read_code(path: Path) -> CodeText:
    """Read a code file. Never raises, and never blocks on a pipe."""
    try:
        data = files.read_bytes(path, MAX_FILE_BYTES)
    except FileNotFoundError:
        return CodeText(problem=tr("{path} does not exist.", path=path))
    except OSError as error:
        return CodeText(problem=_error_text(path, error))
    if b"\0" in data:
        return CodeText(problem=tr("{path} is not a text file: it contains NUL bytes.", path=path))
    try:
        # utf-8-sig drops a byte order mark.
        return CodeText(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        why = tr(
            "{path} is not UTF-8 text (line {line}). Open it in an external editor.", path=path, line=line
        )
        return CodeText(problem=why)


def _error_text(path: Path, error: OSError) -> str:
    if error.errno == errno.EFBIG:
        return tr(
            "{path} is larger than the limit of {most}. Open it in an external editor.",
            path=path,
            most=format_bytes(MAX_FILE_BYTES),
        )
    if path.is_dir():
        return tr("{path} is a folder.", path=path)
    if error.errno in (errno.EINVAL, errno.ENXIO):
        return tr("{path} is not a regular file.", path=path)
    return tr("{path} cannot be read: {why}.", path=path, why=error.strerror)
