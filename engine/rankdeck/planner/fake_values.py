"""Supply values for fake tensors, which have none, to code that reads values.

Read torch_compat/fake_tensors.py, shape_cache.py and sparse.py first, fake_pass.py next.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankdeck.planner.value_answers import AnswerFn, has_dynamic_shape
from rankdeck.torch_compat.collectives import is_wait
from rankdeck.torch_compat.dispatch import Kwargs, in_backward, inplace_result, is_inplace_write
from rankdeck.torch_compat.shape_cache import KnownOutputs, ShapeCache
from rankdeck.torch_compat.sparse import loses_num_elements, sparse_result

if TYPE_CHECKING:
    from rankdeck.planner.step_cost import StepRecorder

MASKING_MODULE = "transformers.masking_utils"
_LOCAL_SCALAR = torch.ops.aten._local_scalar_dense.default
VALUE_OPS = (_LOCAL_SCALAR, torch.ops.aten.allclose.default, torch.ops.aten.equal.default)
_SCALER_MODULE = "torch.amp.grad_scaler"
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
# Older versions of torch do not have it.
_GROUPED_MM = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)


KNOWN_RESULTS: KnownOutputs = {}
"""Output shapes that torch computed in passes of this process and of its children (collected by pool.py)."""


class FakeValues:
    """Executor of operations on fake tensors. Code outside the model that reads a fake tensor's value gets 1.

    The training loop and torch read losses, norms and flags reduced across ranks, none of which affects
    memory; any two tensors compare as equal. What a model computes may depend on a value that it reads. Such
    a read is answered by `answers` (value_answers.py); without `answers`, it raises the normal error of fake
    tensors. If Hugging Face's masking code checks whether a batch has no padding, the answer follows from
    `has_padding`. The loss scaler, which checks whether gradients are infinite, gets 0: otherwise no
    optimizer step would ever run.
    """

    def __init__(self, answers: AnswerFn | None = None, *, has_padding: bool = False) -> None:
        self._answers = answers
        self._has_padding = has_padding
        self.module_depth = 0
        self.recorder: StepRecorder | None = None
        self.has_workspaces = False
        """Whether a kernel has run that keeps a workspace for the backward pass; only the kernel knows its
        size."""
        self.forgets_elements = False
        """Whether a sparse tensor was created whose number of elements depends on values and is therefore
        unknown."""
        self._only_writes: dict[Any, bool] = {}
        self._memo = ShapeCache(KNOWN_RESULTS)

    @contextlib.contextmanager
    def track_modules(self) -> Iterator[None]:
        """Enter a context that tracks whether a module's forward method is running."""

        def enter(*_: Any) -> None:
            self.module_depth += 1

        def leave(*_: Any) -> None:
            self.module_depth -= 1

        handles = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _is_model_reading(self) -> bool:
        """Check whether the code that is reading a value belongs to the model.

        Checkpointed blocks recompute their forward pass during the backward pass, outside the module's own
        call.
        """
        return bool(self.module_depth) or (self._answers is not None and in_backward())

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
        """Return the result of the operation `func` on fake tensors."""
        if func in VALUE_OPS and _is_read_by(MASKING_MODULE):
            return not self._has_padding
        if func in VALUE_OPS and not self._is_model_reading():
            is_number = func is _LOCAL_SCALAR and args[0].is_floating_point()
            # The loss scaler reads found_inf: 0 lets it take the step. All other reads get 1.
            return float(not _is_read_by(_SCALER_MODULE)) if is_number else True
        if self._answers is not None and (func in VALUE_OPS or has_dynamic_shape(func, args)):
            return self._answers(func, args, kwargs or {})
        if func is _GROUPED_MM:
            return _grouped_mm(*args, **(kwargs or {}))
        if is_wait(func):
            return args[0]  # as at run time; on shapes torch would return a new tensor
        if func is _LSTM and torch.is_grad_enabled():
            self.has_workspaces = True
        out = sparse_result(func, args, kwargs)
        if out is None:
            writes = self._only_writes.get(func)
            if writes is None:
                writes = self._only_writes[func] = is_inplace_write(func)
            out = inplace_result(func, args) if writes else self._memo(func, args, kwargs)
            self.forgets_elements |= loses_num_elements(func, out)
        if self.recorder is not None:
            self.recorder.add(func, args, kwargs, out)
        return out


def _grouped_mm(
    left: Tensor,
    right: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Return an empty tensor with the shape and dtype of a grouped matmul's result. torch itself infers the
    shape only for bf16 inputs, although it does not depend on the dtype."""
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if left.dim() == right.dim() == 3:
        shape = (left.shape[0], *shape)
    elif left.dim() == right.dim() == 2 and offs is not None:
        shape = (offs.shape[0], *shape)
    return left.new_empty(shape, dtype=out_dtype or left.dtype)


def _is_read_by(reader: str) -> bool:
    """Check whether the read in progress comes from the Python module `reader` itself (Hugging Face's masking
    code or the loss scaler)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == reader:
            return True
        between = name == "torch" or name.startswith(("torch.", "rankdeck."))
        if not between or name.startswith("torch.optim"):  # an optimizer's reads are not its caller's
            return False
        frame = frame.f_back
    return False
