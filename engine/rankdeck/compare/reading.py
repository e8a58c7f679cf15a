"""Runs read from their directories, for whoever does not follow them: the command line."""

from __future__ import annotations

from typing import NamedTuple

from rankdeck.compare.background import read_background
from rankdeck.compare.figures import ComparedRun, figures_of, outcome_of
from rankdeck.compare.naming import RunAt
from rankdeck.run.batch import batches
from rankdeck.run.fold import Fold
from rankdeck.rundir import EventReader


class ReadRun(NamedTuple):
    """A run's figures, and the fold that its curves are drawn from."""

    figures: ComparedRun
    fold: Fold


def read(at: RunAt) -> ReadRun:
    """Everything that a run, or one attempt of it alone, has told until now."""
    fold = Fold()
    for batch in batches(reader_of(at)):
        fold.apply(batch)
    background = read_background(at)
    outcome = outcome_of(at, fold, background, at.run.outcome())
    return ReadRun(figures_of(at, fold, background, outcome), fold)


def reader_of(at: RunAt) -> EventReader:
    """What reads the events of a run, or of one attempt alone."""
    return EventReader(at.run, first_attempt=at.attempt or 0, last_attempt=at.attempt)
