"""A run as it was at a moment, for whoever draws runs: it answers like the run that goes on (run_answers.py).

Its figures are of what was told until then. Its curves are those of the whole run, so that one sees what came
before and after, unless the steps of that moment were trained again: then they are drawn as they were.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem
from rankdeck.run.fold import Fold
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.spells import Spell
from rankdeck_app.state.run_answers import RunAnswers, rows_of


class PastRun(RunAnswers):
    """`fold` is what was told until `moment`, and nobody changes it; `prediction` is of the attempt that was
    under way."""

    def __init__(
        self, live: RunAnswers, fold: Fold, moment: float, prediction: PlanLine | None = None
    ) -> None:
        self._live, self._moment = live, moment
        self.run, self.fold = live.run, fold
        self.config, self.script = live.config, live.script
        self.fix_plan = None
        self.devices = [device for device in fold.devices.values() if device.info is not None]
        self.rows = rows_of(self.devices)
        announced = [one for one in fold.attempts.values() if one.started is not None]
        self._attempt = announced[-1].number if announced else None
        ended = announced[-1].ended if announced else None
        is_newest = self._attempt == max(live.fold.attempts, default=None)
        self.prediction = live.prediction if is_newest else prediction
        self.outcome = None if not announced else "running" if ended is None else ended.outcome
        self.end = None
        self._title, self._is_asked_to_stop = live.title, False
        self._own_problems: list[Problem] = []

    @property
    def now(self) -> float:
        return self._moment

    @property
    def spells(self) -> list[Spell]:
        return self._live.spells

    @property
    def whole_s(self) -> float | None:
        return self._live.since_start_s

    @property
    def looked_back_at(self) -> float | None:
        return self._moment - (self._live.started or self._moment)

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that was under way."""
        return self._attempt

    @property
    def is_replaced(self) -> bool:
        """Whether a later attempt trained the newest step of that moment again."""
        later = self._live.fold.attempts.get(-1 if self._attempt is None else self._attempt)
        kept = None if later is None else later.last
        return kept is not None and self.step is not None and self.step > kept

    @property
    def charted(self) -> RunAnswers:
        return self if self.is_replaced else self._live
