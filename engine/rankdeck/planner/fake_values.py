"""Values of fake tensors, which have none: what is given to whoever reads one.

Read torch_compat/fake_tensors.py, shape_cache.py and sparse.py before, fake_pass.py next.
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
_GROUPED_MM = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)


KNOWN_RESULTS: KnownOutputs = {}
"""What torch has answered to passes of this process and, by pool.py, to those of its children."""


class FakeValues:
    """Answers 1 to whoever asks a fake tensor for its value, except inside the model, and has it recorded.

    The loop and torch's own machinery read losses, norms and votes, none of which decides over memory; two
    tensors are equal. A model that reads a value may compute something else then, so it gets one of `answers`
    (value_answers.py), or without them the error that fake tensors raise, unless it asks whether a batch has
    no padding, which `has_padding` says. The loss scaler, which asks whether gradients are infinite, gets 0:
    else no step is ever taken.
    """

    def __init__(self, answers: AnswerFn | None = None, *, has_padding: bool = False) -> None:
        self._answers = answers
        self._has_padding = has_padding
        self.module_depth = 0
        self.recorder: StepRecorder | None = None
        self.has_workspaces = False
        """Whether a kernel ran that keeps a workspace, for backward, whose size it alone knows."""
        self.forgets_elements = False
        """Whether a sparse tensor was made of which values say how many elements it has."""
        self._only_writes: dict[Any, bool] = {}
        self._memo = ShapeCache(KNOWN_RESULTS)

    @contextlib.contextmanager
    def track_modules(self) -> Iterator[None]:
        """A context in which it is known whether a module's forward runs."""

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
        """Blocks that compute their forward again do so in backward, outside of the module's own call."""
        return bool(self.module_depth) or (self._answers is not None and in_backward())

    def compute(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
        """What an operation returns."""
        if func in VALUE_OPS and _is_read_by(MASKING_MODULE):
            return not self._has_padding
        if func in VALUE_OPS and not self._is_model_reading():
            is_number = func is _LOCAL_SCALAR and args[0].is_floating_point()
            return float(not _is_read_by(_SCALER_MODULE)) if is_number else True
        if self._answers is not None and (func in VALUE_OPS or has_dynamic_shape(func, args)):
            return self._answers(func, args, kwargs or {})
        if func is _GROUPED_MM:
            return _grouped_mm(*args, **(kwargs or {}))
        if is_wait(func):
            return args[0]  # as it does; on shapes alone torch makes another tensor of it
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
    """Products of experts, whose shape is known without values; torch's own knows it for bf16 alone."""
    shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    if left.dim() == right.dim() == 3:
        shape = (left.shape[0], *shape)
    elif left.dim() == right.dim() == 2 and offs is not None:
        shape = (offs.shape[0], *shape)
    return left.new_empty(shape, dtype=out_dtype or left.dtype)


def _is_read_by(reader: str) -> bool:
    """Whether a module reads the value itself, like Hugging Face's masks or the loss scaler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == reader:
            return True
        between = name == "torch" or name.startswith(("torch.", "rankdeck."))
        if not between or name.startswith("torch.optim"):  # which the scaler calls, and reads for itself
            return False
        frame = frame.f_back
    return False
