"""The colours and faces of everything that is painted by hand, looked up once per theme and not once per
paint.

Amber is the only hot colour and means imbalance or trouble; kinds of
memory are a ramp of blues. Devices are told apart by position and label, never by hue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from PySide6.QtCore import SignalInstance
from PySide6.QtGui import QColor, QFont

from rankdeck_app.theme.theme import MONO_FAMILIES, UI_FAMILIES


class ThemeColors(Protocol):
    """What a painted widget needs of a theme: a colour by VS Code id, and word of a change."""

    @property
    def changed(self) -> SignalInstance: ...

    def color(self, key: str) -> QColor: ...


# In the order in which the segments of a bar are drawn.
KIND_LABELS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "buffers": "buffers",
    "activations": "activations",
    "inputs": "inputs",
    "temporary": "temporary",
    "communication": "communication",
    "gathered": "gathered outputs",
}


# Whose memory it is on a GPU, as the driver tells it; in the order of the segments of a bar.
HOLDER_LABELS: Mapping[str, str] = {
    "run": "runs",
    "context": "context, libraries",
    "reserved": "reserved, unused",
    "others": "other processes",
    "outside": "outside namespace",
    "unclaimed": "unattributed",
}
_HOLDER_COLORS = {
    "run": "rankdeck.rest",
    "context": "rankdeck.heat.2",
    "reserved": "rankdeck.heat.1",
    "others": "rankdeck.kind.gradients",
    "outside": "rankdeck.kind.temporary",
    "unclaimed": "rankdeck.kind.parameters",
}


@dataclass(frozen=True)
class ChartColors:
    """Every colour that a chart draws with, for one theme."""

    foreground: QColor
    muted: QColor
    trouble: QColor
    border: QColor
    card: QColor
    lead: QColor
    lead_text: QColor
    lead_fill: QColor
    rest: QColor
    rest_fill: QColor
    loss: QColor
    raw: QColor
    grid: QColor
    axis: QColor
    track: QColor
    median: QColor
    capacity: QColor
    hot: QColor
    kinds: Mapping[str, QColor]
    heat: tuple[QColor, ...]

    @staticmethod
    def of(theme: ThemeColors) -> ChartColors:
        color = theme.color
        kinds = {kind: color(f"rankdeck.kind.{kind}") for kind in KIND_LABELS}
        return ChartColors(
            foreground=color("foreground"),
            muted=color("descriptionForeground"),
            trouble=color("errorForeground"),
            border=color("rankdeck.card.border"),
            card=color("rankdeck.card.background"),
            lead=color("rankdeck.lead"),
            lead_text=color("rankdeck.leadText"),
            lead_fill=color("rankdeck.leadFill"),
            rest=color("rankdeck.rest"),
            rest_fill=color("rankdeck.restFill"),
            loss=color("rankdeck.loss"),
            raw=color("rankdeck.lossRaw"),
            grid=color("rankdeck.grid"),
            axis=color("rankdeck.axis"),
            track=color("rankdeck.track"),
            median=color("rankdeck.median"),
            capacity=color("rankdeck.capacity"),
            # Gathered tensors are hot only where they make a device stand out; elsewhere they are blue.
            hot=kinds["gathered"],
            kinds=kinds
            | {"gathered": color("rankdeck.rest")}
            | {holder: color(key) for holder, key in _HOLDER_COLORS.items()},
            heat=tuple(color(f"rankdeck.heat.{level}") for level in range(5)),
        )


@cache
def chart_font(pixel_size: int, bold: bool = False, mono: bool = False) -> QFont:
    """The faces of the theme; digits of one width, so that numbers do not jump."""
    font = QFont()
    font.setFamilies(MONO_FAMILIES if mono else UI_FAMILIES)
    font.setPixelSize(pixel_size)
    font.setBold(bold)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def byte_unit(largest_bytes: float) -> tuple[int, str]:
    """(divisor, name) of the one unit that every number of a card is written in."""
    for exponent, name in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if largest_bytes >= 2**exponent:
            return 2**exponent, name
    return 1, "B"
