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

_HEAD = """# Plans compared with published measurements

Others measured the memory of these configurations on real GPUs and published it; `rankdeck plan` predicts it.
We have not repeated the measurements. No constant of the planner was chosen to match them, except the context
of a V100 (see below). The planner plans for the installed torch. Where an older torch allocates differently,
the row's own model, loss or optimizer (`tests/published`) imitates the older one, and a note says so.

*Allocated* is the peak of torch's live tensors. *Reserved* is the most that its allocator held. *nvidia-smi*
adds the CUDA context, which the planner estimates per GPU model. A negative error means that the plan is too
low.
"""
_COLUMNS = """| configuration | GPUs | metric | published, MiB | planned, MiB | error |
| --- | --- | --- | ---: | ---: | ---: |"""


def page(results: Sequence[Planned], table: Table) -> str:
    errors = [abs(result.error) for result in results]
    summary = (
        f"**{len(results)} values from {len(table.sources)} sources: median error {median(errors):.1%}, "
        f"worst {max(errors):.1%}.**"
    )
    origin = (
        f"Printed by `.venv/bin/python -m tests.published` on {date.today()}, with Python "
        f"{platform.python_version()} and torch {torch.__version__}. `tests/published/rows.toml` has "
        "the model and data of every row."
    )
    sections = [_HEAD, f"{summary}\n", f"{origin}\n"]
    for name, source in table.sources.items():
        source_results = [result for result in results if result.row.source == name]
        sections.append(f"## {source.title}\n\n<{source.url}>, read {source.read}. {source.software}.\n")
        sections.append("\n".join([_COLUMNS, *map(line, source_results)]) + "\n")
        sections += [f"{note}\n" for note in _notes(source_results)]
    return "\n".join(sections)


def line(result: Planned) -> str:
    """A row as it stands in the page."""
    row, at_least = result.row, "at least " if result.is_bound else ""
    published, planned = (round(num_bytes / 2**20) for num_bytes in (row.published_bytes, result.num_bytes))
    cells = f"{published:,} | {at_least}{planned:,} | {result.error:+.1%} |"
    return f"| {row.what} | {row.devices} | {row.reading} | {cells}"


def _notes(results: Sequence[Planned]) -> list[str]:
    """What was assumed, and why figures differ, once each."""
    assumed = dict.fromkeys(result.row.assumed for result in results if result.row.assumed)
    missed = dict.fromkeys(result.row.miss for result in results if result.row.miss)
    notes = [f"*Assumed:* {text}" for text in assumed] + [f"*Misses:* {text}" for text in missed]
    return [" ".join(note.split()) for note in notes]
