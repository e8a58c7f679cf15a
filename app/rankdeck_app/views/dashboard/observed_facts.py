"""Lists short facts about how a user's script was started and what Rankdeck observed in it, the most
important first."""

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
    """Return facts about how the script was started and what was observed in it, the most important first."""
    all_facts = [*_script_facts(run)]
    observed = run.state.script.lead_observation
    if observed is not None:
        all_facts += [
            fact for make in (_versions, _parallel, _model, _workload) if (fact := make(run, observed))
        ]
        if observed.not_finite is not None:
            text = tr("loss not finite at step {step}", step=observed.not_finite)
            more = tr("Rank {rank}: first observed step with a non-finite loss", rank=observed.rank)
            all_facts.append(Fact("warning", tr("Loss"), text, more, tone="hot"))
        if observed.parts:
            more = "\n".join(f"{component}: {reason}" for component, reason in observed.parts.items())
            text = tr("not observed: {what}", what=", ".join(observed.parts))
            all_facts.append(Fact("warning", tr("Not observed"), text, more, tone="hot"))
    return tuple(all_facts)


def _script_facts(run: RunView) -> Iterator[Fact]:
    if run.script is None:
        return
    table = run.script.script
    what = f"-m {table.run}" if table.kind == "module" else table.run.rpartition("/")[2]
    # Arguments and variables may hold secrets.
    args = mask_arguments(table.args)
    command = shlex.join([*(["-m"] if table.kind == "module" else []), table.run, *args])
    details = [
        tr("in {folder}", folder=table.folder),
        *(f"{name}={value}" for name, value in mask_table(table.environment).items()),
    ]
    yield Fact("file-code", tr("Script"), shlex.join([what, *args]), "\n".join([command, *details]))
    if table.kind != "program":
        source = f" ({table.python_source})" if table.python_source else ""
        yield Fact("python", tr("Interpreter"), _short_python(table.python), f"{table.python}{source}")


def _short_python(python: str) -> str:
    """Return the name of the interpreter's environment ('.venv' for /p/.venv/bin/python), or the
    interpreter's path if it is in no environment."""
    # /usr/bin and /usr/local/bin belong to no environment, so their path is shown.
    components = python.rsplit("/", 3)
    return (
        components[1]
        if len(components) == 4 and components[2] == "bin" and components[1] not in ("usr", "local")
        else python
    )


def _versions(run: RunView, observed: events.Observed) -> Fact | None:
    if not observed.versions:
        return None
    version_texts = [f"{name} {version}" for name, version in observed.versions.items()]
    first = [f"{name} {observed.versions[name]}" for name in ("python", "torch") if name in observed.versions]
    return Fact("versions", tr("Versions"), " · ".join(first or version_texts[:1]), "\n".join(version_texts))


def _parallel(run: RunView, observed: events.Observed) -> Fact | None:
    script, started = run.state.script, run.state.started
    worlds = [rank.world_size for rank in script.ranks.values() if rank.world_size]
    requested = started.world_size if started is not None else 0
    # A script may start more ranks than were requested.
    ranks = max([requested, len(script.ranks), *worlds])
    count = tr("{n} ranks", "{n} rank", ranks)
    options = "\n".join(format_setting(key, value) for key, value in observed.wrapper_options.items())
    text = " · ".join(filter(None, (observed.wrapper, count, observed.backend)))
    return Fact("type-hierarchy", tr("Parallel"), text, options)


def _model(run: RunView, observed: events.Observed) -> Fact | None:
    candidates = [
        _class_name(observed.model),
        _parameters_text(observed.num_parameters),
        _class_name(observed.optimizer),
    ]
    texts = [word for word in candidates if word]
    more = [observed.model, observed.optimizer]
    more += [
        tr("steps of another optimizer, {optimizer}: {count}", optimizer=name, count=count)
        for name, count in observed.other_optimizers.items()
    ]
    if observed.skipped:
        more.append(tr("steps skipped by the gradient scaler: {count}", count=observed.skipped))
    tooltip = "\n".join(filter(None, more))
    return Fact("layers", tr("Model"), " · ".join(texts), tooltip) if texts else None


def _workload(run: RunView, observed: events.Observed) -> Fact | None:
    candidates = [
        None if observed.batch is None else tr("batch {size}", size=observed.batch),
        None
        if observed.accumulate in (None, 1)
        else tr("{count} backward passes per step", count=observed.accumulate),
        observed.precision,
    ]
    texts = [word for word in candidates if word]
    more = [observed.dataset]
    if observed.num_samples is not None:
        more.append(tr("{count} samples", count=format_count(observed.num_samples)))
    if observed.loader_workers is not None:
        more.append(tr("loader workers: {count}", count=observed.loader_workers))
    for rank, totals in run.state.script.collectives.items():
        calls = ", ".join(f"{name} {count}" for name, count in totals.calls.items())
        more.append(tr("collective calls of rank {rank}: {calls}", rank=rank, calls=calls))
    tooltip = "\n".join(filter(None, more))
    return Fact("table", tr("Work"), " · ".join(texts), tooltip) if texts else None


def _parameters_text(num_parameters: int | None) -> str | None:
    return None if num_parameters is None else tr("{count} parameters", count=_short_count(num_parameters))


def _class_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition(":")[2].rpartition(".")[2]


def _short_count(count: int) -> str:
    for power, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return str(count)
