"""What is answered from memory is what torch answers: shapes, strides, types, and who shares a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rankdeck.torch_compat.shape_memo import ShapeMemo

aten = torch.ops.aten
Given = Callable[[], tuple[Any, ...]]


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


FROM_MEMORY: dict[str, tuple[Any, Given]] = {
    "mm": (aten.mm.default, lambda: (floats(4, 8), floats(8, 2))),
    "a product with a transposed one": (aten.mm.default, lambda: (floats(4, 8), floats(2, 8).t())),
    "view": (aten.view.default, lambda: (floats(4, 8), [2, 16])),
    "t": (aten.t.default, lambda: (floats(4, 8),)),
    "a view of a view": (aten.slice.Tensor, lambda: (floats(4, 8).t()[2:], 1, 1, 3)),
    "expand": (aten.expand.default, lambda: (floats(1, 8), [4, 8])),
    "split": (aten.split.Tensor, lambda: (floats(4, 8), 2)),
    "as_strided": (aten.as_strided.default, lambda: (floats(4, 8), [2, 2], [8, 1], 3)),
    "three results": (aten.native_layer_norm.default, lambda: (floats(4, 8), [8], None, None, 1e-5)),
    "a list first": (aten.cat.default, lambda: ([floats(4, 8), floats(2, 8)],)),
    "a list of results": (aten._foreach_sqrt.default, lambda: ([floats(4), floats(2, 3)],)),
    "channels last": (
        aten.relu.default,
        lambda: (floats(2, 3, 4, 4).to(memory_format=torch.channels_last),),
    ),
    "a sum without shape": (aten.sum.default, lambda: (floats(4, 8),)),
    "a gradient that nobody asked for": (
        aten.convolution_backward.default,
        lambda: (
            floats(2, 4, 6, 6),
            floats(2, 3, 8, 8),
            floats(4, 3, 3, 3),
            None,
            [1, 1],
            [0, 0],
            [1, 1],
            False,
            [0, 0],
            1,
            [False, True, False],
        ),
    ),
    "of nothing": (aten.relu.default, lambda: (floats(0, 8),)),
    "a change of type": (aten._to_copy.default, lambda: (floats(4, 8),)),
}
ALWAYS_TORCH: dict[str, tuple[Any, Given]] = {
    "a view in secret": (aten._unsafe_view.default, lambda: (floats(4, 8), [2, 16])),
    "a view of another type": (aten.view.dtype, lambda: (floats(4, 8), torch.int32)),
    "in place": (aten.add_.Tensor, lambda: (floats(4, 8), 1.0)),
    "from nothing": (aten.empty.memory_format, lambda: ([4, 8],)),
    "complex": (aten.neg.default, lambda: (floats(4, 8, dtype=torch.complex64),)),
}


def described(out: Any, args: tuple[Any, ...]) -> Any:
    """All that the planner may learn from a result; storages are numbered as they come."""
    storages: dict[int, int] = {}
    outputs = out if isinstance(out, (list, tuple)) else [out]
    given = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    tensors = [item for item in (*given, *outputs) if isinstance(item, Tensor)]
    for tensor in tensors:
        storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
    return (
        type(out),
        [output is None for output in outputs],
        [
            (
                type(tensor),
                tensor.shape,
                tensor.stride(),
                tensor.storage_offset(),
                tensor.dtype,
                tensor.device,
                storages[tensor.untyped_storage()._cdata],
                tensor.untyped_storage().nbytes(),
            )
            for tensor in tensors
        ],
    )


@pytest.fixture
def fake() -> FakeTensorMode:
    return FakeTensorMode()


class Asked:
    """An operation that counts how often torch is asked."""

    def __init__(self, func: Any) -> None:
        self._func = func
        self.times = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._func, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.times += 1
        return self._func(*args, **kwargs)


@pytest.mark.parametrize("name", FROM_MEMORY)
def test_the_second_answer_is_as_torchs_first(fake: FakeTensorMode, name: str) -> None:
    func, given = FROM_MEMORY[name]
    memo, asked = ShapeMemo(), Asked(func)
    with fake:
        answers = []
        for _ in range(3):
            args = given()
            answers.append(described(memo(asked, args, {}), args))
    assert asked.times == 1
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", ALWAYS_TORCH)
def test_what_is_not_certain_is_asked_each_time(fake: FakeTensorMode, name: str) -> None:
    func, given = ALWAYS_TORCH[name]
    memo, asked = ShapeMemo(), Asked(func)
    with fake:
        for _ in range(3):
            args = given()
            told = described(memo(asked, args, {}), args)
            args = given()
            assert told == described(func(*args), args)
    assert asked.times == 3


def test_a_torch_without_its_private_half_is_asked_each_time(
    fake: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck.torch_compat.shape_memo.in_kernel", None)
    memo, asked = ShapeMemo(), Asked(aten.relu.default)
    with fake:
        for _ in range(2):
            memo(asked, (floats(4),), {})
    assert asked.times == 2


LIKE_A_MATRIX: dict[str, Given] = {
    "itself": lambda: (floats(4, 8),),
    "of another type": lambda: (floats(4, 8, dtype=torch.float64),),
    "half": lambda: (floats(4, 8, dtype=torch.bfloat16),),
    "transposed": lambda: (floats(8, 4).t(),),
    "the second half": lambda: (floats(8, 8)[4:],),
    "elsewhere": lambda: (floats(4, 8).to("meta"),),
}


@pytest.mark.parametrize("func", [aten.relu.default, aten.slice.Tensor])
def test_tensors_are_told_apart_by_all_that_they_are(fake: FakeTensorMode, func: Any) -> None:
    memo = ShapeMemo()
    with fake:
        for name in (*LIKE_A_MATRIX, *LIKE_A_MATRIX):
            args = LIKE_A_MATRIX[name]()
            assert described(memo(func, args, {}), args) == described(func(*args), args), name


def test_numbers_are_told_apart_by_type(fake: FakeTensorMode) -> None:
    memo = ShapeMemo()
    with fake:
        whole = torch.zeros(3, dtype=torch.int64)
        types = [memo(aten.add.Tensor, (whole, number), {}).dtype for number in (1, 1.0, True, 1)]
    assert types == [torch.int64, torch.float32, torch.int64, torch.int64]


def test_the_default_type_is_part_of_the_question(fake: FakeTensorMode) -> None:
    memo = ShapeMemo()
    with fake:
        whole = torch.zeros(3, dtype=torch.int64)
        assert memo(aten.mul.Tensor, (whole, 1.5), {}).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert memo(aten.mul.Tensor, (whole, 1.5), {}).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_what_depends_on_values_is_refused_each_time(fake: FakeTensorMode) -> None:
    memo = ShapeMemo()
    with fake:
        value = floats(4).sum()
        for _ in range(2):
            with pytest.raises(DataDependentOutputException):
                memo(aten._local_scalar_dense.default, (value,), {})


def test_a_view_of_an_emptied_storage_is_torchs(fake: FakeTensorMode) -> None:
    """FSDP frees storages and goes on to make views of them."""
    memo = ShapeMemo()
    with fake:
        for freed in (False, True):
            whole = floats(4, 8)
            if freed:
                whole.untyped_storage().resize_(0)
            assert memo(aten.t.default, (whole,), {}).shape == (8, 4)


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(
    ("func", "size"), [(aten.t.default, ()), (aten._unsafe_view.default, ([2, 16],)), (aten.relu.default, ())]
)
def test_a_tensor_of_another_mode_is_torchs(
    fake: FakeTensorMode, func: Any, size: tuple[Any, ...], ours_first: bool
) -> None:
    """A model is cut on shapes in a mode of its own; torch copies a weight into it before all else."""
    memo, probing = ShapeMemo(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        weight = floats(4, 8)
    for mode in (fake, probing) if ours_first else (probing, fake):
        with mode:
            told = memo(func, (weight, *size), {})
            expected = func(weight, *size)
        assert told.fake_mode is expected.fake_mode is mode
        owner = weight.untyped_storage()._cdata
        assert (told.untyped_storage()._cdata == owner) == (expected.untyped_storage()._cdata == owner)


def test_a_negated_view_is_torchs(fake: FakeTensorMode) -> None:
    memo = ShapeMemo()
    with fake:
        for _ in range(2):
            imaginary = floats(4, dtype=torch.complex64).conj().imag
            assert imaginary.is_neg()
            resolved = memo(aten.clone.default, (imaginary,), {})
            assert resolved.is_neg() == aten.clone.default(imaginary).is_neg()
