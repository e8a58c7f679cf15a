"""A rank's part of a pipeline, built: the whole model with the run's seed on the host, cut, and only the
rank's own stages kept and moved to its device. Every rank builds the same model, so that its weights are
those of a single device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.config.catalog import CutOptions
from rankdeck.memory.null_ledger import AnyLedger
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.parallel.pipelining.cutting import cut_model, move_in_place


def build_stages(
    model_fn: Callable[[], nn.Module],
    rank_of: Sequence[int],
    *,
    options: CutOptions,
    inputs: Callable[[], Any],
    num_samples: int,
    device: torch.device,
    precision: str,
    ledger: AnyLedger,
    group: dist.ProcessGroup | None = None,
    pipelines: Sequence[Sequence[int]] | None = None,
) -> StageCommunication:
    """The rank's stages, and the way to the others'. `inputs` gives a microbatch of `num_samples`.

    All ranks of the run call this together; `group` and `pipelines` as in StageCommunication.

    Raises: ModelError, ConfigError.
    """
    with ledger.paused():
        model = model_fn().train()
        if precision == "fp64":
            model = model.double()
        with _probing_autocast(precision):
            cut = cut_model(
                model,
                len(rank_of),
                options,
                inputs(),
                num_samples,
                device=device,
                agree=_agree,
            )
        stages = StageCommunication(cut, rank_of, device, group, pipelines)
        cut.keep_only(stages.own)
        own = cut.held_by(stages.own)
        move_in_place(own, device)
    ledger.adopt(_that_are(own, is_weight=True), 0, "parameters")
    ledger.adopt(_that_are(own, is_weight=False), 0, "buffers")
    return stages


def _that_are(tensors: Sequence[Tensor], *, is_weight: bool) -> list[Tensor]:
    return [tensor for tensor in tensors if isinstance(tensor, nn.Parameter) == is_weight]


def _probing_autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Shapes are found on the host, so the host's autocast tells dtypes; stages then keep to them.

    Its cache would hand the cast weights of a run on shapes to the next one, which is on values.
    """
    if precision == "bf16":
        return torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
    return contextlib.nullcontext()


def _agree(costs: list[float]) -> list[float]:
    """Rank 0's measured times for all ranks of the run: every pipeline of a mesh must cut alike."""
    shared: list[Any] = [costs]
    dist.broadcast_object_list(shared, src=0)
    agreed: list[float] = shared[0]
    return agreed
