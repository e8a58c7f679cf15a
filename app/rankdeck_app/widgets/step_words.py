"""What a mark of a step's drawing stands for, in words: for the pointer, the keyboard and a screen reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rankdeck.base.units import format_bytes
from rankdeck.run.movement import Interval, Line
from rankdeck_app.language import tr
from rankdeck_app.widgets.phase_colors import phase_label
from rankdeck_app.widgets.step_layout import StepFigure, StepMark

# What each of n devices sends of what it brings, as the engine counts it.
_RING: dict[str, tuple[str, Callable[[int], float]]] = {
    "all-reduce": ("2(n-1)/n x {}", lambda n: 2 * (n - 1) / n),
    "all-gather": ("(n-1) x {}", lambda n: n - 1),
    "reduce-scatter": ("(n-1)/n x {}", lambda n: (n - 1) / n),
    "all-to-all": ("(n-1)/n x {}", lambda n: (n - 1) / n),
}


def words_of(mark: StepMark, figure: StepFigure) -> str:
    """What a mark is, its bytes, and who with whom; of what moves also the strategy's formula."""
    first = mark.parts[0] if mark.parts else None
    if isinstance(first, Line):
        return "\n".join(filter(None, (_of_line(mark, first, figure.labels), figure.formula)))
    label = figure.labels[mark.rows[0]]
    if len(mark.parts) > 1:
        names = Counter(phase_label(one.part.name) for one in mark.parts if isinstance(one, Interval))
        return f"{label} · {', '.join(f'{count} x {name}' for name, count in names.items())}"
    words = [label, phase_label(mark.name)]
    if isinstance(first, Interval):
        part = first.part
        words += [tr("microbatch {number}", number=part.microbatch)] * (part.microbatch is not None)
        words += [tr("stage {number}", number=part.stage)] * (part.stage is not None)
        count = _operations(part.flops)
        words += [tr("{count} floating point operations", count=count)] * (part.flops > 0)
    return " · ".join(words)


def _of_line(mark: StepMark, line: Line, labels: tuple[str, ...]) -> str:
    count, size = len(mark.parts), format_bytes(mark.num_bytes)
    what = f"{count} x {phase_label(line.name)}" if count > 1 else phase_label(line.name)
    if line.source is not None and line.target is not None:
        return f"{what} · {labels[line.source]} → {labels[line.target]} · {size}"
    n = len(line.group)
    members = ", ".join(labels[member] for member in line.group)
    among = tr("among all {n}", n=n) if n == len(labels) else tr("among {devices}", devices=members)
    sent = tr("{size} sent by each", size=size)
    if line.name in _RING and mark.num_bytes and n > 1:
        ring, share = _RING[line.name]
        formula = ring.format(format_bytes(round(mark.num_bytes / share(n))))
        sent = tr("{size} sent by each over a ring: {formula}, n = {n}", size=size, formula=formula, n=n)
    return " · ".join((what, among, sent))


def _operations(count: int) -> str:
    """'1.95 G'."""
    for power, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= power:
            return f"{count / power:.3g} {unit}"
    return str(count)
