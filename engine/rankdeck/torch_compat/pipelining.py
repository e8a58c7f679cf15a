"""torch's pipeline stages and schedules, beyond their documented behaviour.

Source: torch.distributed.pipelining.stage and .schedules.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed import P2POp, get_rank
from torch.distributed.pipelining import PipelineStage, schedules

from rankdeck.torch_compat.fake_tensors import FakeTensor
from rankdeck.torch_compat.private_api import PrivateApi

_STAGE_PATH = "torch.distributed.pipelining:PipelineStage"
_SCHEDULES_PATH = "torch.distributed.pipelining.schedules"
_WRONG_STEPS = "pipelines cannot train, or report wrong figures"
PRIVATE_APIS = (
    PrivateApi(f"{_STAGE_PATH}.forward_one_chunk", _WRONG_STEPS, parameters=("self", "fwd_chunk_id", "args")),
    PrivateApi(
        f"{_STAGE_PATH}.backward_one_chunk",
        _WRONG_STEPS,
        parameters=("self", "bwd_chunk_id", "loss", "full_backward", "last_backward"),
    ),
    PrivateApi(
        f"{_STAGE_PATH}.backward_weight_one_chunk",
        _WRONG_STEPS,
        parameters=("self", "bwd_chunk_id", "last_backward"),
    ),
    PrivateApi(f"{_STAGE_PATH}.get_fwd_send_ops", _WRONG_STEPS, parameters=("self", "fwd_chunk_id")),
    PrivateApi(f"{_STAGE_PATH}.get_bwd_send_ops", _WRONG_STEPS, parameters=("self", "bwd_chunk_id")),
    PrivateApi(f"{_SCHEDULES_PATH}:get_schedule_class", _WRONG_STEPS, parameters=("schedule_name",)),
    PrivateApi(f"{_SCHEDULES_PATH}:logger", "errors in a stage print torch's whole schedule"),
    PrivateApi("torch:Tensor._is_view", "schedules that split the backward fail if a stage outputs a view"),
    PrivateApi(
        "torch.distributed.pipelining.stage:_RecvInfo", "receive buffers of pipelines count as activations"
    ),
)


_PLAIN_TENSOR = torch.empty(0, device="meta")


class Stage(PipelineStage):
    """torch's PipelineStage, with fixes that only some versions of torch need."""

    def _get_init_p2p_neighbors_ops(self) -> list[P2POp]:
        """Return a stage's first messages, except messages from a rank to itself.

        torch 2.11 includes such messages, and gloo waits forever for a message that a rank sends to itself.
        """
        ops: list[P2POp] = super()._get_init_p2p_neighbors_ops()
        return [op for op in ops if op.group_peer != get_rank(op.group)]

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        """Return the sends of gradients to the previous stage, with gradients made contiguous: a split
        backward pass may produce gradients that are not."""
        ops: list[P2POp] = super().get_bwd_send_ops(bwd_chunk_id)
        for op in ops:
            op.tensor = op.tensor.contiguous()
        return ops

    def _output_slot_is_releasable(self, output: Any) -> tuple[bool, str]:
        """Return torch's decision whether a sent output can be freed; torch calls this from version 2.15 on.

        torch frees plain tensors only; a plan's fake tensors count as plain tensors.
        """
        torchs: Any = super()
        # torch keeps subclasses, and fake tensors that were kept made plans of pipelines up to 4 % too high.
        plain = _PLAIN_TENSOR if isinstance(output, FakeTensor) else output
        result: tuple[bool, str] = torchs._output_slot_is_releasable(plain)
        return result


def clone_view(tensor: Tensor) -> Tensor:
    """Clone an output if it is a view: a split backward pass detaches outputs in place, which views do not
    allow."""
    return tensor.clone() if tensor._is_view() else tensor


def receive_buffers(stage: PipelineStage) -> list[Tensor]:
    """Return the buffers into which a stage receives activations and gradients, for every microbatch."""
    infos = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
    buffers = [getattr(info, "buffer", None) for group in infos for info in group]
    return [buffer for buffer in buffers if buffer is not None]


@contextlib.contextmanager
def unwrap_stage_errors() -> Iterator[None]:
    """Raise a stage's own error, not torch's wrapper, and do not log the whole schedule to stderr."""
    printed = logging.getLogger(schedules.__name__)
    level = printed.level
    # torch logs the whole schedule where a stage fails.
    printed.setLevel(logging.CRITICAL)
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None:
            raise error.__cause__ from None
        raise
    finally:
        printed.setLevel(level)
