"""What a rank says of its own end counts, unless it says so because the supervisor was ending it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.launch.watch import Watch
from tests.helpers.written_run import WrittenRun


@pytest.mark.parametrize(("ended_after_s", "counts"), [(None, True), (60.0, True), (-60.0, False)])
def test_words_of_a_rank_that_was_being_ended_are_no_failure(
    tmp_path: Path, ended_after_s: float | None, counts: bool
) -> None:
    """`ended_after_s`: when the rank was ended, after it had spoken; None where it ended by itself."""
    run = WrittenRun(tmp_path / "runs")
    failed = events.RankFailed(rank=0, problem=Problem("oom", "No memory.", rank=0))
    run.writer("rank-0").write(failed)
    ended_at = None if ended_after_s is None else time.time() + ended_after_s
    rank: Any = SimpleNamespace(rank=0, exit_code=1, ended_at=ended_at, was_suspended=False)
    watch = Watch(run.dir, 0, 60.0, lambda problem: None)
    watch.ranks = [rank]
    (evidence,) = watch.evidence()
    assert (evidence.failure is not None) == counts
    assert evidence.exit_code == (1 if ended_at is None else None)
    run.lose()
