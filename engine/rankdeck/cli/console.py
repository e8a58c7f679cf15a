"""Write results to stdout and everything else to stderr, and print problems as text or JSON.

Piped output is not cut to a terminal's width. If its reader exits (`| head`), the command ends silently.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.masking import replace_control_characters as replace_control_characters
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.user_code import short_traceback
from rankdeck.doctor.doctor_advice import with_doctor_advice

# rich needs some width for a pipe; its own default of 80 columns would cut tables.
_PIPED_WIDTH = 400


class _SafeConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        # Texts may hold control characters of scripts; rich's own control segments are kept.
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else segment._replace(text=replace_control_characters(segment.text))
            )

    # rich would exit with status 1 here. The exception reaches app.run, which exits as SIGPIPE would have
    # done.
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def _make_console(stream: TextIO) -> Console:
    width = None if stream.isatty() else _PIPED_WIDTH
    # No markup and emoji: names and messages of users and scripts are printed as they are.
    return _SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)


def out() -> Console:
    """Return the console for results."""
    return _make_console(sys.stdout)


def err() -> Console:
    """Return the console for everything that is not a result."""
    return _make_console(sys.stderr)


def discard_output(handle: int) -> None:
    """Redirect to /dev/null a stream whose reader is gone, so that Python's flush at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, handle)
    os.close(null)


def print_problem(raised: Problem, file: str | None = None) -> None:
    """Print a problem on stderr: the message and location, the advice, the traceback's lines of user code,
    and the evidence."""
    raised = with_doctor_advice(raised)
    style = {"warning": "yellow", "info": "default"}.get(raised.severity, "bold red")
    text = Text(raised.headline(file), style=style)
    if raised.advice:
        text.append(f"\n{raised.advice}", style="default not bold")
    # If the engine itself raised the problem in a rank, the rank's last lines repeat its text.
    traceback_lines = [
        f"  | {line}" for line in short_traceback(raised.last_lines) if line.strip() not in text.plain
    ]
    for line in (*traceback_lines, *evidence_lines(raised)):
        text.append(f"\n{line}", style="default dim not bold")
    err().print(text, soft_wrap=True)


def evidence_lines(raised: Problem) -> Iterable[str]:
    """Yield a line for each piece of the problem's evidence, with its location.

    A line has only the location if the problem's message or `last_lines` already contains the text.
    """
    reported_texts = [raised.message, *raised.last_lines]
    for item in raised.evidence:
        text = "" if any(item.text in reported for reported in reported_texts) else item.text
        yield "  " + "  ".join(filter(None, (text, f"({item.location})" if item.location else "")))


def print_problems_json(problems: Iterable[Problem]) -> None:
    """Print problems as JSON on stdout.

    The document is {problems: [{code, path, line, message, advice, cure, evidence, templates, arguments}]}.
    """
    keys = ("code", "path", "line", "message", "advice", "cure", "evidence", "templates", "arguments")
    problem_dicts = [{key: getattr(item, key) for key in keys} for item in map(with_doctor_advice, problems)]
    print_json({"problems": msgspec.to_builtins(problem_dicts)})


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a JSON document on stdout. Non-finite numbers become null, because JSON cannot represent them."""
    # Other encodings lack characters, so those are written as JSON escapes.
    has_all = "utf" in (sys.stdout.encoding or "").lower()
    sys.stdout.write(json.dumps(_replace_non_finite(value), indent=indent, ensure_ascii=not has_all) + "\n")
    sys.stdout.flush()


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_non_finite(item) for item in value]
    return value


# Output files of commands: the given path, or for "-" stdout, which is written once the file is complete.

STDOUT = Path("-")


def is_stdout(file: Path, *, as_json: bool) -> bool:
    """Return whether the file is stdout.

    Raises:
        ConfigError: both the file and the --json output would be written to stdout.
    """
    if file == STDOUT and as_json:
        raise ConfigError(
            phrase("The output file and the --json output cannot both be written to stdout."),
            code="usage",
            advice=phrase("Specify a file, or omit --json."),
        )
    return file == STDOUT


@contextlib.contextmanager
def output_path(file: Path) -> Iterator[Path]:
    """Yield the path to write to: the file itself, or a temporary file that is copied to stdout at the
    end."""
    if file != STDOUT:
        yield file
        return
    # A folder and not a temporary file: exports write next to their target and rename.
    with tempfile.TemporaryDirectory() as folder:
        temporary_file = Path(folder, "whole")
        yield temporary_file
        with open(temporary_file, "rb") as contents:
            shutil.copyfileobj(contents, sys.stdout.buffer)
        sys.stdout.flush()


def output_name(file: Path) -> str:
    return "stdout" if file == STDOUT else str(file)
