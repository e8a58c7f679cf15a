"""Supply the tensor values that a model reads (to choose a branch, or to count an expert's rows), because
fake tensors have no values.

The first of the following kinds of answers that works for the model is used. Each makes the plan a bound:

    largest shapes    upper bound: tensors whose shape depends on values are as large as possible (every token
                      to every expert)
    recorded values   lower bound: if the model is small, its forward pass is run on the first samples
    fixed answers     lower bound: the larger of two plans, one in which every value read is True (or 1), one
                      in which it is False (or 0)

Each module receives its recorded values in the recorded order, however layers and batches are split. Read
fake_values.py first; rank_plan.py uses the answers.
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
"""Maximum product of the number of weights and the number of input elements; a forward pass of that size
takes a few seconds."""
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
"""Operations whose output shape may depend on values."""

AnswerFn = Callable[[Any, tuple[Any, ...], Kwargs], Any]


def has_dynamic_shape(func: Any, args: tuple[Any, ...]) -> bool:
    """Check whether the shape of an operation's output depends on the values of tensors."""
    if func is _aten.index.Tensor:
        return any(
            isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return func in DYNAMIC_SHAPE_OPS


def is_data_dependent(error: BaseException) -> bool:
    """Check whether fake tensors raised the error because values are missing."""
    current: BaseException | None = error
    while current is not None:
        if type(current).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
            return True
        current = current.__cause__ or current.__context__
    return False


def largest_result(func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
    """Return an operation's largest possible result; operations that read one value raise an error."""
    if func is _aten.nonzero.default:
        return torch.empty((args[0].numel(), args[0].dim()), dtype=torch.int64)
    if func is _aten.masked_select.default:
        return args[0].new_empty(math.prod(torch.broadcast_shapes(args[0].shape, args[1].shape)))
    if func is _aten.index.Tensor:
        return _index_all(args[0], args[1])
    if func in (_aten._unique2.default, _aten._unique.default):
        num = args[0].numel()
        return args[0].new_empty(num), *(
            torch.empty(args[0].shape if position == 0 else num, dtype=torch.int64)
            for position in range(len(func._schema.returns) - 1)
        )
    return func(*args, **kwargs)


def _index_all(tensor: Tensor, indices: list[Any]) -> Tensor:
    """Index `tensor` as if every element of a mask in `indices` were true."""
    full_indices: list[Any] = []
    for index in indices:
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            rows = torch.empty(index.numel(), dtype=torch.int64)
            full_indices += [rows] * index.dim()
        else:
            full_indices.append(index)
    out: Tensor = _aten.index.Tensor(tensor, full_indices)
    return out


class FixedAnswer:
    """Function that returns the same answer for every value that is read, and makes dynamic shapes as large
    as possible."""

    def __init__(self, answer: bool) -> None:
        self._answer = answer
        self._num_questions = 0

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        if has_dynamic_shape(func, args):
            return largest_result(func, args, kwargs)
        self._num_questions += 1
        if self._num_questions > _MAX_QUESTIONS:
            raise RuntimeError(f"The model reads more than {_MAX_QUESTIONS} tensor values.")
        if func is not _aten._local_scalar_dense.default or args[0].dtype == torch.bool:
            return self._answer
        return float(self._answer) if args[0].is_floating_point() else int(self._answer)


class RecordedAnswers:
    """Values that a model read in a forward pass on real tensors, by module, operation and kind of dtype."""

    def __init__(self) -> None:
        self._answers: dict[tuple[Any, ...], list[Any]] = {}
        self._num_recorded = 0
        self._thread_counts = threading.local()
        self._mask_rows: dict[int, int] = {}
        """Number of true elements of each mask, by the mask's storage key; reused in the backward pass."""
        self._fallback = FixedAnswer(True)

    def add(self, func: Any, tensor: Tensor, out: Any) -> None:
        if isinstance(out, (Tensor, tuple, list)):
            out = [
                (tuple(output.shape), output.dtype) for output in ([out] if isinstance(out, Tensor) else out)
            ]
        self._num_recorded += 1
        if self._num_recorded > _MAX_QUESTIONS:
            raise RuntimeError(f"The model reads more than {_MAX_QUESTIONS} tensor values.")
        self._answers.setdefault((_current_module(), func, _dtype_kind(tensor)), []).append(out)

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        asker = _current_module()
        key = (asker, func, _dtype_kind(args[0]))
        answers = self._answers.get(key)
        # Operations of autograd itself run outside of any module.
        if in_backward() and not asker:
            return self._replay_in_backward(func, args, kwargs)
        if not answers:
            return self._fallback(func, args, kwargs)
        index = self._next_index(asker, key)
        answer = answers[index % len(answers)]
        if not isinstance(answer, list):
            return answer
        of = args[0].dtype
        tensors = [
            torch.empty(shape, dtype=of if dtype.is_floating_point else dtype) for shape, dtype in answer
        ]
        if func is _aten.index.Tensor and (mask := _mask_of(args[1])) is not None:
            self._mask_rows[storage_key(mask.untyped_storage())] = tensors[0].shape[0]
        return tensors[0] if len(func._schema.returns) == 1 else tuple(tensors)

    def _next_index(self, asker: str, key: tuple[Any, ...]) -> int:
        """Return the number of earlier reads by the module `asker` with this `key`.

        The count restarts from zero when the backward pass recomputes a block.
        """
        counts, backward = vars(self._thread_counts), backward_id()
        # A recomputed forward pass reads the same values in order, so each backward pass restarts the count.
        if counts.get(asker, (None, {}))[0] != backward:
            counts[asker] = backward, {}
        num_reads = counts[asker][1]
        num_reads[key] = num_reads.get(key, -1) + 1
        return int(num_reads[key])

    def _replay_in_backward(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs) -> Any:
        """Return the result of an operation that autograd itself runs in the backward pass."""
        out = self._fallback(func, args, kwargs)
        mask = _mask_of(args[1]) if func is _aten.index.Tensor else None
        rows = None if mask is None else self._mask_rows.get(storage_key(mask.untyped_storage()))
        return out if rows is None else out.new_empty((rows, *out.shape[1:]))


def _dtype_kind(tensor: Tensor) -> str:
    """Return the kind of the tensor's dtype ("real", "truth" or "whole") without its width, which autocast
    may change after the recording."""
    return "real" if tensor.is_floating_point() else "truth" if tensor.dtype == torch.bool else "whole"


def _mask_of(indices: list[Any]) -> Tensor | None:
    """Return the first index if it is a mask, else None."""
    first = indices[0] if indices else None
    return first if isinstance(first, Tensor) and first.dtype in (torch.bool, torch.uint8) else None


def _current_module() -> str:
    """Return the name of the module whose forward method is running; "" outside of modules."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and _NAME_ATTRIBUTE in vars(module):
            return str(vars(module)[_NAME_ATTRIBUTE])
        frame = frame.f_back
    return ""


def name_modules(model: nn.Module) -> nn.Module:
    """Store each module's name on the module, so that copies and pipeline stages keep it, and return the
    model."""
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
    """Record the values that the model reads in its first forward pass; `reads` lists the operations that
    read a value. Return None if the pass is too large to compute, or fails.

    The pass gets as many samples as each forward pass of the run: those of the run's largest batch if batches
    vary in size, otherwise the first samples.
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
    except Exception:  # user code may raise anything; FixedAnswer is the fallback
        return None
    return recorded


@contextlib.contextmanager
def _record_tolist(recorded: RecordedAnswers) -> Iterator[None]:
    """Enter a context that records calls to `Tensor.tolist`, which dispatch no operation on a real tensor.

    On a fake tensor, `tolist` reads one number at a time.
    """
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


# Why a model cannot be traced on fake tensors, in one sentence for its plan line (rank_plan.py).

_DATA_DEPENDENT_TEXTS = {
    "DataDependentOutputException": (
        tr_noop("The model reads a tensor's value, so it cannot be traced without being run."),
        tr_noop(
            "The model reads a tensor's value, so it cannot be traced without being run "
            "({file}, line {line})."
        ),
    ),
    "DynamicOutputShapeException": (
        tr_noop(
            "The model creates a tensor whose shape depends on values, so it cannot be traced "
            "without being run."
        ),
        tr_noop(
            "The model creates a tensor whose shape depends on values, so it cannot be traced "
            "without being run ({file}, line {line})."
        ),
    ),
}
"""Texts for each exception that torch raises when a value is missing: without and with a location in user
code."""


def trace_error_text(error: BaseException) -> str:
    """Return why a model could not be traced, with the location in user code if known."""
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
            "The model cannot be traced on fake tensors: {kind}: {message}", kind=name, message=first
        )
    return phrase(
        "The model cannot be traced on fake tensors: {kind}: {message} ({file}, line {line})",
        kind=name,
        message=first,
        file=file,
        line=number,
    )
