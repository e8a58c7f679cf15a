"""What is seen of how a script goes through its data: the same batches, the same order again, batch norms."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rankdeck import events
from rankdeck.observer.epochs import EpochTracker
from tests.helpers.observed_process import ObservedProcess, run_script
from tests.helpers.script_python import unavailable_parts

FORGOTTEN, TOLD, PERSISTENT, IN_ORDER, OWN_ORDER, PLAIN, ONCE, ZEROS, BAGS = range(9)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> ObservedProcess:
    done = run_script([Path(__file__).parent / "scripts/passes.py"], tmp_path_factory.mktemp("passes"))
    assert done.status == 0, done.stderr
    return done


def test_epochs_with_an_unchanged_order_are_counted(process: ObservedProcess) -> None:
    same = {rank: process.last_observed(rank).same_epochs for rank in process.ranks()}
    assert same == dict.fromkeys(range(9), 0) | {FORGOTTEN: 2, PERSISTENT: 2}


def test_ranks_with_equal_samples_have_equal_digests(process: ObservedProcess) -> None:
    digests = {rank: process.last_observed(rank).first_batches for rank in process.ranks()}
    assert digests[ZEROS] is None and None not in [digests[rank] for rank in range(7)]
    assert digests[FORGOTTEN] == digests[PERSISTENT] and digests[PLAIN] == digests[ONCE]
    assert len({digests[rank] for rank in (FORGOTTEN, TOLD, IN_ORDER, OWN_ORDER, PLAIN)}) == 5


@pytest.mark.parametrize(("num_parts", "is_compared"), [(1, True), (2, False)])
def test_batches_that_ranks_divide_are_not_compared(num_parts: int, is_compared: bool) -> None:
    facts: dict[str, object] = {}
    session: Any = SimpleNamespace(world_size=2, record_facts=facts.update)
    tracker = EpochTracker(torch.Tensor, session)
    model = nn.Linear(16, 4)
    first_batches: list[list[Any]] = []
    for _ in range(3):
        x, y = torch.randn(16, 16), torch.randint(4, (16,))
        tracker.on_batch(first_batches, (x, y), bool(first_batches))
        loss = F.cross_entropy(model(x.chunk(num_parts)[0]), y.chunk(num_parts)[0])
        tracker.on_backward((loss / 2,), len(x))
    assert ("first_batches" in facts) is is_compared


def test_batch_norms_and_threads_are_reported(process: ObservedProcess) -> None:
    norms = {rank: process.last_observed(rank).batch_norms for rank in process.ranks()}
    assert norms == dict.fromkeys(range(9), 0) | {FORGOTTEN: 1}
    for rank in process.ranks():
        (started,) = process.events_of_type(events.RankStarted, rank)
        assert started.threads == 1 and process.disabled_parts(rank) == unavailable_parts()
