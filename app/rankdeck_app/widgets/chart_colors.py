"""Colours of everything that is custom-painted, looked up once per theme instead of on every paint.

Amber is the only warm colour and means imbalance or a problem; kinds of memory are shades of blue. Devices
are distinguished by position and label, never by hue.
"""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QBrush, QColor

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.theme import Theme
from rankdeck_app.theme.vscode import luminance

# In the order of a bar's segments.
KIND_LABELS = {
    "parameters": tr_noop("parameters"),
    "gradients": tr_noop("gradients"),
    "optimizer": tr_noop("optimizer"),
    "buffers": tr_noop("buffers"),
    "activations": tr_noop("activations"),
    "inputs": tr_noop("inputs"),
    "temporary": tr_noop("temporary"),
    "communication": tr_noop("communication"),
    "gathered": tr_noop("gathered outputs"),
}
# For user scripts, where some memory has no known owner.
SCRIPT_KIND_LABELS = {**KIND_LABELS, "unattributed": tr_noop("unattributed")}


# Holders of GPU memory as the driver reports them, in the order of a bar's segments.
HOLDER_LABELS = {
    "run": tr_noop("runs"),
    "context": tr_noop("context, libraries"),
    "reserved": tr_noop("reserved, unused"),
    "others": tr_noop("other processes"),
    "outside": tr_noop("outside namespace"),
    "unclaimed": tr_noop("unattributed"),
}
_HOLDER_COLORS = {
    "run": "rankdeck.rest",
    "context": "rankdeck.heat.2",
    "reserved": "rankdeck.heat.1",
    "others": "rankdeck.kind.gradients",
    "outside": "rankdeck.kind.temporary",
    "unclaimed": "rankdeck.kind.parameters",
}


class ChartColors:
    """All colours that charts use, for one theme."""

    def __init__(self, theme: Theme) -> None:
        color = theme.color
        self.foreground = color("foreground")
        self.muted = color("descriptionForeground")
        self.ok = color("rankdeck.ok")
        self.error = color("errorForeground")
        self.border = color("rankdeck.card.border")
        self.card = color("rankdeck.card.background")
        self.lead = color("rankdeck.lead")
        self.lead_text = color("rankdeck.leadText")
        self.lead_fill = color("rankdeck.leadFill")
        self.rest = color("rankdeck.rest")
        self.rest_fill = color("rankdeck.restFill")
        self.loss = color("rankdeck.loss")
        self.raw = color("rankdeck.lossRaw")
        self.grid = color("rankdeck.grid")
        self.axis = color("rankdeck.axis")
        self.track = color("rankdeck.track")
        self.median = color("rankdeck.median")
        self.capacity = color("rankdeck.capacity")
        # Gathered outputs are amber only where they make a device stand out; elsewhere they are blue.
        self.hot = color("rankdeck.kind.gathered")
        self.kinds = {kind: color(f"rankdeck.kind.{kind}") for kind in SCRIPT_KIND_LABELS}
        self.kinds["gathered"] = self.rest
        self.kinds |= {holder: color(key) for holder, key in _HOLDER_COLORS.items()}
        self.heat = [color(f"rankdeck.heat.{level}") for level in range(5)]

    def tone_color(self, tone: str) -> QColor:
        """Return the text colour of a tone: "", "muted", "ok", "hot" or "error"."""
        tones = {"muted": self.muted, "ok": self.ok, "hot": self.lead_text, "error": self.error}
        return tones.get(tone, self.foreground)

    def curve_colors(self, tone: str) -> tuple[QColor, QColor]:
        """Return the (line, fill) colours of a curve with this tone."""
        return (self.lead, self.lead_fill) if tone == "hot" else (self.rest, self.rest_fill)


def byte_unit(largest_bytes: float) -> tuple[int, str]:
    """Return (divisor, name) of the byte unit for a card whose largest number is `largest_bytes`.

    All numbers of the card share this unit.
    """
    for exponent, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if largest_bytes >= 2**exponent:
            return 2**exponent, name
    return 1, "B"


# Colours of phases and transfers: one ramp of blues for the whole app, so that a measured step (anatomy.py)
# and a predicted one (step_drawing.py) look the same.

BUBBLE = tr_noop("bubble")
IDLE = tr_noop("idle")

# Each phase has the colour of a kind of memory.
_PHASE_KINDS = {
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
_PHASE_LABELS = {
    "backward-input": tr_noop("input gradients"),
    "backward-weight": tr_noop("weight gradients"),
    "all-gather": tr_noop("all-gather"),
    "reduce-scatter": tr_noop("reduce-scatter"),
    "all-to-all": tr_noop("all-to-all"),
    "broadcast": tr_noop("broadcast"),
}


def phase_label(phase: str) -> str:
    """Return the translated label of a phase (rankdeck/run/anatomy.py), transfer or gap."""
    return tr(_PHASE_LABELS.get(phase, phase))


def phase_color(colors: ChartColors, phase: str) -> QColor:
    kind = _PHASE_KINDS.get(phase)
    return colors.rest if kind is None else colors.kinds[kind]


def gap_brushes(colors: ChartColors, gap: str) -> list[QBrush | QColor]:
    """Return the brushes that paint a gap: the track colour and, for a bubble, a hatch."""
    hatch = QBrush(colors.axis, Qt.BrushStyle.BDiagPattern)
    return [colors.track, hatch] if gap == BUBBLE else [colors.track]


def text_color_on(color: QColor) -> QColor:
    """Return a readable text colour for a block of this colour."""
    return QColor("#101418") if luminance(color.name()) > 0.5 else QColor("#FFFFFF")
