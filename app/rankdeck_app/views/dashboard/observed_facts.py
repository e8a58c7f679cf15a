"""How a person's own script was started and what was seen of it: short facts, the most telling first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rankdeck import events
from rankdeck.base.masking import mask_arguments, mask_table
from rankdeck.base.units import format_count, format_setting
from rankdeck_app.language import tr
from rankdeck_app.state.run_view import RunView
from rankdeck_app.widgets.facts_line import Fact


def facts(run: RunView) -> tuple[Fact, ...]:
    """What was started and what was seen of it, the most telling first."""
    found = [*_script_facts(run)]
    seen = run.state.script.lead_observation
    if seen is not None:
        found += [fact for make in (_versions, _parallel, _model, _workload) if (fact := make(run, seen))]
        if seen.not_finite is not None:
            text = tr("loss not finite at step {step}", step=seen.not_finite)
            more = tr("Rank {rank}, the first step whose loss was read and was not finite", rank=seen.rank)
            found.append(Fact("warning", tr("Loss"), text, more, tone="hot"))
        if seen.parts:
            more = "\n".join(f"{part}: {reason}" for part, reason in seen.parts.items())
            text = tr("not observed: {what}", what=", ".join(seen.parts))
            found.append(Fact("warning", tr("Not observed"), text, more, tone="hot"))
    return tuple(found)


def _script_facts(run: RunView) -> Iterator[Fact]:
    if run.script is None:
        return
    table = run.script.script
    what = f"-m {table.run}" if table.kind == "module" else table.run.rpartition("/")[2]
    args = mask_arguments(table.args)
    command = shlex.join([*(["-m"] if table.kind == "module" else []), table.run, *args])
    told = [
        tr("in {folder}", folder=table.folder),
        *(f"{name}={value}" for name, value in mask_table(table.environment).items()),
    ]
    yield Fact("file-code", tr("Script"), shlex.join([what, *args]), "\n".join([command, *told]))
    if table.kind != "program":
        source = f" ({table.python_source})" if table.python_source else ""
        yield Fact("python", tr("Interpreter"), _short_python(table.python), f"{table.python}{source}")


def _short_python(python: str) -> str:
    """'.venv' of /p/.venv/bin/python: the environment's name says more than its path."""
    parts = python.rsplit("/", 3)
    return parts[1] if len(parts) == 4 and parts[2] == "bin" and parts[1] not in ("usr", "local") else python


def _versions(run: RunView, seen: events.Observed) -> Fact | None:
    if not seen.versions:
        return None
    words = [f"{name} {version}" for name, version in seen.versions.items()]
    first = [f"{name} {seen.versions[name]}" for name in ("python", "torch") if name in seen.versions]
    return Fact("versions", tr("Versions"), " · ".join(first or words[:1]), "\n".join(words))


def _parallel(run: RunView, seen: events.Observed) -> Fact | None:
    script, started = run.state.script, run.state.started
    worlds = [rank.world_size for rank in script.ranks.values() if rank.world_size]
    asked = started.world_size if started is not None else 0
    ranks = max([asked, len(script.ranks), *worlds])
    count = tr("{n} ranks", "{n} rank", ranks)
    options = "\n".join(format_setting(key, value) for key, value in seen.wrapper_options.items())
    text = " · ".join(filter(None, (seen.wrapper, count, seen.backend)))
    return Fact("type-hierarchy", tr("Parallel"), text, options)


def _model(run: RunView, seen: events.Observed) -> Fact | None:
    words = [_class_name(seen.model), _parameters_text(seen.num_parameters), _class_name(seen.optimizer)]
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


def _workload(run: RunView, seen: events.Observed) -> Fact | None:
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
    for rank, totals in run.state.script.collectives.items():
        calls = ", ".join(f"{name} {count}" for name, count in totals.calls.items())
        more.append(tr("rank {rank} called {calls}", rank=rank, calls=calls))
    told = "\n".join(filter(None, more))
    return Fact("table", tr("Work"), " · ".join(known), told) if known else None


def _parameters_text(num_parameters: int | None) -> str | None:
    return None if num_parameters is None else tr("{count} parameters", count=_short_count(num_parameters))


def _class_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition(":")[2].rpartition(".")[2]


def _short_count(count: int) -> str:
    for power, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return str(count)
