"""Where words go: results to stdout, the rest to stderr; problems as sentences or as JSON.

Piped output is not cut to a terminal's width. A reader that goes away (`| head`) ends the command without a
word.
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

_PIPED_WIDTH = 400


class _SafeConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else segment._replace(text=replace_control_characters(segment.text))
            )

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def _make_console(stream: TextIO) -> Console:
    width = None if stream.isatty() else _PIPED_WIDTH
    return _SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False)


def out() -> Console:
    """The console of results."""
    return _make_console(sys.stdout)


def err() -> Console:
    """The console of everything that is no result."""
    return _make_console(sys.stderr)


def discard_output(handle: int) -> None:
    """Discard what is written to a stream from now on: its reader is gone, and Python flushes it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, handle)
    os.close(null)


def print_problem(raised: Problem, file: str | None = None) -> None:
    """One problem on stderr: what and where, what to do next, then where the person's own code stood."""
    raised = with_doctor_advice(raised)
    style = {"warning": "yellow", "info": "default"}.get(raised.severity, "bold red")
    words = Text(raised.headline(file), style=style)
    if raised.advice:
        words.append(f"\n{raised.advice}", style="default not bold")
    # A rank that failed for a reason of ours wrote just these words.
    shown = [f"  | {line}" for line in short_traceback(raised.last_lines) if line.strip() not in words.plain]
    for line in (*shown, *evidence_lines(raised)):
        words.append(f"\n{line}", style="default dim not bold")
    err().print(words, soft_wrap=True)


def evidence_lines(raised: Problem) -> Iterable[str]:
    """What was seen, and where; of what the message or the rank's own last lines say only where."""
    told = [raised.message, *raised.last_lines]
    for seen in raised.evidence:
        text = "" if any(seen.text in one for one in told) else seen.text
        yield "  " + "  ".join(filter(None, (text, f"({seen.location})" if seen.location else "")))


def print_problems_json(problems: Iterable[Problem]) -> None:
    """`{problems: [{code, path, line, message, advice, cure, evidence, templates, arguments}]}` on stdout."""
    keys = ("code", "path", "line", "message", "advice", "cure", "evidence", "templates", "arguments")
    told = [{key: getattr(item, key) for key in keys} for item in map(with_doctor_advice, problems)]
    print_json({"problems": msgspec.to_builtins(told)})


def print_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON document on stdout. What is not finite becomes null: JSON has no word for it."""
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


# Where a command writes its file: to the name that was typed, or for "-" to stdout, once it is whole.

STDOUT = Path("-")


def is_stdout(file: Path, *, as_json: bool) -> bool:
    """Whether the file is stdout.

    Raises:
        ConfigError: --json goes there, too.
    """
    if file == STDOUT and as_json:
        raise ConfigError(
            phrase("The file and --json cannot both be written to stdout."),
            code="usage",
            advice=phrase("Name a file, or leave --json out."),
        )
    return file == STDOUT


@contextlib.contextmanager
def output_path(file: Path) -> Iterator[Path]:
    """Where to write meanwhile: the file itself, or one whose bytes then go to stdout."""
    if file != STDOUT:
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        yield whole
        with open(whole, "rb") as contents:
            shutil.copyfileobj(contents, sys.stdout.buffer)
        sys.stdout.flush()


def output_name(file: Path) -> str:
    return "stdout" if file == STDOUT else str(file)
