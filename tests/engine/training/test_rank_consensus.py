"""All ranks act at the same step, without a word between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.training import rank_consensus
from rankdeck.training.rank_consensus import SAVE, STOP, MultiHostConsensus, RankConsensus


def test_every_rank_reads_the_step_that_rank_0_chose(tmp_path: Path) -> None:
    other, first = RankConsensus(tmp_path, 1), RankConsensus(tmp_path, 0)
    elsewhere = RankConsensus(tmp_path / "another run", 1)
    assert other.due_actions(7) == first.due_actions(7) == set()
    first.propose(SAVE, 7)
    assert other.due_actions(7) == first.due_actions(7) == set(), "the others may be in step 8 already"
    assert other.due_actions(8) == first.due_actions(8) == {SAVE}
    assert elsewhere.due_actions(8) == set()
    late = RankConsensus(tmp_path, 2)
    assert late.due_actions(8) == first.due_actions(8) == {SAVE}, "who comes late takes nothing back"


def test_the_first_proposal_holds_until_all_ranks_acted(tmp_path: Path) -> None:
    first, other = RankConsensus(tmp_path, 0), RankConsensus(tmp_path, 1)
    first.propose(STOP, 3)
    first.propose(SAVE, 5)
    first.propose(SAVE, 9)
    assert other.due_actions(6) == {SAVE, STOP}
    first.clear_request(SAVE)
    assert other.due_actions(20) == {STOP}
    first.propose(SAVE, 20)
    assert other.due_actions(21) == {SAVE, STOP}


def test_a_single_rank_acts_at_once(tmp_path: Path) -> None:
    alone = RankConsensus(tmp_path, 0, lead_steps=0)
    alone.propose(STOP, 1)
    assert alone.due_actions(1) == {STOP}
    alone.propose(SAVE, 2)
    alone.propose(SAVE, 5)
    assert alone.due_actions(2) == {STOP, SAVE}
    alone.clear_request(SAVE)
    assert alone.due_actions(9) == {STOP}
    assert not list(tmp_path.iterdir()), "nobody else would read it"


def test_requests_are_polled_and_removed_when_done(tmp_path: Path) -> None:
    first = RankConsensus(tmp_path, 0)
    first.pending_requests()
    (tmp_path / "save.request").touch()
    assert first.pending_requests() == [], "it has just looked"
    first._last_poll_s -= rank_consensus._POLL_INTERVAL_S
    assert first.pending_requests() == [SAVE]
    RankConsensus(tmp_path, 1).request(STOP)
    first._last_poll_s -= rank_consensus._POLL_INTERVAL_S
    assert first.pending_requests() == [SAVE, STOP]
    first.clear_request(SAVE)
    assert not (tmp_path / "save.request").exists()


def test_rank_0_shows_that_it_is_writing(tmp_path: Path) -> None:
    first = RankConsensus(tmp_path, 0)
    with first.saving_marker():
        assert (tmp_path / rank_consensus.SAVING_FILE).exists()
    assert not (tmp_path / rank_consensus.SAVING_FILE).exists()


class FakeAllReduce:
    """Two ranks that meet, in threads of their own."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=10)
        self._values_by_rank: dict[int, list[int]] = {}

    def all_reduce_of(self, rank: int) -> Callable[[list[int]], list[int]]:
        def meet(values: list[int]) -> list[int]:
            self._values_by_rank[rank] = values
            self._barrier.wait()
            maxima = [max(pair) for pair in zip(*self._values_by_rank.values(), strict=True)]
            self._barrier.wait()
            return maxima

        return meet


@pytest.mark.parametrize(("asking", "what"), [(0, SAVE), (0, STOP), (1, STOP)])
def test_ranks_of_several_hosts_act_after_the_same_step(tmp_path: Path, asking: int, what: str) -> None:
    meetings = FakeAllReduce()
    done: dict[int, list[int]] = {0: [], 1: []}

    def train(rank: int) -> None:
        rank_consensus = MultiHostConsensus(tmp_path / str(rank), rank, meetings.all_reduce_of(rank))
        for step in range(1, 400):
            if rank == asking and step == 37:
                (rank_consensus.propose(what, step) if rank == 0 else rank_consensus.request(what))
            if what in rank_consensus.due_actions(step):
                done[rank].append(step)
                rank_consensus.clear_request(what)
            time.sleep(0.001)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done[0] == done[1] and len(done[0]) == 1 and done[0][0] >= 37
