"""docs/mutants.md: every break, and the test that sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.checkout import CHECKOUT
from tests.mutants.breaks import Break, drawn

PAGE = CHECKOUT / "docs" / "mutants.md"
_TOP = """# Mutation tests

`make mutants` breaks one line of the engine at a time, in a copy of the tree, and runs the tests that should
detect the break. We chose the fixed breaks before we wrote tests for them, at least three for each strategy
and each package. cosmic-ray draws the others at random. If no test detects a break, a bug in this line could
go unnoticed. This page lists these lines as survivors.
"""


def write(breaks: Sequence[Break], file_of_drawn: Path, result_of: Callable[[Break], Any]) -> None:
    """Of every break of which something is known."""
    others = drawn(file_of_drawn)
    sections = [_TOP, _counts("fixed", breaks, result_of)]
    if others:
        data = json.loads(file_of_drawn.read_text("utf-8"))
        sections.append(_counts(f"drawn by {data['by']} with seed {data['seed']}", others, result_of))
    sections += [_survivors([*breaks, *others], result_of), "## Fixed breaks\n", _rows(breaks, result_of)]
    if others:
        sections += ["## Drawn breaks\n", _rows(others, result_of)]
    PAGE.write_text("\n".join(sections), "utf-8")


def _counts(title: str, breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    results = [(mutant, result_of(mutant)) for mutant in breaks]
    tried = [(mutant, result) for mutant, result in results if result is not None]
    caught = sum(result.by is not None for _, result in tried)
    harmless = sum(result.by is None and mutant.harmless is not None for mutant, result in tried)
    left = len(tried) - caught - harmless
    suffix = f", {len(results) - len(tried)} not tried yet" if len(tried) < len(results) else ""
    return f"- {len(breaks)} {title}: {caught} caught, {harmless} harmless, {left} survived{suffix}"


def _survivors(breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    survived = [
        mutant for mutant in breaks if (result := result_of(mutant)) is not None and result.by is None
    ]
    rows = [f"- {_format_break(mutant)}: " + (mutant.harmless or "**survived**") for mutant in survived]
    return "\n".join(["\n## Survivors\n", *(rows or ["None."]), ""])


def _rows(breaks: Sequence[Break], result_of: Callable[[Break], Any]) -> str:
    rows = ["| of | break | seen by |", "| --- | --- | --- |"]
    for mutant in breaks:
        result = result_of(mutant)
        by = (
            "not tried yet"
            if result is None
            else result.by or ("harmless" if mutant.harmless else "**nothing**")
        )
        rows.append(f"| {mutant.of} | {_format_break(mutant)} | {by.partition('[')[0].rpartition('/')[2]} |")
    return "\n".join([*rows, ""])


def _format_break(mutant: Break) -> str:
    location = mutant.file if mutant.line is None else f"{mutant.file}, line {mutant.line}"
    return f"{mutant.name.replace('|', ' or ')} ({location})"
