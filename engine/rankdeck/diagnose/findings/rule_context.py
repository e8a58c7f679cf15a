"""What rules look at: the figures of a run (run/run_state.py), and what they leave out.

Read __init__.py before. Every look is cheap, however many steps were recorded: no column is copied, none is
gone through whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck.base.errors import Evidence, Problem

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.run.anatomy import StepAnatomy
    from rankdeck.run.attempt import Attempt
    from rankdeck.run.run_state import RunState

LOCAL_PHASES = ("data", "forward", "loss")
"""Phases in which a rank of DDP waits for nobody: its backward ends when the slowest one's does."""


class FindingRule(NamedTuple):
    """`check` gives what there is to say, or None; nothing is said where one of `unless` speaks, whose
    consequence it then is."""

    code: str
    check: Callable[[RuleContext], Problem | None]
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class RuleContext:
    """A run as it stands. `config` is None of a person's own script, and where it cannot be read: nothing of
    it can be changed then."""

    state: RunState
    config: RunConfig | None = None
    is_over: bool = False

    @property
    def is_observed(self) -> bool:
        """Whether it is a person's own loop: what to do is then said of the code."""
        return self.state.script.is_observed

    @cached_property
    def attempt(self) -> Attempt | None:
        """The newest that was announced."""
        announced = [one for one in self.state.attempts.values() if one.started is not None]
        return announced[-1] if announced else None

    @property
    def cores(self) -> int | None:
        return self.state.started.cores if self.state.started is not None else None

    @cached_property
    def ranks(self) -> list[int]:
        """Those that train together, as far as they have said so."""
        told = {} if self.attempt is None else self.attempt.script.ranks
        return sorted(told.keys() - self.state.script.standalone_ranks)

    @property
    def is_on_gpus(self) -> bool:
        return any(device.kind == "gpu" for device in self.state.devices.values())

    @cached_property
    def sampled_steps(self) -> Sequence[StepAnatomy]:
        """The newest steps whose phases were recorded, but those that the ledger slowed down."""
        return () if self.attempt is None else list(self.attempt.anatomies.untracked)

    @cached_property
    def sampled_step_s(self) -> float:
        """The usual one of them, of the slowest rank."""
        return median(max(row.step_s for row in one.rows) for one in self.sampled_steps)

    def event_file(self, rank: int) -> str:
        """Where a rank writes what it tells, relative to the run's folder."""
        return f"events/rank-{rank}.{self.attempt.number if self.attempt is not None else 0}.jsonl"

    def config_file(self) -> str:
        """What was asked for, of the attempt that has brought its own."""
        number = self.attempt.number if self.attempt is not None else 0
        return f"config.{number}.toml" if number else "config.toml"

    def rank_evidence(self, rank: int, text: str) -> Evidence:
        """What a rank's own events show."""
        return Evidence(text, self.event_file(rank))


def make_finding(
    code: str,
    message: str,
    *evidence: Evidence | None,
    advice: str,
    rank: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Problem:
    """A warning with what was seen."""
    return Problem(
        code,
        message,
        advice=advice,
        rank=rank,
        severity="warning",
        cure=dict(changes or {}),
        evidence=tuple(seen for seen in evidence if seen is not None),
    )


def format_percent(share: float) -> str:
    """'37 %'"""
    return f"{share:.0%}".replace("%", " %")


def format_seconds(seconds: float) -> str:
    """'41 ms', '0.8 ms', '12.3 s'"""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
