"""The ranks of a persistent set: each reads a configuration per line, trains it with the others, answers.

    python rank_main.py STORE_FILE SOCKET...

There is one socket, by its number, for each rank.

A request is {"toml", "out", "events", "always", "follow", "without_sync"}; rank 0 leaves the final weights at
`out`, `always` follows every step with the ledger and `follow` those that it lists, `without_sync` leaves the
sync out, as a negative control. Or it is {"call": "module:function", "arguments"}. The answer is {"result"}
or {"error"}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from rankdeck.base.garbage import freeze_new_objects
from rankdeck.checkpoint.weights import save_weights
from rankdeck.config import from_text
from rankdeck.config.catalog import STRATEGIES
from rankdeck.parallel.collectives.grad_sync import GradientSync
from rankdeck.parallel.pipelining.communication import StageCommunication
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.ddp import Ddp
from rankdeck.strategies.pipeline import PipelineParallel
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.sampling_budget import SamplingBudget


def train_once(request: dict[str, object], rank: int, world_size: int) -> None:
    """One run of this rank, in this process."""
    config = from_text(str(request["toml"]), folder=Path.cwd())
    device_indices = [rank] if world_size > 1 else list(range(config.selection.count or 1))
    if config.strategy_spec.one_device:
        device_indices = device_indices[:1]
    workload = workloads.load(config)
    if not config.train.evaluate_every and "events" not in request:
        workload.heldout = None  # nobody reads what would be said of them
    with tempfile.TemporaryDirectory() as folder:
        writer = EventWriter(Path(str(request.get("events") or folder)) / f"rank-{rank}.0.jsonl")
        trainer = assemble(
            workload,
            rank=rank,
            world_size=world_size,
            devices=[torch.device("cpu")] * len(device_indices),
            device_indices=device_indices,
            writer=writer,
            sampling=_sampling_budget(request),
        )
        with _without_sync() if request.get("without_sync") else contextlib.nullcontext():
            trainer.run()
        weights = trainer.strategy.weights()
        if rank == 0:
            save_weights(Path(str(request["out"])), weights, {})
        trainer.strategy.close()
        writer.close()


def _sampling_budget(request: dict[str, object]) -> SamplingBudget:
    """As in a run where events are read; else a followed step among others has to leave the same weights."""
    if "follow" in request or ("events" not in request and not request.get("always")):
        return _ListedSteps(request.get("follow", [2]))
    return SamplingBudget(always=bool(request.get("always")))


class _ListedSteps(SamplingBudget):
    """Follows the steps that a test lists."""

    def __init__(self, steps: Any) -> None:
        super().__init__()
        self._steps = steps

    def should_track(self, step: int) -> bool:
        return step in self._steps


_FORWARD_BACKWARD: Callable[..., object] = PipelineParallel.forward_backward


def _without_first_stage(self: PipelineParallel, batch: object, scale: float, **last: bool) -> object:
    """A pipeline whose first stage does without its gradients."""
    sums = _FORWARD_BACKWARD(self, batch, scale, **last)
    if self.mesh().rank == 0:
        for parameter in self.cut.stages[0].parameters():
            parameter.grad = None
    return sums


@contextlib.contextmanager
def own_slices() -> Iterator[None]:
    """Under FSDP each rank keeps its slice of its own gradients, where the sums should be scattered."""
    # The function that FSDP calls; torch 2.11 knows it by its older name only.
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"

    def own_slice(output: Tensor, group: dist.ProcessGroup, **options: Any) -> None:
        output.copy_(options["input"].chunk(group.size())[group.rank()])

    with mock.patch.object(dist, name, own_slice):
        yield


@contextlib.contextmanager
def _without_sync() -> Iterator[None]:
    """Each rank keeps the gradients of its own share, under every strategy that syncs here."""
    forward_backward = Ddp.forward_backward

    def local(self: Ddp, batch: object, scale: float, *, last: bool) -> object:
        return forward_backward(self, batch, scale, last=False)  # type: ignore[arg-type]

    with (
        mock.patch.object(Ddp, "forward_backward", local),
        own_slices(),
        mock.patch.object(GradientSync, "sync", lambda self, gradients: None),
        mock.patch.object(PipelineParallel, "forward_backward", _without_first_stage),
        mock.patch.object(StageCommunication, "sum_tied_gradients", lambda self: None),
    ):
        yield


@contextlib.contextmanager
def _destroy_new_groups() -> Iterator[None]:
    """Process groups that are made inside end with it: a rank here outlives its run, and each group keeps a
    thread that wakes up a hundred times a second. Those of meshes are kept, as equal meshes share them.
    """
    groups: list[dist.ProcessGroup] = []
    new_group = dist.new_group

    def recorded(*args: Any, **named: Any) -> dist.ProcessGroup:
        groups.append(new_group(*args, **named))
        return groups[-1]

    with mock.patch.object(dist, "new_group", recorded):
        yield
    for group in groups:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def answer_request(request: dict[str, Any], rank: int, world_size: int) -> Any:
    if "call" not in request:
        return train_once(request, rank, world_size)
    module, _, name = request["call"].partition(":")
    return getattr(importlib.import_module(module), name)(**request["arguments"])


def serve(rank: int, world_size: int, store: str, requests: TextIO) -> None:
    """One rank, until nobody asks any more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    print(json.dumps({"result": None}), file=requests, flush=True)
    for line in requests:
        try:
            with _destroy_new_groups():
                answer = {"result": answer_request(json.loads(line), rank, world_size)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=requests, flush=True)


def main() -> None:
    """Fork a rank for each socket: what they all import is imported once."""
    store, numbers = sys.argv[1], [int(number) for number in sys.argv[2:]]
    with freeze_new_objects():
        for card in STRATEGIES.values():
            card.load()
    for rank, number in enumerate(numbers):
        if os.fork() == 0:
            for other in numbers:
                if other != number:
                    os.close(other)
            try:
                with socket.socket(fileno=number) as connection, connection.makefile("rw") as requests:
                    serve(rank, len(numbers), store, requests)
            except BrokenPipeError:
                pass  # who asked is gone
            finally:
                os._exit(0)
    for number in numbers:
        os.close(number)
    for _ in numbers:
        os.wait()


if __name__ == "__main__":
    main()
