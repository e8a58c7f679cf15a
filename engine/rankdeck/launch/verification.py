"""The check of equality without a run: real ranks build the strategy, take its two steps and end.

What they write is a run of no steps in a folder that is removed. Read ../training/verify/ for the check.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from rankdeck import events
from rankdeck.base.errors import MachineError, Problem, RankdeckError
from rankdeck.base.phrases import Phrase, phrase
from rankdeck.config import RunConfig, from_dict
from rankdeck.launch.control import request_stop, wait_for_end
from rankdeck.launch.start import start_run
from rankdeck.run.run_state import read_run_state
from rankdeck.run.summary import problems_json
from rankdeck.run.summary_builder import problems_of, verified_summary
from rankdeck.run.verified import verified_text


class StrategyRow(Protocol):
    """A strategy with its options; ../planner/candidates.py has them."""

    @property
    def strategy(self) -> str: ...
    @property
    def options(self) -> Mapping[str, object]: ...


AnyRow = TypeVar("AnyRow", bound=StrategyRow)


@dataclass(frozen=True)
class Verification:
    """What became of one check. `verified` is None where nothing was compared: an error among `problems` says
    why, and without any it was a single device."""

    verified: events.Verified | None
    problems: Sequence[Problem] = ()

    @property
    def outcome(self) -> str:
        """equal | noted | differs | unchecked | failed | single."""
        if self.verified is not None:
            return self.verified.outcome
        return "failed" if self._has_failed else "single"

    @property
    def _has_failed(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    @property
    def text(self) -> Phrase:
        """One line about it."""
        if self.verified is not None:
            return verified_text(self.verified)
        if self._has_failed:
            return phrase("Cannot run")
        return phrase("One device: there is nothing to compare")

    def facts(self) -> dict[str, object]:
        """As `--json` has it."""
        return {
            "verified": msgspec.to_builtins(verified_summary(self.verified)),
            "problems": problems_json(self.problems),
        }


def verify_strategies(
    config: RunConfig, rows: Iterable[AnyRow], *, command_line: Sequence[str]
) -> Iterator[tuple[AnyRow, Verification]]:
    """Check the configuration under one strategy after another.

    Raises: MachineError: what the machine lacks, it lacks for all of them.
    """
    for row in rows:
        tables = config.to_dict() | {"strategy": {"use": row.strategy, **row.options}}
        try:
            yield row, verify(from_dict(tables, folder=Path(config.folder or ".")), command_line=command_line)
        except MachineError:
            raise
        except RankdeckError as error:
            yield row, Verification(None, error.problems)


def verify(config: RunConfig, *, command_line: Sequence[str]) -> Verification:
    """Compare two steps under the configuration's strategy with one device, over whole batches. Nothing is
    left of it.

    Raises: as start.start.
    """
    train = config.train.model_copy(update={"verify": "full"})
    with tempfile.TemporaryDirectory(prefix="rankdeck-verify-") as folder:
        run = start_run(
            config.model_copy(update={"train": train}),
            runs=Path(folder),
            detach=False,
            command_line=command_line,
            started=time.time(),
            first_steps=0,
        )
        try:
            wait_for_end(run, math.inf)
        except BaseException:
            request_stop(run, now=True)
            wait_for_end(run, math.inf)
            raise
        fold = read_run_state(run)
        return Verification(fold.verified, problems_of(run, fold, run.outcome()))
