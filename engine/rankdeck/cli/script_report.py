"""Rows about a user's script in `show` and at the end of `watch`: labels and texts.

They are made from the summary that `show --json` prints (run/summary.py). Values that were not observed have
no row.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.text import Text

from rankdeck.base.units import format_bytes, format_count
from rankdeck.cli.formatting import UNKNOWN, empty_table, one_line
from rankdeck.run.summary import MetricSummary, ObservedScript, RunSummary

_MAX_METRICS = 40
_MAX_NAME_LENGTH = 60


def script_heading(summary: RunSummary) -> str:
    """Return text such as 'train.py  DistributedDataParallel (observed) on 2 ranks'."""
    script, observed = summary.script, summary.observed
    texts = [one_line(script.run) if script else "a script"]
    if observed is not None and observed.wrapper:
        texts.append(f" {one_line(observed.wrapper)} (observed)")
    # A script may start ranks itself, so more may be observed than were started here.
    num_ranks = max(len(observed.ranks) if observed is not None else 0, script.ranks if script else 0)
    if num_ranks > 1:
        texts.append(f"on {num_ranks} ranks")
    return " ".join(texts)


def launch_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    """Yield rows on how the script was started and on its exit status."""
    script = summary.script
    if script:
        module = ["-m"] if script.kind == "module" else []
        program = [] if script.kind == "program" else [script.python, *module]
        yield "script", one_line(shlex.join([*program, script.run, *script.args]), 10_000)
        yield "folder", script.folder
    if summary.script_status is not None:
        yield "exit status", str(summary.script_status)


def observed_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    """Yield rows for all observations except steps and memory."""
    observed = summary.observed
    if summary.wait_share is not None:
        yield "loader wait", f"{summary.wait_share:.0%} of a step".replace("%", " %")
    if observed:
        yield from _setup_rows(observed)
    for rank in summary.collectives or ():
        calls = ", ".join(
            f"{one_line(name)} {format_count(count)}x{_bytes_suffix(rank.num_bytes.get(name))}"
            for name, count in rank.calls.items()
        )
        yield f"rank {rank.rank} called", calls


def _setup_rows(observed: ObservedScript) -> Iterable[tuple[str, str]]:
    if observed.model:
        size = observed.num_parameters
        yield (
            "model",
            _class_name(observed.model) + (f", {format_count(size)} parameters" if size is not None else ""),
        )
    if observed.optimizer:
        yield "optimizer", _class_name(observed.optimizer)
    if observed.dataset:
        number = observed.num_samples
        yield (
            "data",
            _class_name(observed.dataset)
            + (f", {format_count(number)} samples" if number is not None else ""),
        )
    batch = [
        f"{observed.batch} samples" if observed.batch is not None else "",
        f"accumulated {observed.accumulate} times" if (observed.accumulate or 1) > 1 else "",
    ]
    if any(batch):
        yield "batch", ", ".join(filter(None, batch))
    for label, text in (("precision", observed.precision), ("backend", observed.backend)):
        if text:
            yield label, one_line(text)
    if observed.versions:
        versions = (f"{name} {version}" for name, version in observed.versions.items())
        yield "versions", one_line(", ".join(versions), 1_000)


def note_rows(summary: RunSummary) -> Iterable[tuple[str, str]]:
    return (("note", one_line(note, 1_000)) for note in summary.notes)


def print_metrics(out: Console, metrics: Mapping[str, MetricSummary]) -> None:
    """Print the last value of each metric that the script logged."""
    if not metrics:
        return
    out.print("\nlogged by the script", style="dim", soft_wrap=True)
    table = empty_table()
    for heading in ("", "last", "step", "values", "logged with"):
        table.add_column(heading, justify="right" if heading in ("last", "step", "values") else "left")
    for name, metric in list(metrics.items())[:_MAX_METRICS]:
        last = UNKNOWN if metric.last is None else f"{metric.last:.6g}"
        step = UNKNOWN if metric.step is None else str(metric.step)
        label, through = one_line(name, _MAX_NAME_LENGTH), one_line(metric.through)
        table.add_row(Text(label), last, step, str(metric.count), Text(through))
    out.print(table)
    if len(metrics) > _MAX_METRICS:
        out.print(
            f"and {len(metrics) - _MAX_METRICS} more: rankdeck show --json", style="dim", soft_wrap=True
        )


def _class_name(path: str) -> str:
    return one_line(path.rpartition(":")[2])


def _bytes_suffix(num_bytes: int | None) -> str:
    return f" ({format_bytes(num_bytes)})" if num_bytes else ""
