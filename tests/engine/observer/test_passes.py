"""What is seen of how a script goes through its data: the same batches, the same order again, batch norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.script_python import parts_off
from tests.helpers.watched import Watched, watch

FORGOTTEN, TOLD, PERSISTENT, IN_ORDER, OWN_ORDER, PLAIN, ONCE, ZEROS = range(8)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    done = watch([Path(__file__).parent / "scripts/passes.py"], tmp_path_factory.mktemp("passes"))
    assert done.status == 0, done.stderr
    return done


def test_passes_in_the_order_of_the_one_before(seen: Watched) -> None:
    same = {rank: seen.observed(rank).same_epochs for rank in seen.ranks()}
    assert same == dict.fromkeys(range(8), 0) | {FORGOTTEN: 2, PERSISTENT: 2}


def test_first_batches_are_alike_where_samples_are(seen: Watched) -> None:
    digests = {rank: seen.observed(rank).first_batches for rank in seen.ranks()}
    assert digests[ZEROS] is None and None not in [digests[rank] for rank in range(7)]
    assert digests[FORGOTTEN] == digests[PERSISTENT] and digests[PLAIN] == digests[ONCE]
    assert len({digests[rank] for rank in (FORGOTTEN, TOLD, IN_ORDER, OWN_ORDER, PLAIN)}) == 5


def test_batch_norms_in_training_are_counted_and_threads_are_told(seen: Watched) -> None:
    norms = {rank: seen.observed(rank).batch_norms for rank in seen.ranks()}
    assert norms == dict.fromkeys(range(8), 0) | {FORGOTTEN: 1}
    for rank in seen.ranks():
        (started,) = seen.of(events.RankStarted, rank)
        assert started.threads == 1 and seen.off(rank) == parts_off()
