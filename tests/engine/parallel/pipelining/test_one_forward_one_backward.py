"""1F1B by hand lays its microbatches out as torch's 1f1b does, and holds p - s of them on stage s."""

from __future__ import annotations

import pytest

from rankdeck.parallel.pipelining.one_forward_one_backward import (
    Neighbour,
    Tensors,
    one_forward_one_backward,
)
from tests.helpers.schedule_order import actions, in_flight


def run_order(num_ahead: int, num_microbatches: int) -> list[tuple[str, int]]:
    """What a rank without neighbours does, microbatch by microbatch."""
    done: list[tuple[str, int]] = []

    def forward(microbatch: int, received: Tensors) -> Tensors:
        done.append(("forward", microbatch))
        return ()

    def backward(microbatch: int, *_: Tensors) -> Tensors:
        done.append(("backward", microbatch))
        return ()

    nobody = Neighbour(lambda tensors, boundary: (), ())
    one_forward_one_backward(
        forward, backward, nobody, nobody, num_warmup=num_ahead, num_microbatches=num_microbatches
    )
    return done


@pytest.mark.parametrize(("num_ranks", "num_microbatches"), [(2, 2), (2, 5), (4, 4), (4, 9), (3, 8)])
def test_every_rank_has_the_microbatch_order_of_torch(num_ranks: int, num_microbatches: int) -> None:
    for stage, slots in enumerate(actions("1f1b", num_ranks, num_microbatches)):
        order = run_order(num_ranks - 1 - stage, num_microbatches)
        # torch numbers the last rank's forwards from 1 in what it lays out, and runs them from 0.
        assert [kind for kind, _ in order] == [slot.kind for slot in slots if slot is not None]
        for kind in ("forward", "backward"):
            assert [number for done, number in order if done == kind] == list(range(num_microbatches))
        assert in_flight(slots) == num_ranks - stage


@pytest.mark.parametrize("num_microbatches", [1, 2, 3])
def test_few_microbatches_run_all_forwards_first(num_microbatches: int) -> None:
    """torch refuses them; here the pipe is never full."""
    order = run_order(3, num_microbatches)
    numbers = range(num_microbatches)
    assert order == [("forward", n) for n in numbers] + [("backward", n) for n in numbers]


def test_num_ahead_changes_the_order() -> None:
    """The negative control."""
    assert run_order(0, 4) != run_order(1, 4)
