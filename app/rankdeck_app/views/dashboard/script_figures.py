"""From a live run of a person's own script to what its cards show: plain functions, no widgets made.

A script tells what it tells: what is absent stays absent, and where a card has nothing to show, `absence`
says why in one line. run_figures.py has what such a run shares with a configured one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rankdeck import events
from rankdeck.base.phrases import marked
from rankdeck.base.units import format_count, format_duration, format_setting
from rankdeck.run.problems import without_steps
from rankdeck_app.language import spoken, tr
from rankdeck_app.state.run_answers import RunAnswers
from rankdeck_app.views.dashboard import run_figures, run_rows
from rankdeck_app.widgets.card_files import ManyRows, Row
from rankdeck_app.widgets.chart import UNKNOWN
from rankdeck_app.widgets.facts_line import Fact
from rankdeck_app.widgets.metric_curves import MetricCurve, MetricsFigure
from rankdeck_app.widgets.stat_strip import Stat, imbalance_stat

_LOSS_WORDS = (marked("what backward ran on, sampled"), marked("sampled"))


def is_stepless(run: RunAnswers) -> bool:
    """Whether no step was seen and none will be."""
    return run.step is None and (run.is_over or not _is_observed(run))


def _is_observed(run: RunAnswers) -> bool:
    return run.script is None or run.script.script.observe != "none"


def stats(run: RunAnswers) -> tuple[Stat, ...]:
    """The cells of the strip: those that this script can fill."""
    cells = [] if is_stepless(run) else _of_steps(run)
    if run.samples_per_s is not None:
        cells.append(Stat(tr("Samples/s"), run_figures.rate_text(run, run.samples_per_s), "88 888"))
    if (wait := run.fold.script.wait_share) is not None:
        cells.append(Stat(tr("Loader wait"), f"{100 * wait:.1f}%", "88.8%"))
    elapsed = UNKNOWN if run.elapsed_s is None else format_duration(run.elapsed_s)
    cells.append(Stat(tr("Elapsed"), elapsed, "8:88:88"))
    if (status := run.fold.script.script_status) is not None:
        cells.append(Stat(tr("Exit status"), str(status), "888", is_hot=status != 0))
    return (*cells, *_balance(run))


def _of_steps(run: RunAnswers) -> list[Stat]:
    step = UNKNOWN if run.step is None else format_count(run.step)
    cells = [Stat(tr("Step"), step, "8" * max(5, len(step)))]
    if run.loss is not None or not run.is_over:
        cells.append(run_figures.loss_stat(run))
    return [*cells, Stat(tr("Steps/s"), run_figures.rate_text(run, run.steps_per_s), "88 888")]


def _balance(run: RunAnswers) -> list[Stat]:
    if all(run.total_bytes_of(device) is None for device in run.devices):
        return []
    if len(run.devices) == 1 or run.imbalance is None:
        return [run_figures.stats(run)[-1]] if len(run.devices) == 1 else []
    return [imbalance_stat(run.imbalance, [run.label_of(device) for device in run.rows])]


# What runs


def facts(run: RunAnswers) -> tuple[Fact, ...]:
    """What was started and what was seen of it, the most telling first."""
    found = [*_started(run)]
    seen = run.fold.script.lead
    if seen is not None:
        found += [fact for make in (_versions, _parallel, _model, _work) if (fact := make(run, seen))]
        if seen.not_finite is not None:
            text = tr("loss not finite at step {step}", step=seen.not_finite)
            more = tr("Rank {rank}, the first step whose loss was read and was not finite", rank=seen.rank)
            found.append(Fact("warning", tr("Loss"), text, more, tone="hot"))
        if seen.parts:
            more = "\n".join(f"{part}: {reason}" for part, reason in seen.parts.items())
            text = tr("not observed: {what}", what=", ".join(seen.parts))
            found.append(Fact("warning", tr("Not observed"), text, more, tone="hot"))
    return tuple(found)


def _started(run: RunAnswers) -> Iterator[Fact]:
    if run.script is None:
        return
    table = run.script.script
    what = f"-m {table.run}" if table.kind == "module" else table.run.rpartition("/")[2]
    command = shlex.join([*(["-m"] if table.kind == "module" else []), table.run, *table.args])
    told = [
        tr("in {folder}", folder=table.folder),
        *(f"{name}={value}" for name, value in table.environment.items()),
    ]
    yield Fact("file-code", tr("Script"), shlex.join([what, *table.args]), "\n".join([command, *told]))
    if table.kind != "program":
        source = f" ({table.python_source})" if table.python_source else ""
        yield Fact("python", tr("Interpreter"), _short_python(table.python), f"{table.python}{source}")


def _short_python(python: str) -> str:
    """'.venv' of /p/.venv/bin/python: the environment's name says more than its path."""
    parts = python.rsplit("/", 3)
    return parts[1] if len(parts) == 4 and parts[2] == "bin" and parts[1] not in ("usr", "local") else python


def _versions(run: RunAnswers, seen: events.Observed) -> Fact | None:
    if not seen.versions:
        return None
    words = [f"{name} {version}" for name, version in seen.versions.items()]
    first = [f"{name} {seen.versions[name]}" for name in ("python", "torch") if name in seen.versions]
    return Fact("versions", tr("Versions"), " · ".join(first or words[:1]), "\n".join(words))


def _parallel(run: RunAnswers, seen: events.Observed) -> Fact | None:
    script, started = run.fold.script, run.fold.started
    worlds = [rank.world_size for rank in script.ranks.values() if rank.world_size]
    asked = started.world_size if started is not None else 0
    ranks = max([asked, len(script.ranks), *worlds])
    count = tr("{n} ranks", "{n} rank", ranks)
    options = "\n".join(format_setting(key, value) for key, value in seen.wrapper_options.items())
    text = " · ".join(filter(None, (seen.wrapper, count, seen.backend)))
    return Fact("type-hierarchy", tr("Parallel"), text, options)


def _model(run: RunAnswers, seen: events.Observed) -> Fact | None:
    words = [_class_name(seen.model), _size(seen.num_parameters), _class_name(seen.optimizer)]
    known = [word for word in words if word]
    more = [seen.model, seen.optimizer]
    more += [
        tr("also steps {optimizer}: {count}", optimizer=name, count=count)
        for name, count in seen.other_optimizers.items()
    ]
    if seen.skipped:
        more.append(tr("{count} steps skipped by the gradient scaler", count=seen.skipped))
    told = "\n".join(filter(None, more))
    return Fact("layers", tr("Model"), " · ".join(known), told) if known else None


def _work(run: RunAnswers, seen: events.Observed) -> Fact | None:
    words = [
        None if seen.batch is None else tr("batch {size}", size=seen.batch),
        None if seen.accumulate in (None, 1) else tr("{count} backwards a step", count=seen.accumulate),
        seen.precision,
    ]
    known = [word for word in words if word]
    more = [seen.dataset]
    if seen.num_samples is not None:
        more.append(tr("{count} samples", count=format_count(seen.num_samples)))
    if seen.loader_workers is not None:
        more.append(tr("{count} loader workers", count=seen.loader_workers))
    for rank, totals in run.fold.script.collectives.items():
        calls = ", ".join(f"{name} {count}" for name, count in totals.calls.items())
        more.append(tr("rank {rank} called {calls}", rank=rank, calls=calls))
    told = "\n".join(filter(None, more))
    return Fact("table", tr("Work"), " · ".join(known), told) if known else None


def _size(num_parameters: int | None) -> str | None:
    return None if num_parameters is None else tr("{count} parameters", count=_short_count(num_parameters))


def _class_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition(":")[2].rpartition(".")[2]


def _short_count(count: int) -> str:
    for power, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return str(count)


# Why there is nothing


def absence(run: RunAnswers, part: str = "") -> str:
    """Why there are no steps, or nothing of a part of what is observed (loss, memory, …)."""
    seen = run.fold.script.lead
    if not _is_observed(run):
        return tr("not observed: it runs with --observe none")
    if seen is not None and part in seen.parts:
        return tr("not observed: {what}", what=seen.parts[part])
    if run.step is None:
        if run.is_over:
            return spoken(without_steps(began=bool(run.fold.script.ranks), is_over=True))
        return tr("waiting for the first optimizer step")
    return tr("none was seen") if run.is_over else tr("none was seen yet")


def headline(run: RunAnswers) -> tuple[str, str, str] | None:
    """As run_figures.headline; a script that is under way and has not stepped yet is not starting."""
    if not run.is_over and run.ending is None and run.standstill is None:
        if run.step is not None or not _is_observed(run):
            return None
        return "info", tr("Running; no optimizer step was seen yet."), tr("Its output is below.")
    if run.outcome == "completed" and run.step is None:
        unseen = (
            tr("Completed; it ended before its first steps were written down.")
            if run.fold.script.ranks
            else tr("Completed; no optimizer step was seen.")
        )
        return "info", unseen, tr("Its output is below.")
    return run_figures.headline(run)


# The cards


def shown_cards(run: RunAnswers) -> set[str]:
    """The cards that have something to show, or say why they have not; what is logged is not looked at."""
    shown = {"loss"} if is_stepless(run) else {"loss", "rate"}
    if any(len(device.memory_history) > 1 for device in run.devices):
        shown.add("band")
    if any(run.total_bytes_of(device) is not None for device in run.devices):
        shown.add("bars")
    if any(len(device.utilisation_history) for device in run.devices):
        shown.add("heat")
    if run.fold.script.wait_share is not None:
        shown.add("wait")
    curves = {"lr": run.fold.lrs, "norm": run.fold.script.grad_norms}
    shown |= {name for name, curve in curves.items() if len(curve)}
    return shown


def loss_subtitle(run: RunAnswers) -> tuple[str, ...]:
    return tuple(map(tr, _LOSS_WORDS)) if len(run.losses) else ("",)


def rate_subtitle(run: RunAnswers) -> str:
    return tr("samples/s") if run.samples_per_s is not None else tr("steps/s")


def wait_subtitle(run: RunAnswers) -> str:
    return "" if run.fold.script.wait_share is None else tr("% of a step")


def metrics(run: RunAnswers) -> MetricsFigure:
    return MetricsFigure(
        tuple(
            MetricCurve(
                name, one.curve, one.last, one.step, tr("logged through {library}", library=one.through)
            )
            for name, one in run.fold.metrics.items()
        )
    )


def metrics_subtitle(run: RunAnswers) -> str:
    """Whose words the names are, and how many are not kept."""
    through = dict.fromkeys(one.through for one in run.fold.metrics.values())
    cut = run.fold.script.num_names_cut
    words = [tr("through {libraries}", libraries=", ".join(through))] if through else []
    if cut:
        words.append(tr("{count} more names are not kept", count=format_count(cut)))
    return "; ".join(words)


# CSV


def metrics_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("name", "through", "step", "value")
    for name, one in run.fold.metrics.items():
        yield ManyRows(name, one.through, *run_rows.by_step(one.curve))


def rate_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    script = run.fold.script
    yield ("step", "steps_per_s", "smoothed")
    yield ManyRows(*run_rows.by_step(script.step_rates, script.step_rate_ema))


def wait_rows(run: RunAnswers) -> Iterator[Row | ManyRows]:
    yield ("step", "wait_share")
    yield ManyRows(*run_rows.by_step(run.fold.script.waits))


csv_rows = {
    "lr": run_rows.lr_rows,
    "norm": run_rows.norm_rows,
    "bars": run_rows.bars_rows,
    "band": run_rows.band_rows,
    "heat": run_rows.heat_rows,
    "loss": run_rows.loss_rows,
    "rate": rate_rows,
    "wait": wait_rows,
    "metrics": metrics_rows,
}
