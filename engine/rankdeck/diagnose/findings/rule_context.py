"""Give rules access to the metrics of a run (run/run_state.py), except those that would mislead them.

Read __init__.py first. Every access is cheap, however many steps were recorded: none copies or scans a whole
column of recorded values.
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
"""Phases in which a DDP rank waits for no other rank. The backward pass is not one of them, because it ends
only when the slowest rank's backward pass ends."""


class FindingRule(NamedTuple):
    """A rule; `check` returns a problem or None.

    The rule is skipped if a rule in `unless` has found a problem, because this rule's finding would only be a
    consequence of that problem.
    """

    code: str
    check: Callable[[RuleContext], Problem | None]
    unless: tuple[str, ...] = ()


@dataclass(frozen=True)
class RuleContext:
    """The current state of a run, which the rules inspect.

    `config` is None for a user's own script, or if the configuration cannot be read: findings then suggest no
    changes to options.
    """

    state: RunState
    config: RunConfig | None = None
    is_over: bool = False

    @property
    def is_observed(self) -> bool:
        """Whether the run is a user's own training loop: advice is then about code, not options."""
        return self.state.script.is_observed

    @cached_property
    def attempt(self) -> Attempt | None:
        """The newest attempt whose start event has arrived; None if there is none."""
        announced = [candidate for candidate in self.state.attempts.values() if candidate.started is not None]
        return announced[-1] if announced else None

    @property
    def cores(self) -> int | None:
        return self.state.started.cores if self.state.started is not None else None

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks that train together and have reported so far."""
        reported = {} if self.attempt is None else self.attempt.script.ranks
        return sorted(reported.keys() - self.state.script.standalone_ranks)

    @property
    def is_on_gpus(self) -> bool:
        return any(device.kind == "gpu" for device in self.state.devices.values())

    @cached_property
    def sampled_steps(self) -> Sequence[StepAnatomy]:
        """The newest steps with recorded phases, except those that the memory ledger slowed down."""
        return () if self.attempt is None else list(self.attempt.anatomies.untracked)

    @cached_property
    def sampled_step_s(self) -> float:
        """Median duration of the sampled steps; a step's duration is that of its slowest rank."""
        return median(max(row.step_s for row in anatomy.rows) for anatomy in self.sampled_steps)

    def event_file(self, rank: int) -> str:
        """Return the path of a rank's event file, relative to the run directory."""
        return f"events/rank-{rank}.{self.attempt.number if self.attempt is not None else 0}.jsonl"

    def config_file(self) -> str:
        """Return the name of the newest attempt's configuration file in the run directory."""
        number = self.attempt.number if self.attempt is not None else 0
        # The first attempt has the run's own configuration, a resumed one a file with its number.
        return f"config.{number}.toml" if number else "config.toml"

    def rank_evidence(self, rank: int, text: str) -> Evidence:
        """Return evidence that points to a rank's event file."""
        return Evidence(text, self.event_file(rank))


def make_finding(
    code: str,
    message: str,
    *evidence: Evidence | None,
    advice: str,
    rank: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Problem:
    """Return a problem of severity "warning" with its evidence."""
    return Problem(
        code,
        message,
        advice=advice,
        rank=rank,
        severity="warning",
        cure=dict(changes or {}),
        evidence=tuple(item for item in evidence if item is not None),
    )


def format_percent(share: float) -> str:
    """Format a share as text such as '37 %'."""
    return f"{share:.0%}".replace("%", " %")


def format_seconds(seconds: float) -> str:
    """Format a duration as text such as '41 ms', '0.8 ms' or '12.3 s'."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
