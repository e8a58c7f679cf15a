"""One run as one page: figures, losses, memory beside its prediction, time by phase, what to try next.

It is made as the page of a comparison is (page.py), for a run or one of its attempts alone. reported.py has
what the app shows of a run that is over, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rankdeck import __version__
from rankdeck.base.errors import Problem
from rankdeck.base.units import format_duration
from rankdeck.compare import bars, differences, page, words
from rankdeck.compare.figures import ComparedRun
from rankdeck.compare.reading import ReadRun
from rankdeck.compare.reported import ERROR_SIGN, reported
from rankdeck.compare.table import Comparison, compare
from rankdeck.run.fold import Fold
from rankdeck.run.summarising import problems_of

_TEMPLATE = "report.html.j2"


def write_report(file: Path, run: ReadRun, by: str, why: object = None) -> None:
    """Replace the file, whole or not at all. `why` is why it ran out of memory (diagnose/why.py), if it did.

    Raises:
        ConfigError: it cannot be written.
    """
    page.write(file, report_of(run, by, why))


def report_of(run: ReadRun, by: str, why: object = None) -> str:
    """The whole page. `by` is the axis of the losses that is on top when it is opened."""
    comparison = compare([run.figures])
    return page.render(
        _TEMPLATE, {**_facts(run, comparison), "why": why, **page.losses([run.fold], by, has_letters=False)}
    )


def _facts(run: ReadRun, comparison: Comparison) -> Mapping[str, Any]:
    figures, told = run.figures, reported(run.figures, run.fold)
    return {
        "comparison": comparison,
        "title": figures.name,
        "facts": _headline(figures, run.fold),
        "is_bad": figures.outcome in ("failed", "lost"),
        "path": str(figures.at),
        "problems": [_in_words(problem) for problem in _problems(run)],
        "suggestions": told.next_steps,
        "memory": told.devices,
        "memory_bars": [
            group._replace(bars=[bar._replace(letter="") for bar in group.bars])
            for group in bars.memory_bars(comparison)
        ],
        "is_predicted": told.is_predicted,
        "error_sign": ERROR_SIGN,
        "run_name": figures.at.path.name,
        "memory_source": told.memory_source,
        "phases": told.phases,
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
