"""docs/equality.md: counts per strategy, each run that a person has to look at, and why others stopped."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from tests.zoo.cache import Result
from tests.zoo.compare import BAR, OUTCOMES
from tests.zoo.strategies import SETTINGS

_MOST_NAMES = 8
_INTRODUCTION = """# Equality

Small models, losses, optimizers and data sets of many kinds, each trained for a few steps under every
strategy, schedule and sync in fp64, beside a plain PyTorch loop on one device that imports nothing of the
engine (`tests/zoo`), after the check before the first step. `make zoo` runs what is not known yet and writes
this page. What that check finds of deliberate breaks, `make verify-breaks` says (figures: docs/decisions.md).

- **equal**: weights, buffers and losses differ by less than {bar:g} of what training changed.
- **refused**: the engine says before the first step, or as soon as it can know, why it does not run this.
- **noted**: something else came out, and a note or the strategy's own nature says so.
- **different**: something else came out, and nothing was said.
- **failed**: an error that is no sentence of the engine's, or no end at all.

{counts} torch {torch}.
"""


def write(results: Sequence[Result], num_wanted: int | None = None) -> str:
    """The whole page. `num_wanted` is how many runs there would be if all had been done."""
    kinds = Counter(result.entry.partition("/")[0] for result in {one.entry: one for one in results}.values())
    entries = ", ".join(
        f"{number} {kind if kind != 'data' else 'data sets'}" for kind, number in kinds.items()
    )
    older = sum(not result.is_current for result in results)
    counts = f"{entries}; {len(results)} runs"
    counts += f" of {num_wanted}" if num_wanted not in (None, len(results)) else ""
    counts += f", {older} of them of an older engine." if older else "."
    parts = [
        _INTRODUCTION.format(bar=BAR, counts=counts, torch=torch.__version__.partition("+")[0]),
        _table(results),
        _different(_of(results, "different")),
        _failed(_of(results, "failed")),
        _reasons("Noted, by reason", _of(results, "noted")),
        _reasons("Refused, by reason", _of(results, "refused")),
        _needless(_of(results, "equal")),
    ]
    return "\n".join(part for part in parts if part)


def _of(results: Iterable[Result], kind: str) -> list[Result]:
    return [result for result in results if result.outcome.kind == kind]


def _table(results: Sequence[Result]) -> str:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.setting][result.outcome.kind] += 1
    rows = [name for name in SETTINGS if name in counts]
    total = sum(counts.values(), Counter())
    lines = [f"| strategy | {' | '.join(OUTCOMES)} |", "| --- |" + " ---: |" * len(OUTCOMES)]
    for name, row in [(name, counts[name]) for name in rows] + [("**all**", total)]:
        lines.append(f"| {name} | " + " | ".join(str(row[kind]) for kind in OUTCOMES) + " |")
    return "\n".join(lines) + "\n"


def _different(results: Sequence[Result]) -> str:
    """By entry, those under most strategies first, with the largest difference of each."""
    groups = _grouped(results, lambda result: result.entry)
    lines = []
    for entry, own in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        worst = max(own, key=lambda result: result.outcome.difference or 0.0)
        size, where = worst.outcome.difference, worst.outcome.where
        lines.append(f"- {entry}: {size:.1e} at `{where}` under {_settings([worst])}{_others(own, worst)}")
    return "## Silently different\n\n" + ("\n".join(lines) or "None.") + "\n"


def _others(own: Sequence[Result], worst: Result) -> str:
    others = [result for result in own if result is not worst]
    return f"; also under {_settings(others)}" if others else ""


def _failed(results: Sequence[Result]) -> str:
    """By entry and by what was said, which is the same under several strategies."""
    groups = _grouped(results, lambda result: (result.entry, result.outcome.reason[:60]))
    lines = [
        f"- {entry}: {own[0].outcome.reason[:240]}; under {_settings(own)}"
        for (entry, _), own in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return "## Failed\n\n" + ("\n".join(lines) or "None.") + "\n"


def _grouped(results: Sequence[Result], of: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    groups: dict[Any, list[Result]] = defaultdict(list)
    for result in results:
        groups[of(result)].append(result)
    return groups


def _settings(results: Sequence[Result]) -> str:
    return ", ".join(result.setting for result in results)


def _reasons(title: str, results: Sequence[Result]) -> str:
    if not results:
        return f"## {title}\n\nNone.\n"
    groups = _grouped(results, lambda result: result.outcome.template or result.outcome.reason)
    lines = [f"## {title}\n"]
    lines += [
        f"- {own[0].outcome.reason} ({_times(len(own))}: {_some(own)})"
        for own in sorted(groups.values(), key=len, reverse=True)
    ]
    return "\n".join(lines) + "\n"


def _needless(results: Sequence[Result]) -> str:
    """Notes of runs that were equal all the same."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        for code, _, _ in result.outcome.notes:
            groups[code].append(result)
    if not groups:
        return ""
    lines = ["## Notes of runs that were equal\n"]
    lines += [f"- {code} ({_times(len(own))}: {_some(own)})" for code, own in sorted(groups.items())]
    return "\n".join(lines) + "\n"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _some(results: Sequence[Result]) -> str:
    """Whom it is about, without the whole product."""
    entries = list(dict.fromkeys(result.entry.partition("/")[2] for result in results))
    settings = list(dict.fromkeys(result.setting for result in results))
    return f"{_first(entries)}; under {_first(settings)}"


def _first(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
