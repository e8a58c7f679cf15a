"""docs/mutants.md: every break, and the test that sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.checkout import CHECKOUT
from tests.mutants.breaks import Break, drawn

PAGE = CHECKOUT / "docs" / "mutants.md"
_TOP = """# Breaks that tests see

`make mutants` breaks one line of the engine at a time in a copy of the tree, and runs the tests that ought to
see it. The fixed breaks were chosen before tests were written for them, at least three for each strategy and
each room; the drawn ones are cosmic-ray's. A break that no test sees is a line that may go wrong unseen: it
stands here by its name.
"""


def write(breaks: Sequence[Break], file_of_drawn: Path, result_of: Callable[[Break], Any]) -> None:
    """Of every break of which something is known."""
    others = drawn(file_of_drawn)
    parts = [_TOP, _counts("fixed", breaks, result_of)]
    if others:
        told = json.loads(file_of_drawn.read_text("utf-8"))
        parts.append(_counts(f"drawn by {told['by']} with seed {told['seed']}", others, result_of))
    parts += [_survivors([*breaks, *others], result_of), "## Fixed breaks\n", _rows(breaks, result_of)]
    if others:
        parts += ["## Drawn breaks\n", _rows(others, result_of)]
    PAGE.write_text("\n".join(parts), "utf-8")


def _counts(words: str, breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    results = [(one, result_of(one)) for one in breaks]
    tried = [(one, found) for one, found in results if found is not None]
    caught = sum(found.by is not None for _, found in tried)
    harmless = sum(found.by is None and one.harmless is not None for one, found in tried)
    left = len(tried) - caught - harmless
    rest = f", {len(results) - len(tried)} not tried yet" if len(tried) < len(results) else ""
    return f"- {len(breaks)} {words}: {caught} caught, {harmless} harmless, {left} survived{rest}"


def _survivors(breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    survived = [one for one in breaks if (found := result_of(one)) is not None and found.by is None]
    rows = [f"- {_words(one)}: " + (one.harmless or "**survived**") for one in survived]
    return "\n".join(["\n## Survivors\n", *(rows or ["None."]), ""])


def _rows(breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    rows = ["| of | break | seen by |", "| --- | --- | --- |"]
    for one in breaks:
        found = result_of(one)
        by = "not tried yet" if found is None else found.by or ("harmless" if one.harmless else "**nothing**")
        rows.append(f"| {one.of} | {_words(one)} | {by.partition('[')[0].rpartition('/')[2]} |")
    return "\n".join([*rows, ""])


def _words(one: Break) -> str:
    place = one.file if one.line is None else f"{one.file}, line {one.line}"
    return f"{one.name.replace('|', ' or ')} ({place})"
