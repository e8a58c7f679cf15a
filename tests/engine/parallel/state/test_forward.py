"""State of a batch that is cut, against a plain module that takes the batch at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from rankdeck.parallel.state import forward
from rankdeck.parallel.state.forward import ForwardState
from rankdeck.parallel.state.over_ranks import joined
from tests.helpers.changing import ALIKE, UNITS, ActNorm, CountingBuffer, Samples

CUTS = ([4, 4, 4, 4], [8, 8, 0], [5, 11])
"""Of 16 samples into parts; what is padded counts nothing."""


def batches(num: int) -> list[Tensor]:
    return list(torch.randn(num, 16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


def backward(unit: nn.Module, inputs: Tensor) -> Callable[[], None]:
    """Runs the forward, and gives the backward."""
    inputs = inputs.detach().requires_grad_()
    outputs = unit(inputs)
    return lambda: outputs.square().sum().backward()


def in_parts(unit: nn.Module, samples: Sequence[int], whole: Sequence[Tensor]) -> None:
    """As gpipe does: all forwards, then all backwards, last part first."""
    state = ForwardState(unit)
    for inputs in whole:
        state.start(samples)
        backwards = []
        for index, part in enumerate(inputs.split(samples)):
            with state.part(index):
                backwards.append(backward(unit, part if len(part) else inputs[-2:]))
        for index in reversed(range(len(samples))):
            with state.part(index):
                backwards[index]()
        state.finish()


def values(unit: nn.Module) -> list[Tensor]:
    """All buffers, weights and attributes that are numbers, or tensors, or rows of numbers."""
    found: list[Tensor] = [*unit.buffers(), *unit.parameters()]
    for module in unit.modules():
        numbers = (value for value in vars(module).values() if isinstance(value, int | float | Tensor))
        found += [torch.as_tensor(value).double() for value in numbers]
    return [tensor.detach() for tensor in found]


def distance(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(values(left), values(right), strict=True)
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


@pytest.mark.parametrize("samples", CUTS, ids=str)
@pytest.mark.parametrize("name", ALIKE)
def test_parts_leave_the_state_of_the_whole(name: str, samples: list[int]) -> None:
    torch.manual_seed(0)
    unit = UNITS[name]().double()
    whole = copy.deepcopy(unit)
    for inputs in batches(3):
        backward(whole, inputs)()
    in_parts(unit, samples, batches(3))
    assert distance(unit, whole) <= 1e-14


def test_parts_that_find_each_others_state_end_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "slots_of", lambda *_: {})
    unit = CountingBuffer()
    in_parts(unit, [8, 8], batches(3))
    assert int(unit.get_buffer("steps")) == 6


def test_a_buffer_stays_the_tensor_that_others_hold() -> None:
    unit = UNITS["running_mean"]().double()
    known = unit.get_buffer("mean")
    in_parts(unit, [8, 8], batches(2))
    assert unit.get_buffer("mean") is known and float(known.abs().max()) > 0


def test_two_modules_that_share_a_buffer_go_on_sharing_it() -> None:
    unit = nn.Sequential(CountingBuffer(), CountingBuffer())
    unit[1].register_buffer("steps", unit[0].steps)
    in_parts(unit, [8, 8], batches(3))
    assert unit[0].steps is unit[1].steps and int(unit[0].steps) == 6


def test_microbatches_of_a_memory_bank_follow_one_another() -> None:
    unit, whole = Samples().double(), Samples().double()
    for inputs in batches(4):
        whole(inputs)
    in_parts(unit, [8, 8], batches(4))
    assert distance(unit, whole) == 0.0


def test_the_first_microbatch_sets_weights_for_all() -> None:
    unit, inputs = ActNorm().double(), batches(1)
    in_parts(unit, [8, 8], inputs)
    torch.testing.assert_close(unit.shift.detach(), -inputs[0][:8].mean(0))


def test_state_that_begins_to_change_late_is_found() -> None:
    class Late(CountingBuffer):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) if self.calls >= 10 else inputs

    unit = Late()
    unit.calls = 0
    in_parts(unit, [8, 8], batches(20))
    assert int(unit.get_buffer("steps")) == 11 + 1, "batch 10 counts twice, is noticed, and no other does"


def test_a_backward_that_does_not_count_leaves_state_alone() -> None:
    unit = CountingBuffer()
    state = ForwardState(unit)
    state.start([8, 8])
    for index in (0, 1):
        with state.part(index):
            unit(torch.ones(8, 64))
    for index in (0, 1):
        with state.part(index, counts=False):
            unit(torch.ones(8, 64))
    state.finish()
    assert int(unit.steps) == 1


def test_a_model_without_state_that_changes_costs_nothing() -> None:
    unit = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).double()
    state = ForwardState(unit)
    for inputs in batches(3):
        state.start([8, 8])
        with state.part(0):
            unit(inputs)
        assert state.part(1) is state.part(0), "no context of its own"
        state.finish()


@pytest.mark.parametrize(
    ("before", "parts", "samples", "after"),
    [
        (1, [2, 2], [4, 4], 2),
        (1, [5, 5], [4, 4], 9),
        (1, [3, 3], [2, 2], 3),
        (0.0, [1.0, 3.0], [1, 3], 2.5),
        (0, [7, 9], [4, 4], 7),
        (False, [True, False], [4, 4], True),
        (None, ["a", "b"], [4, 4], "a"),
        (1, [4, 5, 9], [0, 4, 8], 13),
    ],
)
def test_numbers_and_words_of_parts_become_one(
    before: object, parts: list[object], samples: list[int], after: object
) -> None:
    assert joined(before, parts, samples) == after


def test_half_precision_averages_keep_their_digits() -> None:
    parts = [torch.full((3,), value, dtype=torch.bfloat16) for value in (1.0, 1.0078125)] * 64
    mean = joined(torch.zeros(3), parts, [4] * len(parts))
    assert mean.dtype == torch.bfloat16 and abs(float(mean[0]) - 1.004) < 0.005
