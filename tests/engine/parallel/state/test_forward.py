"""State of a batch that is cut, against a plain module that takes the batch at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from rankdeck.parallel.state import forward
from rankdeck.parallel.state.forward import ForwardState
from rankdeck.parallel.state.rank_state import merge_values
from tests.helpers.changing import ALIKE, UNITS, ActNorm, CountingBuffer, Samples

CHUNK_SIZES = ([4, 4, 4, 4], [8, 8, 0], [5, 11])
"""Of 16 samples into parts; what is padded counts nothing."""


def batches(num: int) -> list[Tensor]:
    return list(torch.randn(num, 16, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3)))


def backward(unit: nn.Module, inputs: Tensor) -> Callable[[], None]:
    """Runs the forward, and gives the backward."""
    inputs = inputs.detach().requires_grad_()
    outputs = unit(inputs)
    return lambda: outputs.square().sum().backward()


def run_in_chunks(unit: nn.Module, samples: Sequence[int], batches: Sequence[Tensor]) -> None:
    """As gpipe does: all forwards, then all backwards, last part first."""
    state = ForwardState(unit)
    for inputs in batches:
        state.start(samples)
        backwards = []
        for index, chunk in enumerate(inputs.split(samples)):
            with state.chunk(index):
                backwards.append(backward(unit, chunk if len(chunk) else inputs[-2:]))
        for index in reversed(range(len(samples))):
            with state.chunk(index):
                backwards[index]()
        state.finish()


def state_values(unit: nn.Module) -> list[Tensor]:
    """All buffers, weights and attributes that are numbers, or tensors, or rows of numbers."""
    tensors: list[Tensor] = [*unit.buffers(), *unit.parameters()]
    for module in unit.modules():
        numbers = (value for value in vars(module).values() if isinstance(value, int | float | Tensor))
        tensors += [torch.as_tensor(value).double() for value in numbers]
    return [tensor.detach() for tensor in tensors]


def max_difference(left: nn.Module, right: nn.Module) -> float:
    pairs = zip(state_values(left), state_values(right), strict=True)
    return max(float((tensor.double() - other.double()).abs().max()) for tensor, other in pairs)


@pytest.mark.parametrize("samples", CHUNK_SIZES, ids=str)
@pytest.mark.parametrize("name", ALIKE)
def test_chunks_leave_the_state_of_the_full_batch(name: str, samples: list[int]) -> None:
    torch.manual_seed(0)
    unit = UNITS[name]().double()
    reference = copy.deepcopy(unit)
    for inputs in batches(3):
        backward(reference, inputs)()
    run_in_chunks(unit, samples, batches(3))
    assert max_difference(unit, reference) <= 1e-14


def test_chunks_that_share_state_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "find_slots", lambda *_: {})
    unit = CountingBuffer()
    run_in_chunks(unit, [8, 8], batches(3))
    assert int(unit.get_buffer("steps")) == 6


def test_a_buffer_stays_the_same_tensor() -> None:
    unit = UNITS["running_mean"]().double()
    buffer = unit.get_buffer("mean")
    run_in_chunks(unit, [8, 8], batches(2))
    assert unit.get_buffer("mean") is buffer and float(buffer.abs().max()) > 0


def test_a_shared_buffer_stays_shared() -> None:
    unit = nn.Sequential(CountingBuffer(), CountingBuffer())
    unit[1].register_buffer("steps", unit[0].steps)
    run_in_chunks(unit, [8, 8], batches(3))
    assert unit[0].steps is unit[1].steps and int(unit[0].steps) == 6


def test_a_memory_bank_is_updated_microbatch_by_microbatch() -> None:
    unit, reference = Samples().double(), Samples().double()
    for inputs in batches(4):
        reference(inputs)
    run_in_chunks(unit, [8, 8], batches(4))
    assert max_difference(unit, reference) == 0.0


def test_weights_set_by_the_first_microbatch_apply_to_all() -> None:
    unit, inputs = ActNorm().double(), batches(1)
    run_in_chunks(unit, [8, 8], inputs)
    torch.testing.assert_close(unit.shift.detach(), -inputs[0][:8].mean(0))


def test_state_that_changes_in_a_later_step_is_found() -> None:
    class Late(CountingBuffer):
        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs) if self.calls >= 10 else inputs

    unit = Late()
    unit.calls = 0
    run_in_chunks(unit, [8, 8], batches(20))
    assert int(unit.get_buffer("steps")) == 11 + 1, "batch 10 counts twice, is noticed, and no other does"


def test_a_pass_without_updates_state_changes_no_state() -> None:
    unit = CountingBuffer()
    state = ForwardState(unit)
    state.start([8, 8])
    for index in (0, 1):
        with state.chunk(index):
            unit(torch.ones(8, 64))
    for index in (0, 1):
        with state.chunk(index, updates_state=False):
            unit(torch.ones(8, 64))
    state.finish()
    assert int(unit.steps) == 1


def test_a_stateless_model_has_no_overhead() -> None:
    unit = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).double()
    state = ForwardState(unit)
    for inputs in batches(3):
        state.start([8, 8])
        with state.chunk(0):
            unit(inputs)
        assert state.chunk(1) is state.chunk(0), "no context of its own"
        state.finish()


@pytest.mark.parametrize(
    ("before", "chunks", "samples", "after"),
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
def test_attributes_of_chunks_are_merged(
    before: object, chunks: list[object], samples: list[int], after: object
) -> None:
    assert merge_values(before, chunks, samples) == after


def test_half_precision_averages_keep_their_precision() -> None:
    values = [torch.full((3,), value, dtype=torch.bfloat16) for value in (1.0, 1.0078125)] * 64
    mean = merge_values(torch.zeros(3), values, [4] * len(values))
    assert mean.dtype == torch.bfloat16 and abs(float(mean[0]) - 1.004) < 0.005
