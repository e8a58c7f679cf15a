"""Facts about one rank of a failed run, from which cause.py and mismatch.py find the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankdeck.base.heartbeat import Beat
from rankdeck.base.phrases import Phrase
from rankdeck.diagnose.stacks import CollectiveCall, Frame
from rankdeck.events import RankFailed


@dataclass(frozen=True)
class RankEvidence:
    """Facts about one rank of a failed run.

    `exit_code` is negative for a signal, and None for a rank that was alive until Rankdeck ended it.
    `has_finished`: the rank reported that its work was done, so its exit status means nothing.
    `was_asked_to_stop`: SIGTERM was sent to this rank itself; other ranks may have stopped as a result.
    `failure` is the rank's own report; `frames`, `calls` and `microbatch` are its stack, its collectives and
    its microbatch at the time when a hang was suspected.
    """

    rank: int
    exit_code: int | None
    has_finished: bool = False
    was_asked_to_stop: bool = False
    failure: RankFailed | None = None
    beat: Beat | None = None
    is_suspended: bool = False
    last_lines: tuple[str, ...] = ()
    frames: Sequence[Frame] = ()
    calls: Sequence[CollectiveCall] = ()
    microbatch: Phrase | None = None
    host: str = ""
    resource_error: str = ""
    """Log line about a resource that the machine lacks; a process that reads data for the rank may have
    written it."""
