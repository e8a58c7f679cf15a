"""What a cure would make of a run's memory, in words for its chart. Read cured_plans.py next."""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.base.units import format_bytes
from rankdeck.run.plan_lines import MOST, PlanLine
from rankdeck_app.language import tr


@dataclass(frozen=True)
class CuredPlan:
    """`words` name the cure. `line` is what is predicted, None until that is known; `why_not` says why it
    never will be."""

    words: str
    line: PlanLine | None = None
    why_not: str = ""

    def in_words(self, fullest_bytes: int) -> tuple[str, ...]:
        """For the chart that shows it, in ever fewer words."""
        if self.why_not:
            why_not = tr("with {cure}: {why_not}", cure=self.words, why_not=self.why_not)
            return why_not, tr("with {cure}: not known", cure=self.words)
        if self.line is None:
            return tr("with {cure}: being planned…", cure=self.words), tr("being planned…")
        size = format_bytes(fullest_bytes or (self.line.fullest.total_bytes if self.line.fullest else 0))
        short = tr("with {cure}: {size}, predicted", cure=self.words, size=size)
        return self._whole(size), short, tr("{size}, predicted", size=size)

    def _whole(self, size: str) -> str:
        if self.line is None or not self.line.is_bound:
            return tr("with {cure}: {size} on the fullest device, predicted", cure=self.words, size=size)
        if self.line.bound == MOST:
            return tr(
                "with {cure}: at most {size} on the fullest device, predicted", cure=self.words, size=size
            )
        return tr("with {cure}: at least {size} on the fullest device, predicted", cure=self.words, size=size)
