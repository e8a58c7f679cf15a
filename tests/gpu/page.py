"""The page of all parts, from their files: docs/gpu.md. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.gpu.part import DRY_RUN, Part

TITLES = {
    "suite": "Tests that need a GPU",
    "nvml": "Readings and the breakdown by kind",
    "peaks": "Plans of one device",
    "ranks": "Plans of several ranks, rank by rank",
    "kernels": "Kernels and constants",
    "pace": "Steps beside a hand-written loop",
}
_INTRODUCTION = """\
# Measured on a GPU

Written by `make gpu` (`python -m tests.gpu`) from what one card said. *Planned* is what `rankdeck plan`
says before anything starts, *measured* what torch's allocator, the driver and the clock said. Errors are
(planned - measured) / measured. Ranks of several are real ones with real tensors, one at a time: the others
exist only in a process group whose collectives are done at once, so NCCL's own buffers are not in these
figures."""


def page_of(parts: Sequence[Part]) -> str:
    """Markdown. Of a dry run every line says that it is one."""
    lines = [line for block in _blocks(parts) for line in block.splitlines()]
    if any(part.dry_run for part in parts):
        lines = [f"{DRY_RUN}: {line}" if line else "" for line in lines]
    return "\n".join(lines) + "\n"


def _blocks(parts: Sequence[Part]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "\n## In short\n"
    for part in parts:
        state = part.cannot or _in_short(part)
        yield f"- {TITLES[part.name]}: {state}"
    for part in parts:
        yield from _section(part)


def _in_short(part: Part) -> str:
    counts = [
        f"{len(items)} {label}"
        for items, label in ((part.misses, "missed"), (part.failures, "failed"), (part.left_out, "left out"))
        if items
    ]
    return (", ".join(counts) if counts else "all measured, nothing missed") + "."


def _section(part: Part) -> Iterator[str]:
    yield f"\n## {TITLES[part.name]}\n"
    versions = ", ".join(f"{name} {value}" for name, value in part.facts.items() if value is not None)
    yield f"{part.at}, {part.took_s:.0f} s of {part.budget_s:.0f} s. {versions}."
    if part.cannot is not None:
        yield f"\nNot measured: {part.cannot}"
    for title, sentences in (
        ("", part.figures),
        ("Missed:", part.misses),
        ("Failed:", part.failures),
        ("Left out:", part.left_out),
    ):
        if sentences:
            yield (
                "\n" + (title + "\n" if title else "") + "\n".join(f"- {sentence}" for sentence in sentences)
            )
    if part.rows:
        yield "\n" + _row(part.header) + "\n" + _row(["---"] * len(part.header))
        yield "\n".join(_row(row) for row in part.rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
