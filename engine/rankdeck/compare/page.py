"""Render a comparison as one self-contained page without scripts, images or fonts, suitable for sending and
archiving.

page.html.j2 is the template; it escapes all text that comes from a run. This module shortens home folders to
~.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankdeck import __version__
from rankdeck.base import files
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.masking import replace_control_characters
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_clock, format_count, format_duration
from rankdeck.compare import bar_charts, differences, formatting
from rankdeck.compare.bar_charts import DASHES, NUM_TINTS, label_heights, round_step, ticks
from rankdeck.compare.curves import AXES, LossCurve, loss_curve, step_axis
from rankdeck.compare.differences import Difference
from rankdeck.compare.run_metrics import ComparedRun, LoadedRun
from rankdeck.compare.run_report import ERROR_SIGN_NOTE, build_report
from rankdeck.compare.table import Comparison, compare_runs, run_letter
from rankdeck.diagnose.out_of_memory import OutOfMemoryReport
from rankdeck.run.run_state import RunState
from rankdeck.run.series import Floats
from rankdeck.run.summary_builder import problems_of

_TEMPLATE = "page.html.j2"


def write_page(file: Path, comparison: Comparison, states: Sequence[RunState], by: str) -> None:
    """Write the page of a comparison, replacing the file atomically; for `by`, see `render_comparison`.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_html(file, render_comparison(comparison, states, by))


def render_comparison(comparison: Comparison, states: Sequence[RunState], by: str) -> str:
    """Render the page of a comparison. `by` is the axis of the loss chart that is shown first."""
    return render_template(_TEMPLATE, {**_comparison_context(comparison), **loss_charts(states, by)})


def write_html(file: Path, text: str) -> None:
    """Write the text of a page, replacing the file atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        files.write_atomic(file, text, make_folder=False)
    except OSError as error:
        raise ConfigError(
            phrase("{path} cannot be written: {why}.", path=file, why=error.strerror or error),
            code="unwritable",
            path=str(file),
            advice=phrase("Choose another file, or free some disk space."),
        ) from None


def render_template(template: str, facts: Mapping[str, Any]) -> str:
    """Render a template from this folder, with all text escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        # A typo in a template must fail instead of rendering nothing.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Escaping leaves control characters, which HTML does not allow.
        finalize=lambda value: replace_control_characters(value) if type(value) is str else value,
    )
    environment.filters["home"] = formatting.shorten_home
    return environment.get_template(template).render(facts)


def loss_charts(states: Sequence[RunState], by: str, *, has_letters: bool = True) -> dict[str, object]:
    """Return values for a template: under "charts", a loss chart for each axis on which there are losses;
    under "by", the axis to show first; under "size", the charts' size. If `has_letters` is False, the curves
    have no letters."""
    charts = {}
    for axis in AXES:
        lines = [loss_curve(state, step_axis(state, axis), 500) for state in states]
        if (chart := build_loss_chart(axis, lines)) is not None:
            named = [line if has_letters else line._replace(letter="") for line in chart.lines]
            charts[axis] = chart._replace(lines=named)
    return {
        "charts": charts,
        "by": by if by in charts else next(iter(charts), by),
        "size": (WIDTH, HEIGHT),
    }


def _comparison_context(comparison: Comparison) -> Mapping[str, Any]:
    return {
        "comparison": comparison,
        "title": _title(comparison),
        "chips": [_run_chip(comparison, index) for index in range(len(comparison.runs))],
        "memory": bar_charts.memory_bars(comparison),
        "bars": bar_charts.bar_charts(comparison),
        "differences": (
            ("Configuration", _shorten_paths(comparison.config_differences)),
            ("Outside the configuration", _shorten_paths(comparison.other_differences)),
        ),
        "unknown": formatting.UNKNOWN,
        "version": __version__,
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _title(comparison: Comparison) -> str:
    names = [run.name for run in comparison.runs]
    rest = len(names) - 2
    more = f" and {rest} other{'s' if rest > 1 else ''}" if rest > 0 else ""
    return f"{names[0]} vs. {names[1]}{more}" if len(names) > 1 else names[0]


def _run_chip(comparison: Comparison, index: int) -> Mapping[str, Any]:
    run = comparison.runs[index]
    facts = (
        run.outcome,
        formatting.format_strategy(run),
        formatting.format_devices(run),
        formatting.format_time_source(run),
    )
    return {
        "letter": comparison.letter(index),
        "name": run.name,
        "facts": " · ".join(fact for fact in facts if fact),
        "path": formatting.shorten_home(str(run.ref)),
        "is_baseline": index == comparison.baseline,
        "is_bad": run.outcome in ("failed", "lost"),
        "problems": run.problems[:3],
    }


def _shorten_paths(rows: Sequence[Difference]) -> list[Difference]:
    return [
        Difference(
            row.key, tuple(None if value is None else formatting.shorten_home(value) for value in row.values)
        )
        for row in rows
    ]


# The charts of the page as numbers: the template turns them into SVG and escapes every text.

WIDTH, HEIGHT = 1040, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 40, 12, 28
_MAX_RAW_CURVES = 3
"""Maximum number of runs for which raw losses are drawn; raw losses of more runs would hide the averages."""


class Tick(NamedTuple):
    position: float
    label: str


class ChartLine(NamedTuple):
    """Line of one run: its tint and dash pattern, and its points in SVG's format."""

    letter: str
    tint: int
    dash: str
    average: str
    raw: str
    held_out: list[tuple[float, float]]
    end: tuple[float, float, float]
    """End (x, y) of the line of averages, and the y coordinate of the letter next to it."""


class LossChart(NamedTuple):
    by: str
    unit: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[ChartLine]


class _PlotScale(NamedTuple):
    """Mapping from positions and losses to drawing coordinates; losses far out of range get points outside
    the drawing."""

    x_max: float
    y_min: float
    y_max: float

    def x(self, positions: Floats) -> Floats:
        return _LEFT + positions / self.x_max * (WIDTH - _LEFT - _RIGHT)

    def y(self, losses: Floats) -> Floats:
        down = (self.y_max - losses) / (self.y_max - self.y_min)
        return np.clip(_TOP + down * (HEIGHT - _TOP - _BOTTOM), -HEIGHT, 2.0 * HEIGHT)

    def point(self, position: float, loss: float) -> tuple[float, float]:
        x, y = self.x(np.array([position])), self.y(np.array([loss]))
        return round(float(x[0]), 1), round(float(y[0]), 1)


def build_loss_chart(by: str, lines: Sequence[LossCurve]) -> LossChart | None:
    """Build a chart of losses over the axis `by`; None if no run has losses on this axis."""
    line_by_run = {index: line for index, line in enumerate(lines) if not line.is_empty}
    if not line_by_run:
        return None
    end = max(float(line.average_x[-1]) for line in line_by_run.values()) or 1.0
    plane = _PlotScale(end, *_loss_range(list(line_by_run.values())))
    ends = [plane.point(float(line.average_x[-1]), float(line.average[-1])) for line in line_by_run.values()]
    heights = label_heights(ends, _TOP + 4, HEIGHT - _BOTTOM - 2)
    return LossChart(
        by,
        {"step": "steps", "time": "training time, without pauses", "samples": "samples"}[by],
        [Tick(plane.point(at, plane.y_min)[0], _format_tick(by, at, end)) for at in ticks(0, end, 8)],
        [
            Tick(plane.point(0, at)[1], f"{at:.{_num_decimals(plane.y_min, plane.y_max)}f}")
            for at in ticks(plane.y_min, plane.y_max, 6)
        ],
        [
            ChartLine(
                run_letter(index),
                index % NUM_TINTS,
                " ".join(f"{length:g}" for length in DASHES[index]),
                _svg_points(plane.x(line.average_x), plane.y(line.average)),
                _raw_points(line, plane) if len(line_by_run) <= _MAX_RAW_CURVES else "",
                [plane.point(*pair) for pair in _held_out_points(line)],
                (*point, height),
            )
            for (index, line), point, height in zip(line_by_run.items(), ends, heights, strict=True)
        ],
    )


def _held_out_points(line: LossCurve) -> list[tuple[float, float]]:
    pairs = zip(line.held_out_x.tolist(), line.held_out.tolist(), strict=True)
    return [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]


def _loss_range(lines: Sequence[LossCurve]) -> tuple[float, float]:
    """Return the range of the averages and held-out losses, ignoring a few losses far above the rest."""
    values = np.concatenate([losses for line in lines for losses in (line.average, line.held_out)])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high, typical = float(values.min()), float(values.max()), float(np.percentile(values, 98))
    if high > low + 3 * (typical - low) > low:
        high = typical + 0.2 * (typical - low)
    # A flat curve has no range, and the scale divides by it.
    room = 0.05 * (high - low) or abs(high) or 1.0
    return low - room, high + room


def _svg_points(xs: Floats, ys: Floats) -> str:
    return " ".join(
        f"{a:.1f},{b:.1f}" for a, b in zip(xs.tolist(), ys.tolist(), strict=True) if math.isfinite(a + b)
    )


def _raw_points(line: LossCurve, plane: _PlotScale) -> str:
    xs = np.repeat(line.x, 2)
    ys = np.empty(2 * len(line.x))
    ys[0::2], ys[1::2] = line.low, line.high
    return _svg_points(plane.x(xs), plane.y(ys))


def _num_decimals(low: float, high: float) -> int:
    return max(0, -math.floor(math.log10(round_step(high - low, 6)) + 1e-9))


def _format_tick(by: str, at: float, end: float) -> str:
    if by == "time":
        return format_clock(at) if end >= 8 else f"{at:g} s"
    return format_count(at)


# One run as one page: metrics, losses, memory against its prediction, time by phase, fixes to try next.
#
# It is rendered like the page of a comparison, for a run or one of its attempts alone. run_report.py builds
# the part that the app also shows for a run that is over.

_REPORT_TEMPLATE = "report.html.j2"


def write_report(file: Path, run: LoadedRun, by: str, ran_out: OutOfMemoryReport | None = None) -> None:
    """Write the page of a run, replacing the file atomically. `ran_out` explains why the run ran out of
    memory, if it did.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_html(file, render_report(run, by, ran_out))


def render_report(run: LoadedRun, by: str, ran_out: OutOfMemoryReport | None = None) -> str:
    """Render the page of a run. `by` is the axis of the loss chart that is shown first; for `ran_out`, see
    `write_report`."""
    comparison = compare_runs([run.run])
    return render_template(
        _REPORT_TEMPLATE,
        {
            **_report_context(run, comparison),
            "ran_out": ran_out,
            **loss_charts([run.state], by, has_letters=False),
        },
    )


def _report_context(run: LoadedRun, comparison: Comparison) -> Mapping[str, Any]:
    compared_run, report = run.run, build_report(run.run, run.state)
    return {
        "comparison": comparison,
        "title": compared_run.name,
        "facts": _headline(compared_run, run.state),
        "is_bad": compared_run.outcome in ("failed", "lost"),
        "path": str(compared_run.ref),
        "problems": [_problem_context(problem) for problem in _problems(run)],
        "fixes": report.fixes,
        "memory": report.devices,
        "memory_bars": [
            group._replace(bars=[bar._replace(letter="") for bar in group.bars])
            for group in bar_charts.memory_bars(comparison)
        ],
        "is_predicted": report.is_predicted,
        "error_sign": ERROR_SIGN_NOTE,
        "run_name": compared_run.ref.path.name,
        "memory_source": report.memory_source,
        "phases": report.phases,
        "configuration": list(differences.flatten_config(compared_run.setup.tables)),
        "rest": list(differences.other_facts(compared_run)),
        "version": __version__,
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _headline(run: ComparedRun, state: RunState) -> str:
    started = state.first_started
    start_text = "" if started is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(started.started))
    trained = run.value("trained_s")
    facts = (
        run.outcome,
        formatting.format_strategy(run),
        formatting.format_devices(run),
        start_text and f"started {start_text}",
        "" if trained is None else f"trained {format_duration(trained)}",
        formatting.format_time_source(run),
    )
    return " · ".join(fact for fact in facts if fact)


def _problems(run: LoadedRun) -> list[Problem]:
    return problems_of(run.run.ref.run_dir, run.state, run.run.outcome)


def _problem_context(problem: Problem) -> Mapping[str, str]:
    fields = msgspec.structs.asdict(problem)
    return {"headline": problem.headline(), "advice": fields["advice"] or "", "severity": fields["severity"]}
