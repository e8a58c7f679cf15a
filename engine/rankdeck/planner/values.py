"""Values of fake tensors, which have none: what is given to whoever reads one.

Read torch_compat/fake_tensors.py, shape_memo.py and sparse.py before, fake_pass.py next.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rankdeck.planner.questions import Answers, asks_for_shape
from rankdeck.torch_compat.collectives import is_wait
from rankdeck.torch_compat.dispatch import Kwargs, in_backward, only_writes, written
from rankdeck.torch_compat.shape_memo import Known, ShapeMemo
from rankdeck.torch_compat.sparse import forgets_elements, sparse_result

if TYPE_CHECKING:
    from rankdeck.planner.work import StepRecorder

MASKING = "transformers.masking_utils"
_LOCAL_VALUE = torch.ops.aten._local_scalar_dense.default
READS = (_LOCAL_VALUE, torch.ops.aten.allclose.default, torch.ops.aten.equal.default)
_SCALER = "torch.amp.grad_scaler"
_LSTM = torch.ops.aten.mkldnn_rnn_layer.default
_GROUPED = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)


ANSWERED: Known = {}
"""What torch has answered to passes of this process and, by pool.py, to those of its children."""


class Values:
    """Answers 1 to whoever asks a fake tensor for its value, except inside the model, and has it recorded.

    The loop and torch's own machinery read losses, norms and votes, none of which decides over memory; two
    tensors are equal. A model that reads a value may compute something else then, so it gets one of `answers`
    (questions.py), or without them the error that fake tensors raise, unless it asks whether a batch has no
    padding, which `has_padding` says. The loss scaler, which asks whether gradients are infinite, gets 0:
    else no step is ever taken.
    """

    def __init__(self, answers: Answers | None = None, *, has_padding: bool = False) -> None:
        self._answers = answers
        self._has_padding = has_padding
        self.modules_deep = 0
        self.recorder: StepRecorder | None = None
        self.has_workspaces = False
        """Whether a kernel ran that keeps a workspace, for backward, whose size it alone knows."""
        self.forgets_elements = False
        """Whether a sparse tensor was made of which values say how many elements it has."""
        self._only_writes: dict[Any, bool] = {}
        self._memo = ShapeMemo(ANSWERED)

    @contextlib.contextmanager
    def strict_inside_modules(self) -> Iterator[None]:
        """A context in which it is known whether a module's forward runs."""

        def enter(*_: Any) -> None:
            self.modules_deep += 1

        def leave(*_: Any) -> None:
            self.modules_deep -= 1

        handles = [
            nn.modules.module.register_module_forward_pre_hook(enter),
            nn.modules.module.register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _model_asks(self) -> bool:
        """Blocks that compute their forward again do so in backward, outside of the module's own call."""
        return bool(self.modules_deep) or (self._answers is not None and in_backward())

    def of(self, func: Any, args: tuple[Any, ...], kwargs: Kwargs | None) -> Any:
        """What an operation returns."""
        if func in READS and _read_by(MASKING):
            return not self._has_padding
        if func in READS and not self._model_asks():
            is_number = func is _LOCAL_VALUE and args[0].is_floating_point()
            return float(not _read_by(_SCALER)) if is_number else True
        if self._answers is not None and (func in READS or asks_for_shape(func, args)):
            return self._answers(func, args, kwargs or {})
        if func is _GROUPED:
            return _grouped(*args, **(kwargs or {}))
        if is_wait(func):
            return args[0]  # as it does; on shapes alone torch makes another tensor of it
        if func is _LSTM and torch.is_grad_enabled():
            self.has_workspaces = True
        out = sparse_result(func, args, kwargs)
        if out is None:
            writes = self._only_writes.get(func)
            if writes is None:
                writes = self._only_writes[func] = only_writes(func)
            out = written(func, args) if writes else self._memo(func, args, kwargs)
            self.forgets_elements |= forgets_elements(func, out)
        if self.recorder is not None:
            self.recorder.add(func, args, kwargs, out)
        return out


def _grouped(
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


def _read_by(reader: str) -> bool:
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
