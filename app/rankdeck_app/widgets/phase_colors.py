"""How phases of a step and what moves in it are told apart: one ramp of blues for the whole app.

A measured step (anatomy.py) and a predicted one (step_drawing.py) look the same.
"""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor

from rankdeck.base.phrases import marked
from rankdeck_app.language import tr
from rankdeck_app.theme.vscode import luminance
from rankdeck_app.widgets.chart_colors import ChartColors

BUBBLE = marked("bubble")
IDLE = marked("idle")

# A phase is drawn in the colour of a kind of memory.
_KINDS = {
    "data": "temporary",
    "scatter": "inputs",
    "replicate": "buffers",
    "forward": "activations",
    "gather": "communication",
    "loss": "optimizer",
    "backward": "gradients",
    "backward-input": "gradients",
    "backward-weight": "parameters",
    "all-reduce": "communication",
    "reduce": "communication",
    "all-gather": "buffers",
    "reduce-scatter": "communication",
    "all-to-all": "communication",
    "broadcast": "communication",
}
_LABELS = {
    "backward-input": marked("input gradients"),
    "backward-weight": marked("weight gradients"),
    "all-gather": marked("all-gather"),
    "reduce-scatter": marked("reduce-scatter"),
    "all-to-all": marked("all-to-all"),
    "broadcast": marked("broadcast"),
}


def phase_label(phase: str) -> str:
    """Of a phase (rankdeck/run/anatomy.py), a transfer or a gap."""
    return tr(_LABELS.get(phase, phase))


def phase_color(colors: ChartColors, phase: str) -> QColor:
    kind = _KINDS.get(phase)
    return colors.rest if kind is None else colors.kinds[kind]


def gap_sign(colors: ChartColors, gap: str) -> list[QBrush | QColor]:
    """The track, hatched where a gap is a bubble."""
    hatch = QBrush(colors.axis, Qt.BrushStyle.BDiagPattern)
    return [colors.track, hatch] if gap == BUBBLE else [colors.track]


def ink_on(color: QColor) -> QColor:
    """What is read on a block of that colour."""
    return QColor("#101418") if luminance(color.name()) > 0.5 else QColor("#FFFFFF")
