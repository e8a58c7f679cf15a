"""What a model asks of values that a plan does not have: which branch to take, how many rows an expert gets.

    at most      tensors whose shape depends on values are as large as can be: every token to every expert
    at least     questions are answered as the run's first samples and weights would: the model's forward is
                 computed once, where it is small enough, and what was asked is kept
    either way   else every question is answered with yes, and then with no

The answers are given in order to the module that asks, however its layers are cut and its batch is shared.
Read fake_values.py before, rank_plan.py for what becomes of it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config import RunConfig
from rankdeck.data.loader import read_samples
from rankdeck.diagnose.exceptions import user_location
from rankdeck.parallel.pytree import call_model, cast_to, fp64_dtype, tensor_leaves
from rankdeck.planner.candidates import least_batch
from rankdeck.planner.samples import Samples
from rankdeck.torch_compat.attribute_patches import AttributePatches
from rankdeck.torch_compat.dispatch import DispatchMode, Kwargs, backward_id, in_backward, storage_key
from rankdeck.torch_compat.modules import apply_to_tensors
from rankdeck.training import workload as workloads

MAX_WORK = 10**11
"""Weights times numbers that enter: about so many products are computed in some seconds."""
_NAME_ATTRIBUTE = "_rankdeck_name"
_MAX_QUESTIONS = 1_000
_aten = torch.ops.aten
DYNAMIC_SHAPE_OPS = tuple(
    overload
    for name, kind in (
        ("nonzero", "default"), ("masked_select", "default"), ("index", "Tensor"), ("_unique", "default"),
        ("_unique2", "default"), ("unique_consecutive", "default"), ("unique_dim", "default"),
        ("bincount", "default"), ("repeat_interleave", "Tensor"),
    )
    for overload in (getattr(getattr(_aten, name), kind),)
)  # fmt: skip
"""Operations that make tensors whose shape may depend on values."""

AnswerFn = Callable[[Any, tuple[Any, ...], Kwargs], Any]


def has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether the shape of what comes back depends on values."""
    if func is _aten.index.Tensor:
        return any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return func in DYNAMIC_SHAPE_OPS


def is_data_dependent(error: BaseException) -> bool:
    """Whether it is what fake tensors raise where values are missing."""
    found: BaseException | None = error
    while found is not None:
        if type(found).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
            return True
        found = found.__cause__ or found.__context__
    return False


def largest_result(func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
    """The largest result that an operation may have; what is no shape stays a question without an answer."""
    if func is _aten.nonzero.default:
        return torch.empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
    if func is _aten.masked_select.default:
        return args[0].new_empty(math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)))
    if func is _aten.index.Tensor:
        return _index_all(args[0], args[1])
    if func in (_aten._unique2.default, _aten._unique.default):
        num = args[0].numel()
        return args[0].new_empty(num), *(
            torch.empty(args[0].shape if place == 0 else num, dtype=torch.int64)
            for place in range(len(func._schema.returns) - 1)
        )
    return func(*args, **kwargs)


def _index_all(tensor: Tensor, indices: list[Any]) -> Tensor:
    """As if every place of a mask were true."""
    whole: list[Any] = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            rows = torch.empty(index.numel(), dtype=torch.int64)
            whole += [rows] * index.dim()
        else:
            whole.append(index)
    out: Tensor = _aten.index.Tensor(tensor, whole)
    return out


class FixedAnswer:
    """Every question is answered alike; shapes are as large as they can be."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer
        self._num_questions = 0

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        if has_dynamic_shape(func, args):
            return largest_result(func, args, kwargs)
        self._num_questions += 1
        if self._num_questions > _MAX_QUESTIONS:
            raise RuntimeError("The model asks for values without an end.")
        if func is not _aten._local_scalar_dense.default or args[0].dtype == torch.bool:
            return self._answer
        return float(self._answer) if args[0].is_floating_point() else int(self._answer)


class RecordedAnswers:
    """The answers of a forward that was computed, by who asked what, and of which numbers."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Any, ...], list[Any]] = {}
        self._num_recorded = 0
        self._thread_counts = threading.local()
        self._mask_rows: dict[int, int] = {}
        """How many places of a mask are true, by its storage: backward looks at masks again."""
        self._fallback = FixedAnswer(True)

    def add(self, func: Any, tensor: Tensor, out: Any) -> None:
        if isinstance(out, (Tensor, tuple, list)):
            out = [(tuple(one.shape), one.dtype) for one in ([out] if isinstance(out, Tensor) else out)]
        self._num_recorded += 1
        if self._num_recorded > _MAX_QUESTIONS:
            raise RuntimeError("The model asks for values without an end.")
        self._answers.setdefault((_current_module(), func, _dtype_kind(tensor)), []).append(out)

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        asker = _current_module()
        key = (asker, func, _dtype_kind(args[0]))
        known = self._answers.get(key)
        if in_backward() and not asker:
            return self._replay_in_backward(func, args, kwargs)
        if not known:
            return self._fallback(func, args, kwargs)
        given = self._next_index(asker, key)
        answer = known[given % len(known)]
        if not isinstance(answer, list):
            return answer
        of = args[0].dtype
        made = [torch.empty(shape, dtype=of if dtype.is_floating_point else dtype) for shape, dtype in answer]
        if func is _aten.index.Tensor and (mask := _mask_of(args[1])) is not None:
            self._mask_rows[storage_key(mask.untyped_storage())] = made[0].shape[0]
        return made[0] if len(func._schema.returns) == 1 else tuple(made)

    def _next_index(self, asker: str, key: tuple[Any, ...]) -> int:
        """How often this was asked before: by a block that computes again in backward, since it began to."""
        counts, backward = vars(self._thread_counts), backward_id()
        if counts.get(asker, (None, {}))[0] != backward:
            counts[asker] = backward, {}
        asked = counts[asker][1]
        asked[key] = asked.get(key, -1) + 1
        return int(asked[key])

    def _replay_in_backward(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Of autograd's own operations."""
        out = self._fallback(func, args, kwargs)
        mask = _mask_of(args[1]) if func is _aten.index.Tensor else None
        rows = None if mask is None else self._mask_rows.get(storage_key(mask.untyped_storage()))
        return out if rows is None else out.new_empty((rows, *out.shape[1:]))


def _dtype_kind(tensor: Tensor) -> str:
    """What its numbers are: under autocast they may have fewer bits than where it was computed."""
    return "real" if tensor.is_floating_point() else "truth" if tensor.dtype == torch.bool else "whole"


def _mask_of(indices: list[Any]) -> Tensor | None:
    """The first index where it is a mask."""
    first = indices[0] if indices else None
    return first if isinstance(first, Tensor) and first.dtype in (torch.bool, torch.uint8) else None


def _current_module() -> str:
    """The module whose forward asks; "" outside of modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and _NAME_ATTRIBUTE in vars(module):
            return str(vars(module)[_NAME_ATTRIBUTE])
        frame = frame.f_back
    return ""


def name_modules(model: nn.Module) -> nn.Module:
    """The model, whose modules keep their names also as copies and in stages."""
    for name, module in model.named_modules():
        setattr(module, _NAME_ATTRIBUTE, name)
    return model


class _RecordMode(DispatchMode):
    def __init__(self, recorded: RecordedAnswers, reads: tuple[Any, ...]) -> None:
        super().__init__()
        self._recorded, self._value_ops = recorded, reads

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Kwargs | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self._value_ops or has_dynamic_shape(func, args):
            self._recorded.add(func, args[0], out)
        return out


def record_answers(
    config: RunConfig, num_devices: int, num_weights: int, reads: tuple[Any, ...], samples: Samples
) -> RecordedAnswers | None:
    """The answers of the model's first forward, of as many samples as one of the run has: the largest batch
    where batches differ, else the first samples. None where that is too much to compute, or fails.
    """
    train = config.train
    num_samples = max(1, train.global_batch // least_batch(config, num_devices))
    dtype = torch.float64 if train.precision == "fp64" else None
    recorded = RecordedAnswers()
    try:
        workload = workloads.load(config)
        indices: Sequence[int] = range(num_samples)
        if not samples.is_uniform:
            indices = samples.largest_batch(num_samples, config).indices
        inputs, targets = cast_to(read_samples(workload.train, indices), dtype or torch.float32)
        if num_weights * sum(tensor.numel() for tensor in tensor_leaves(inputs)) > MAX_WORK:
            return None
        model = name_modules(workload.build_model()).train()
        if dtype is not None:
            apply_to_tensors(model, lambda tensor: tensor.to(fp64_dtype(tensor.dtype)))
        with torch.no_grad(), _RecordMode(recorded, reads), _record_tolist(recorded):
            outputs = call_model(model, inputs)
            workload.loss.function(outputs, targets)
    except Exception:  # a person's own code; the plan has other ways
        return None
    return recorded


@contextlib.contextmanager
def _record_tolist(recorded: RecordedAnswers) -> Iterator[None]:
    """Tensor.tolist of a tensor with values is no operation; of a fake one it reads number by number."""
    replaced, original = AttributePatches(), Tensor.tolist

    def tolist(tensor: Tensor) -> Any:
        for number in original(tensor.flatten()):
            recorded.add(_aten._local_scalar_dense.default, tensor, number)
        return original(tensor)

    replaced.patch(Tensor, "tolist", tolist)
    try:
        yield
    finally:
        replaced.restore()


# Why a model cannot be followed on tensors without memory, in a sentence. rank_plan.py says it in a line.

_DATA_DEPENDENT_TEXTS = {
    "DataDependentOutputException": (
        tr_noop("The model reads the value of a tensor, so that it cannot be followed without running it."),
        tr_noop(
            "The model reads the value of a tensor, so that it cannot be followed without running it "
            "({file}, line {line})."
        ),
    ),
    "DynamicOutputShapeException": (
        tr_noop(
            "The model makes a tensor whose shape depends on values, so that it cannot be followed without "
            "running it."
        ),
        tr_noop(
            "The model makes a tensor whose shape depends on values, so that it cannot be followed without "
            "running it ({file}, line {line})."
        ),
    ),
}
"""By what torch raises where values are missing: without a place in a person's code, and with one."""


def trace_error_text(error: BaseException) -> str:
    """What kept a model from being followed, with the place in a person's code where there is one."""
    while error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    file, number = user_location(error)
    if name in _DATA_DEPENDENT_TEXTS:
        if not file:
            return phrase(_DATA_DEPENDENT_TEXTS[name][0])
        return phrase(_DATA_DEPENDENT_TEXTS[name][1], file=file, line=number)
    first = (str(error).strip().splitlines() or [""])[0][:200]
    if not file:
        return phrase(
            "The model cannot be followed without memory: {kind}: {message}", kind=name, message=first
        )
    return phrase(
        "The model cannot be followed without memory: {kind}: {message} ({file}, line {line})",
        kind=name,
        message=first,
        file=file,
        line=number,
    )
