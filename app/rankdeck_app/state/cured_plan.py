"""What a cure would make of a run's memory, in words for its chart. Read cured_plans.py next."""

from __future__ import annotations

from dataclasses import dataclass

from rankdeck.base.units import format_bytes
from rankdeck.run.plan_lines import PlanLine


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
            return f"with {self.words}: {self.why_not}", f"with {self.words}: not known"
        if self.line is None:
            return f"with {self.words}: being planned…", "being planned…"
        least = f" at {self.line.bound or 'least'}" if self.line.is_bound else ""
        size = format_bytes(fullest_bytes or (self.line.fullest.total_bytes if self.line.fullest else 0))
        long = f"with {self.words}:{least} {size} on the fullest device, predicted"
        return long, f"with {self.words}: {size}, predicted", f"{size}, predicted"
