"""One run as one page: figures, losses, memory beside its prediction, time by phase, what to try next.

It is made as the page of a comparison is (page.py), for a run or one of its attempts alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rankdeck import __version__
from rankdeck.base.errors import Problem
from rankdeck.base.units import format_bytes, format_duration
from rankdeck.compare import bars, differences, page, words
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.reading import ReadRun
from rankdeck.compare.suggesting import suggestions
from rankdeck.compare.table import Comparison, compare
from rankdeck.run.anatomy import SIMULATED_TIME, totals_s
from rankdeck.run.fold import Fold
from rankdeck.run.summary import problems_of

_TEMPLATE = "report.html.j2"


class ReportedDevice(NamedTuple):
    """What a device held at its peak beside what was predicted."""

    label: str
    measured: str
    predicted: str
    error: str
    kinds: str


class PhaseTable(NamedTuple):
    """The last sampled step: seconds by phase, a row each, a column by device."""

    step: int
    devices: list[str]
    rows: list[tuple[str, list[str]]]
    note: str


def write_report(file: Path, run: ReadRun, by: str) -> None:
    """Replace the file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    page.write(file, report_of(run, by))


def report_of(run: ReadRun, by: str) -> str:
    """The whole page. `by` is the axis of the losses that is on top when it is opened."""
    comparison = compare([run.figures])
    return page.render(
        _TEMPLATE, {**_facts(run, comparison), **page.losses([run.fold], by, has_letters=False)}
    )


def _facts(run: ReadRun, comparison: Comparison) -> Mapping[str, Any]:
    figures = run.figures
    return {
        "comparison": comparison,
        "title": figures.name,
        "facts": _headline(figures, run.fold),
        "is_bad": figures.outcome in ("failed", "lost"),
        "path": str(figures.at),
        "problems": [_in_words(problem) for problem in _problems(run)],
        "suggestions": suggestions(figures),
        "memory": list(_devices(figures)),
        "memory_bars": [
            group._replace(bars=[bar._replace(letter="") for bar in group.bars])
            for group in bars.memory_bars(comparison)
        ],
        "is_predicted": any(device.predicted_bytes is not None for device in figures.devices),
        "run_name": figures.at.path.name,
        "memory_source": figures.memory_source,
        "phases": _phases(figures, run.fold),
        "configuration": list(differences.leaves(figures.background.tables or {})),
        "rest": list(differences.rest_of(figures)),
        "version": __version__,
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _headline(run: ComparedRun, fold: Fold) -> str:
    started = fold.first_started
    began = "" if started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(started.started))
    trained = run.value("trained_s")
    facts = (
        run.outcome,
        words.strategy_in_words(run),
        words.devices_in_words(run),
        began and f"began {began}",
        "" if trained is None else f"trained {format_duration(trained)}",
        words.kind_in_words(run),
    )
    return " · ".join(fact for fact in facts if fact)


def _problems(run: ReadRun) -> list[Problem]:
    return problems_of(run.figures.at.run, run.fold, run.figures.outcome)


def _in_words(problem: Problem) -> Mapping[str, str]:
    told = msgspec.structs.asdict(problem)
    return {"headline": problem.headline(), "advice": told["advice"] or "", "severity": told["severity"]}


def _devices(run: ComparedRun) -> Iterator[ReportedDevice]:
    for device in run.devices:
        measured, predicted = device.num_bytes, device.predicted_bytes
        error = f"{(predicted / measured - 1) * 100:+.2f} %" if predicted and measured else words.UNKNOWN
        largest = sorted(device.by_kind.items(), key=lambda kind: -kind[1])[:4]
        yield ReportedDevice(
            device.label,
            words.UNKNOWN if measured is None else format_bytes(measured),
            words.UNKNOWN if predicted is None else format_bytes(predicted),
            error,
            ", ".join(f"{kind} {format_bytes(size)}" for kind, size in largest if size),
        )


def _phases(run: ComparedRun, fold: Fold) -> PhaseTable | None:
    sampled = fold.anatomy
    if sampled is None:
        return None
    by_device = [dict(totals_s(row)) for row in sampled.rows]
    names = dict.fromkeys(name for totals in by_device for name in totals)
    labels = {place: device.label for place, device in enumerate(run.devices)}
    return PhaseTable(
        sampled.step,
        [labels.get(row.device, str(row.device)) for row in sampled.rows],
        [
            (name, [words.step_time(one[name]) if name in one else words.UNKNOWN for one in by_device])
            for name in names
        ],
        SIMULATED_TIME if sampled.simulated else words.kind_in_words(run),
    )
