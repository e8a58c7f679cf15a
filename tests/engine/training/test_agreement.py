"""All ranks act at the same step, without a word between them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankdeck.training import agreement
from rankdeck.training.agreement import SAVE, STOP, Agreement, AgreementOfHosts


def test_every_rank_reads_the_step_that_rank_0_has_fixed(tmp_path: Path) -> None:
    other, first = Agreement(tmp_path, 1), Agreement(tmp_path, 0)
    elsewhere = Agreement(tmp_path / "another run", 1)
    assert other.reached(7) == first.reached(7) == set()
    first.propose(SAVE, 7)
    assert other.reached(7) == first.reached(7) == set(), "the others may be in step 8 already"
    assert other.reached(8) == first.reached(8) == {SAVE}
    assert elsewhere.reached(8) == set()
    late = Agreement(tmp_path, 2)
    assert late.reached(8) == first.reached(8) == {SAVE}, "who comes late takes nothing back"


def test_the_first_proposal_stands_until_all_have_acted(tmp_path: Path) -> None:
    first, other = Agreement(tmp_path, 0), Agreement(tmp_path, 1)
    first.propose(STOP, 3)
    first.propose(SAVE, 5)
    first.propose(SAVE, 9)
    assert other.reached(6) == {SAVE, STOP}
    first.done(SAVE)
    assert other.reached(20) == {STOP}
    first.propose(SAVE, 20)
    assert other.reached(21) == {SAVE, STOP}


def test_a_rank_alone_acts_at_once(tmp_path: Path) -> None:
    alone = Agreement(tmp_path, 0, lead=0)
    alone.propose(STOP, 1)
    assert alone.reached(1) == {STOP}
    alone.propose(SAVE, 2)
    alone.propose(SAVE, 5)
    assert alone.reached(2) == {STOP, SAVE}
    alone.done(SAVE)
    assert alone.reached(9) == {STOP}
    assert not list(tmp_path.iterdir()), "nobody else would read it"


def test_a_request_is_looked_for_now_and_then_and_gone_when_done(tmp_path: Path) -> None:
    first = Agreement(tmp_path, 0)
    first.requested()
    (tmp_path / "save.request").touch()
    assert first.requested() == [], "it has just looked"
    first._looked_s -= agreement._LOOK_S
    assert first.requested() == [SAVE]
    Agreement(tmp_path, 1).request(STOP)
    first._looked_s -= agreement._LOOK_S
    assert first.requested() == [SAVE, STOP]
    first.done(SAVE)
    assert not (tmp_path / "save.request").exists()


def test_while_rank_0_writes_there_is_a_sign_of_it(tmp_path: Path) -> None:
    first = Agreement(tmp_path, 0)
    with first.saving():
        assert (tmp_path / agreement.SAVING).exists()
    assert not (tmp_path / agreement.SAVING).exists()


class Meetings:
    """Two ranks that meet, in threads of their own."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=10)
        self._given: dict[int, list[int]] = {}

    def of(self, rank: int) -> Callable[[list[int]], list[int]]:
        def meet(values: list[int]) -> list[int]:
            self._given[rank] = values
            self._barrier.wait()
            told = [max(pair) for pair in zip(*self._given.values(), strict=True)]
            self._barrier.wait()
            return told

        return meet


@pytest.mark.parametrize(("asking", "what"), [(0, SAVE), (0, STOP), (1, STOP)])
def test_ranks_of_several_hosts_do_it_after_the_same_step(tmp_path: Path, asking: int, what: str) -> None:
    meetings = Meetings()
    done: dict[int, list[int]] = {0: [], 1: []}

    def train(rank: int) -> None:
        agreement = AgreementOfHosts(tmp_path / str(rank), rank, meetings.of(rank))
        for step in range(1, 400):
            if rank == asking and step == 37:
                (agreement.propose(what, step) if rank == 0 else agreement.request(what))
            if what in agreement.reached(step):
                done[rank].append(step)
                agreement.done(what)
            time.sleep(0.001)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done[0] == done[1] and len(done[0]) == 1 and done[0][0] >= 37
