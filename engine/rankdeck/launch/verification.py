"""Verify strategies without a training run: real ranks set up each strategy, take two steps and exit.

The ranks use a temporary run folder, in which no steps are recorded. See ../training/verify/ for the check
itself.
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
    """Protocol of a strategy with its options; implemented in ../planner/candidates.py."""

    @property
    def strategy(self) -> str: ...
    @property
    def options(self) -> Mapping[str, object]: ...


AnyRow = TypeVar("AnyRow", bound=StrategyRow)


@dataclass(frozen=True)
class Verification:
    """Result of verifying one strategy.

    `verified` is None if nothing was compared. The reason is an error in `problems` or, if there is none,
    that there was only one device.
    """

    verified: events.Verified | None
    problems: Sequence[Problem] = ()

    @property
    def outcome(self) -> str:
        """Outcome: equal | noted | differs | unchecked | failed | single."""
        if self.verified is not None:
            return self.verified.outcome
        return "failed" if self._has_failed else "single"

    @property
    def _has_failed(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    @property
    def text(self) -> Phrase:
        """One-line text of the result."""
        if self.verified is not None:
            return verified_text(self.verified)
        if self._has_failed:
            return phrase("Cannot run")
        return phrase("Only one device: there is nothing to compare")

    def facts(self) -> dict[str, object]:
        """Return the result for `--json`."""
        return {
            "verified": msgspec.to_builtins(verified_summary(self.verified)),
            "problems": problems_json(self.problems),
        }


def verify_strategies(
    config: RunConfig, rows: Iterable[AnyRow], *, command_line: Sequence[str]
) -> Iterator[tuple[AnyRow, Verification]]:
    """Verify the configuration with each strategy in turn, yielding each result.

    Raises:
        MachineError: the machine lacks something that every strategy needs.
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
    """Compare two steps under the configuration's strategy with the same steps taken on one device with whole
    batches.

    No files are left behind.

    Raises:
        RankdeckError: for the same reasons as in `start.start_run`.
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
        state = read_run_state(run)
        return Verification(state.verified, problems_of(run, state, run.outcome()))
