"""All ranks act at the same step, without a word between them."""

from __future__ import annotations

from pathlib import Path

from rankdeck.training import agreement
from rankdeck.training.agreement import SAVE, STOP, Agreement


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
