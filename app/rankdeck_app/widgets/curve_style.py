"""How a person wants a curve over steps drawn: its scale, its smoothing, and what stands on its x axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, runtime_checkable

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr

STEP, TIME, SAMPLES = "step", "time", "samples"
X_AXES = (STEP, TIME, SAMPLES)
AXIS_LABELS = {STEP: tr_noop("Step"), TIME: tr_noop("Time"), SAMPLES: tr_noop("Samples")}
_AXIS_TEXTS = {
    TIME: (tr_noop("by time"), tr_noop("time")),
    SAMPLES: (tr_noop("by samples"), tr_noop("samples")),
}
SMOOTHINGS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998)
"""Weights of what was before: 0 draws the raw values alone, 0.99 averages over about a hundred steps."""


@dataclass(frozen=True)
class CurveStyle:
    """`smoothing` None leaves it to the app: a sixtieth of the run."""

    is_log: bool = False
    smoothing: float | None = None
    x_axis: str = STEP

    def change_smoothing(self, places: int) -> CurveStyle:
        """More or less of it, from what the app chose to the ends of the list."""
        now = 4 if self.smoothing is None else min(
            range(len(SMOOTHINGS)), key=lambda at: abs(SMOOTHINGS[at] - (self.smoothing or 0.0))
        )  # fmt: skip
        return replace(self, smoothing=SMOOTHINGS[max(0, min(len(SMOOTHINGS) - 1, now + places))])

    def texts(self) -> tuple[str, ...]:
        """What differs from the usual: whole, and in the fewest words; nothing where nothing does."""
        told = [(tr("log"), tr("log"))] if self.is_log else []
        if self.smoothing:
            told.append((tr("smoothed {weight:g}", weight=self.smoothing), f"{self.smoothing:g}"))
        elif self.smoothing is not None:
            told.append((tr("raw"), tr("raw")))
        if self.x_axis != STEP:
            by, axis = _AXIS_TEXTS[self.x_axis]
            told.append((tr(by), tr(axis)))
        return tuple(map(" · ".join, zip(*told, strict=True)))

    def to_state(self) -> dict[str, Any]:
        """Only what differs, as JSON."""
        usual = asdict(CurveStyle())
        return {key: value for key, value in asdict(self).items() if value != usual[key]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CurveStyle:
        """What was kept; what makes no sense is as usual."""
        smoothing, x_axis = state.get("smoothing"), state.get("x_axis")
        is_weight = isinstance(smoothing, int | float) and 0 <= smoothing < 1
        return cls(
            state.get("is_log") is True,
            float(smoothing) if is_weight else None,  # type: ignore[arg-type]
            x_axis if x_axis in X_AXES else STEP,
        )


@runtime_checkable
class StyledChart(Protocol):
    """A chart that can be drawn in several ways. `x_axes` are those that it knows."""

    style: CurveStyle
    x_axes: tuple[str, ...]

    def set_style(self, style: CurveStyle) -> None: ...
