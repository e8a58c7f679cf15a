"""A comparison as one page: no script, no picture and no font from anywhere, so that it can be sent and kept.

page.html.j2 is the template; every word of a run is escaped there, and home folders are shortened here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankdeck import __version__
from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.masking import harmless
from rankdeck.base.phrases import phrase
from rankdeck.compare import bars, page_charts, words
from rankdeck.compare.curves import BY, loss_line, step_axis
from rankdeck.compare.differences import Difference
from rankdeck.compare.table import Comparison
from rankdeck.run.fold import Fold

_TEMPLATE = "page.html.j2"


def write_page(file: Path, comparison: Comparison, folds: Sequence[Fold], by: str) -> None:
    """Replace the file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    write(file, page_of(comparison, folds, by))


def page_of(comparison: Comparison, folds: Sequence[Fold], by: str) -> str:
    """The whole page. `by` is the axis of the losses that is on top when it is opened."""
    return render(_TEMPLATE, {**_facts(comparison), **losses(folds, by)})


def write(file: Path, text: str) -> None:
    """As `write_page`."""
    try:
        files.write_whole(file, text, make_folder=False)
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=file, why=error.strerror or error),
            code="unwritable",
            path=str(file),
            advice=phrase("Name another file, or free space on the disk."),
        ) from None


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A template of this folder, every word escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: harmless(value) if type(value) is str else value,
    )
    environment.filters["home"] = words.shortened
    return environment.get_template(template).render(facts)


def losses(folds: Sequence[Fold], by: str, *, has_letters: bool = True) -> dict[str, Any]:
    """The drawings over each axis on which there are losses, and which is on top."""
    charts = {}
    for axis in BY:
        lines = [loss_line(fold, step_axis(fold, axis), 500) for fold in folds]
        if (chart := page_charts.loss_chart(axis, lines)) is not None:
            named = [line if has_letters else line._replace(letter="") for line in chart.lines]
            charts[axis] = chart._replace(lines=named)
    return {
        "charts": charts,
        "by": by if by in charts else next(iter(charts), by),
        "size": (page_charts.WIDTH, page_charts.HEIGHT),
    }


def _facts(comparison: Comparison) -> Mapping[str, Any]:
    return {
        "comparison": comparison,
        "title": _title(comparison),
        "chips": [_chip(comparison, place) for place in range(len(comparison.runs))],
        "memory": bars.memory_bars(comparison),
        "bars": bars.bar_charts(comparison),
        "differences": (
            ("Configuration", _shortened(comparison.configuration)),
            ("Not configuration", _shortened(comparison.rest)),
        ),
        "unknown": words.UNKNOWN,
        "version": __version__,
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _title(comparison: Comparison) -> str:
    names = [run.name for run in comparison.runs]
    rest = len(names) - 2
    more = f" and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else ""
    return f"{names[0]} beside {names[1]}{more}" if len(names) > 1 else names[0]


def _chip(comparison: Comparison, place: int) -> Mapping[str, Any]:
    run = comparison.runs[place]
    facts = (run.outcome, words.strategy_in_words(run), words.devices_in_words(run), words.kind_in_words(run))
    return {
        "letter": comparison.letter(place),
        "name": run.name,
        "facts": " · ".join(fact for fact in facts if fact),
        "path": words.shortened(str(run.at)),
        "is_baseline": place == comparison.baseline,
        "is_bad": run.outcome in ("failed", "lost"),
        "problems": run.problems[:3],
    }


def _shortened(rows: Sequence[Difference]) -> list[Difference]:
    return [
        Difference(row.key, tuple(None if one is None else words.shortened(one) for one in row.values))
        for row in rows
    ]
