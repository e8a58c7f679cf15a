"""docs/published.md: every row with its source, its error and what is known of the miss.

A planned figure stands beside the published one in MiB. Read table.py first.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from datetime import date
from statistics import median

import torch

from tests.published.table import Planned, Table

_HEAD = """# The planner beside published figures

Configurations whose memory others measured on real GPUs and published, planned by `rankdeck plan`. Nobody
here has measured these runs, and no constant of the planner was chosen for one of them, but the context of a
V100, as is said there. The planner plans for the torch that is installed; where a figure was measured with
an older one that allocates otherwise, the row's own model, loss or optimizer (`tests/published`) does as that
one did, and the page says so.

*Allocated* is torch's peak of live tensors, *reserved* what its allocator held at most; *nvidia-smi* adds the
context, which the planner estimates per GPU model. An error below zero: the plan says less than was measured.
"""
_COLUMNS = """| configuration | GPUs | read | published, MiB | planned, MiB | error |
| --- | --- | --- | ---: | ---: | ---: |"""


def page(results: Sequence[Planned], table: Table) -> str:
    errors = [abs(result.error) for result in results]
    summary = (
        f"**{len(results)} figures of {len(table.sources)} sources: median error {median(errors):.1%}, "
        f"worst {max(errors):.1%}.**"
    )
    made = (
        f"Printed by `.venv/bin/python -m tests.published` on {date.today()}, with Python "
        f"{platform.python_version()} and torch {torch.__version__}. Every row's model and data stand in "
        "`tests/published/rows.toml`."
    )
    parts = [_HEAD, f"{summary}\n", f"{made}\n"]
    for name, source in table.sources.items():
        own = [result for result in results if result.row.source == name]
        parts.append(f"## {source.title}\n\n<{source.url}>, read {source.read}. {source.software}.\n")
        parts.append("\n".join([_COLUMNS, *map(line, own)]) + "\n")
        parts += [f"{note}\n" for note in _notes(own)]
    return "\n".join(parts)


def line(result: Planned) -> str:
    """A row as it stands in the page."""
    row, at_least = result.row, "at least " if result.is_bound else ""
    published, planned = (round(num_bytes / 2**20) for num_bytes in (row.published_bytes, result.num_bytes))
    figures = f"{published:,} | {at_least}{planned:,} | {result.error:+.1%} |"
    return f"| {row.what} | {row.devices} | {row.reading} | {figures}"


def _notes(own: Sequence[Planned]) -> list[str]:
    """What was assumed, and why figures differ, once each."""
    assumed = dict.fromkeys(result.row.assumed for result in own if result.row.assumed)
    missed = dict.fromkeys(result.row.miss for result in own if result.row.miss)
    notes = [f"*Assumed:* {text}" for text in assumed] + [f"*Misses:* {text}" for text in missed]
    return [" ".join(note.split()) for note in notes]
