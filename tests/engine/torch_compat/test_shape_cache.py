"""What is answered from memory is what torch answers: shapes, strides, types, and who shares a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from rankdeck.torch_compat.shape_cache import ShapeCache

aten = torch.ops.aten
MakeArgs = Callable[[], tuple[Any, ...]]


def zeros_of(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


CACHED_OPS: dict[str, tuple[Any, MakeArgs]] = {
    "mm": (aten.mm.default, lambda: (zeros_of(4, 8), zeros_of(8, 2))),
    "a product with a transposed one": (aten.mm.default, lambda: (zeros_of(4, 8), zeros_of(2, 8).t())),
    "view": (aten.view.default, lambda: (zeros_of(4, 8), [2, 16])),
    "t": (aten.t.default, lambda: (zeros_of(4, 8),)),
    "a view of a view": (aten.slice.Tensor, lambda: (zeros_of(4, 8).t()[2:], 1, 1, 3)),
    "expand": (aten.expand.default, lambda: (zeros_of(1, 8), [4, 8])),
    "split": (aten.split.Tensor, lambda: (zeros_of(4, 8), 2)),
    "as_strided": (aten.as_strided.default, lambda: (zeros_of(4, 8), [2, 2], [8, 1], 3)),
    "three results": (aten.native_layer_norm.default, lambda: (zeros_of(4, 8), [8], None, None, 1e-5)),
    "a list first": (aten.cat.default, lambda: ([zeros_of(4, 8), zeros_of(2, 8)],)),
    "a list of results": (aten._foreach_sqrt.default, lambda: ([zeros_of(4), zeros_of(2, 3)],)),
    "channels last": (
        aten.relu.default,
        lambda: (zeros_of(2, 3, 4, 4).to(memory_format=torch.channels_last),),
    ),
    "a sum without shape": (aten.sum.default, lambda: (zeros_of(4, 8),)),
    "a gradient that nobody asked for": (
        aten.convolution_backward.default,
        lambda: (
            zeros_of(2, 4, 6, 6),
            zeros_of(2, 3, 8, 8),
            zeros_of(4, 3, 3, 3),
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
    "of nothing": (aten.relu.default, lambda: (zeros_of(0, 8),)),
    "a change of type": (aten._to_copy.default, lambda: (zeros_of(4, 8),)),
}
UNCACHED_OPS: dict[str, tuple[Any, MakeArgs]] = {
    "a view in secret": (aten._unsafe_view.default, lambda: (zeros_of(4, 8), [2, 16])),
    "a view of another type": (aten.view.dtype, lambda: (zeros_of(4, 8), torch.int32)),
    "in place": (aten.add_.Tensor, lambda: (zeros_of(4, 8), 1.0)),
    "from nothing": (aten.empty.memory_format, lambda: ([4, 8],)),
    "complex": (aten.neg.default, lambda: (zeros_of(4, 8, dtype=torch.complex64),)),
}


def describe_result(out: Any, args: tuple[Any, ...]) -> Any:
    """All that the planner may learn from a result; storages are numbered as they come."""
    storages: dict[int, int] = {}
    outputs = out if isinstance(out, (list, tuple)) else [out]
    arguments = [item for arg in args for item in (arg if isinstance(arg, list) else [arg])]
    tensors = [item for item in (*arguments, *outputs) if isinstance(item, Tensor)]
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


class CountedOp:
    """An operation that counts how often torch is asked."""

    def __init__(self, func: Any) -> None:
        self._func = func
        self.num_calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._func, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.num_calls += 1
        return self._func(*args, **kwargs)


@pytest.mark.parametrize("name", CACHED_OPS)
def test_a_cached_result_equals_the_first(fake: FakeTensorMode, name: str) -> None:
    func, make_args = CACHED_OPS[name]
    memo, operation = ShapeCache(), CountedOp(func)
    with fake:
        answers = []
        for _ in range(3):
            args = make_args()
            answers.append(describe_result(memo(operation, args, {}), args))
    assert operation.num_calls == 1
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("name", UNCACHED_OPS)
def test_uncertain_operations_are_not_cached(fake: FakeTensorMode, name: str) -> None:
    func, make_args = UNCACHED_OPS[name]
    memo, operation = ShapeCache(), CountedOp(func)
    with fake:
        for _ in range(3):
            args = make_args()
            answer = describe_result(memo(operation, args, {}), args)
            args = make_args()
            assert answer == describe_result(func(*args), args)
    assert operation.num_calls == 3


def test_without_private_apis_nothing_is_cached(
    fake: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankdeck.torch_compat.shape_cache.in_kernel", None)
    memo, operation = ShapeCache(), CountedOp(aten.relu.default)
    with fake:
        for _ in range(2):
            memo(operation, (zeros_of(4),), {})
    assert operation.num_calls == 2


SIMILAR_TENSORS: dict[str, MakeArgs] = {
    "itself": lambda: (zeros_of(4, 8),),
    "of another type": lambda: (zeros_of(4, 8, dtype=torch.float64),),
    "half": lambda: (zeros_of(4, 8, dtype=torch.bfloat16),),
    "transposed": lambda: (zeros_of(8, 4).t(),),
    "the second half": lambda: (zeros_of(8, 8)[4:],),
    "elsewhere": lambda: (zeros_of(4, 8).to("meta"),),
}


@pytest.mark.parametrize("func", [aten.relu.default, aten.slice.Tensor])
def test_the_cache_key_has_all_tensor_properties(fake: FakeTensorMode, func: Any) -> None:
    memo = ShapeCache()
    with fake:
        for name in (*SIMILAR_TENSORS, *SIMILAR_TENSORS):
            args = SIMILAR_TENSORS[name]()
            assert describe_result(memo(func, args, {}), args) == describe_result(func(*args), args), name


def test_the_cache_key_has_the_type_of_numbers(fake: FakeTensorMode) -> None:
    memo = ShapeCache()
    with fake:
        tensor = torch.zeros(3, dtype=torch.int64)
        types = [memo(aten.add.Tensor, (tensor, number), {}).dtype for number in (1, 1.0, True, 1)]
    assert types == [torch.int64, torch.float32, torch.int64, torch.int64]


def test_the_cache_key_has_the_default_dtype(fake: FakeTensorMode) -> None:
    memo = ShapeCache()
    with fake:
        tensor = torch.zeros(3, dtype=torch.int64)
        assert memo(aten.mul.Tensor, (tensor, 1.5), {}).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert memo(aten.mul.Tensor, (tensor, 1.5), {}).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_data_dependent_operations_always_raise(fake: FakeTensorMode) -> None:
    memo = ShapeCache()
    with fake:
        value = zeros_of(4).sum()
        for _ in range(2):
            with pytest.raises(DataDependentOutputException):
                memo(aten._local_scalar_dense.default, (value,), {})


def test_a_view_of_an_emptied_storage_is_not_cached(fake: FakeTensorMode) -> None:
    """FSDP frees storages and goes on to make views of them."""
    memo = ShapeCache()
    with fake:
        for freed in (False, True):
            tensor = zeros_of(4, 8)
            if freed:
                tensor.untyped_storage().resize_(0)
            assert memo(aten.t.default, (tensor,), {}).shape == (8, 4)


@pytest.mark.parametrize("ours_first", [True, False])
@pytest.mark.parametrize(
    ("func", "size"), [(aten.t.default, ()), (aten._unsafe_view.default, ([2, 16],)), (aten.relu.default, ())]
)
def test_a_tensor_of_another_mode_is_not_cached(
    fake: FakeTensorMode, func: Any, size: tuple[Any, ...], ours_first: bool
) -> None:
    """A model is cut on shapes in a mode of its own; torch copies a weight into it before all else."""
    memo, probing = ShapeCache(), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        weight = zeros_of(4, 8)
    for mode in (fake, probing) if ours_first else (probing, fake):
        with mode:
            result = memo(func, (weight, *size), {})
            expected = func(weight, *size)
        assert result.fake_mode is expected.fake_mode is mode
        owner = weight.untyped_storage()._cdata
        assert (result.untyped_storage()._cdata == owner) == (expected.untyped_storage()._cdata == owner)


def test_a_negated_view_is_not_cached(fake: FakeTensorMode) -> None:
    memo = ShapeCache()
    with fake:
        for _ in range(2):
            imaginary = zeros_of(4, dtype=torch.complex64).conj().imag
            assert imaginary.is_neg()
            resolved = memo(aten.clone.default, (imaginary,), {})
            assert resolved.is_neg() == aten.clone.default(imaginary).is_neg()
