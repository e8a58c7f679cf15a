"""docs/equality.md: counts per strategy, what a person has to look at, why others stopped, and all runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tests.zoo import grid
from tests.zoo.cache import ZooResult, files_digest
from tests.zoo.compare import OUTCOMES, TOLERANCE
from tests.zoo.registry import all_entries
from tests.zoo.strategies import SETTINGS

_INTRODUCTION = """# Equality

Does every strategy compute what one device computes? `tests/zoo` has small models, losses, optimizers and
data sets of many kinds. Each is trained for a few steps in fp64, under every strategy, schedule and sync. The
result is compared with a plain PyTorch loop on one device, which imports nothing from the engine. Every run
also has the check before its first step.

`make zoo` runs missing combinations and writes this page; `make test` runs another minute's share each day.
`make verify-breaks` measures how many deliberate breaks the check finds (results: docs/decisions.md).

- **equal**: weights, buffers and losses differ by less than {bar:g} of what training changed.
- **refused**: the engine reports, before the first step or as soon as it can know, why it does not run this.
- **noted**: the result differs, and a note or the strategy's documentation explains why.
- **different**: the result differs without an explanation.
- **failed**: an error without a message of the engine, or a run that does not end.

{counts} torch {torch}.
"""


def format_page(results: Sequence[ZooResult], num_wanted: int | None = None) -> str:
    """The whole page. `num_wanted` is how many runs there would be if all had been done."""
    kinds = Counter(
        result.entry.partition("/")[0] for result in {item.entry: item for item in results}.values()
    )
    numbers = ", ".join(
        f"{number} {kind if kind != 'data' else 'data sets'}" for kind, number in kinds.items()
    )
    current = sum(result.is_current for result in results)
    counts = f"{numbers}; {len(results)} runs"
    counts += f" of {num_wanted}" if num_wanted not in (None, len(results)) else ""
    counts += "." if current == len(results) else f", {current} of them with the current engine."
    sections = [
        _INTRODUCTION.format(bar=TOLERANCE, counts=counts, torch=torch.__version__.partition("+")[0]),
        _format_grid(results),
        _format_different(_of_kind(results, "different")),
        _format_failed(_of_kind(results, "failed")),
        *_format_reasons(results),
        _format_runs(results),
    ]
    return "\n".join(sections)


def _of_kind(results: Iterable[ZooResult], kind: str) -> list[ZooResult]:
    return [result for result in results if result.outcome.kind == kind]


def _format_grid(results: Sequence[ZooResult]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.setting][result.outcome.kind] += 1
    rows = [name for name in SETTINGS if name in counts]
    total = sum(counts.values(), Counter())
    lines = [f"| strategy | {' | '.join(OUTCOMES)} |", "| --- |" + " ---: |" * len(OUTCOMES)]
    for name, row in [(name, counts[name]) for name in rows] + [("**all**", total)]:
        lines.append(f"| {name} | " + " | ".join(str(row[kind]) for kind in OUTCOMES) + " |")
    return "\n".join(lines) + "\n"


def _format_different(results: Sequence[ZooResult]) -> str:
    """By entry, those under most strategies first, with the largest difference of each."""
    groups = _group_by(results, lambda result: result.entry)
    lines = []
    for entry, group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        worst = max(group, key=lambda result: result.outcome.difference or 0.0)
        size, where = worst.outcome.difference, worst.outcome.where
        lines.append(
            f"- {entry}: {size:.1e} at `{where}` under "
            f"{_format_settings([worst])}{_format_others(group, worst)}"
        )
    return "## Silently different\n\n" + ("\n".join(lines) or "None.") + "\n"


def _format_others(group: Sequence[ZooResult], worst: ZooResult) -> str:
    others = [result for result in group if result is not worst]
    return f"; also under {_format_settings(others)}" if others else ""


def _format_failed(results: Sequence[ZooResult]) -> str:
    """By entry and by what was said, which is the same under several strategies."""
    groups = _group_by(results, lambda result: (result.entry, result.outcome.reason[:60]))
    lines = [
        f"- {entry}: {group[0].outcome.reason[:240]}; under {_format_settings(group)}"
        for (entry, _), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return "## Failed\n\n" + ("\n".join(lines) or "None.") + "\n"


def _group_by(results: Sequence[ZooResult], of: Callable[[ZooResult], Any]) -> dict[Any, list[ZooResult]]:
    groups: dict[Any, list[ZooResult]] = defaultdict(list)
    for result in results:
        groups[of(result)].append(result)
    return groups


def _format_settings(results: Sequence[ZooResult]) -> str:
    return ", ".join(result.setting for result in results)


def _format_reasons(results: Sequence[ZooResult]) -> list[str]:
    """A section for each kind of outcome that has reasons."""
    outcomes = [result.outcome for result in results]
    counts = Counter(map(grid.outcome_reason, outcomes))
    letters = grid.assign_letters(outcomes)
    sections = []
    for kind, title in grid.TITLES.items():
        pairs = [(letter, of) for of, letter in letters.items() if of[0] == kind]
        lines = [grid.format_reason(letter, counts[of], of[1]) for letter, of in pairs]
        sections.append(f"## {title}\n\n" + ("\n".join(lines) or "None.") + "\n")
    return sections


def _format_runs(results: Sequence[ZooResult]) -> str:
    outcomes = {(result.entry, result.setting): result.outcome for result in results}
    digests = {key: files_digest(entry) for key, entry in all_entries().items()}
    lines = grid.format_rows(outcomes, digests)
    legend = "= equal, ! different or failed, . not run, letters as above"
    row = "Each row has an entry, a digest of its files, and its runs, in the order of the table"
    return f"## Every run\n\n{row}: {legend}.\n\n```text\n" + "\n".join([*lines, "```\n"])
