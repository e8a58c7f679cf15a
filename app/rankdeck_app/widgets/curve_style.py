"""The user's drawing style of a curve over steps: scale, smoothing and x axis."""

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
"""EMA weights of past values: 0 draws only the raw values, 0.99 averages over about a hundred steps."""


@dataclass(frozen=True)
class CurveStyle:
    """Drawing style of a curve. If `smoothing` is None, the app smooths over one sixtieth of the run."""

    is_log: bool = False
    smoothing: float | None = None
    x_axis: str = STEP

    def change_smoothing(self, offset: int) -> CurveStyle:
        """Return this style with its smoothing moved by `offset` positions along SMOOTHINGS; a smoothing of
        None counts as the middle position."""
        # The app's default counts as the middle of the list.
        now = 4 if self.smoothing is None else min(
            range(len(SMOOTHINGS)), key=lambda at: abs(SMOOTHINGS[at] - (self.smoothing or 0.0))
        )  # fmt: skip
        return replace(self, smoothing=SMOOTHINGS[max(0, min(len(SMOOTHINGS) - 1, now + offset))])

    def texts(self) -> tuple[str, ...]:
        """Return a long and a short description of how the style differs from the default; an empty tuple if
        it does not."""
        pairs = [(tr("log"), tr("log"))] if self.is_log else []
        if self.smoothing:
            pairs.append((tr("smoothed {weight:g}", weight=self.smoothing), f"{self.smoothing:g}"))
        elif self.smoothing is not None:
            pairs.append((tr("raw"), tr("raw")))
        if self.x_axis != STEP:
            by, axis = _AXIS_TEXTS[self.x_axis]
            pairs.append((tr(by), tr(axis)))
        return tuple(map(" · ".join, zip(*pairs, strict=True)))

    def to_state(self) -> dict[str, Any]:
        """Return the fields that differ from the default, as JSON values."""
        defaults = asdict(CurveStyle())
        return {key: value for key, value in asdict(self).items() if value != defaults[key]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CurveStyle:
        """Return the style that `to_state` saved; invalid values are replaced by defaults."""
        smoothing, x_axis = state.get("smoothing"), state.get("x_axis")
        is_weight = isinstance(smoothing, int | float) and 0 <= smoothing < 1
        return cls(
            state.get("is_log") is True,
            float(smoothing) if is_weight else None,  # type: ignore[arg-type]
            x_axis if x_axis in X_AXES else STEP,
        )


@runtime_checkable
class StyledChart(Protocol):
    """A chart that supports several drawing styles. `x_axes` are the axes that it supports."""

    style: CurveStyle
    x_axes: tuple[str, ...]

    def set_style(self, style: CurveStyle) -> None: ...
