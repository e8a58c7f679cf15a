"""Run one rank of one strategy for a few steps on fake tensors, which have shapes but allocate no memory.

    the real strategy class and the real training loop
      -> every operation creates fake tensors on "cpu"        (torch's FakeTensorMode)
      -> every storage is recorded with its device and kind   (plan_ledger.py)
      -> collectives of N ranks complete at once              (torch's "fake" process group)

Only the last step is measured: gradients, optimizer state and buckets exist by then. No code here depends on
how a strategy uses memory. Workarounds for torch are in torch_compat/; planning_mode.py emulates a GPU's
kernels. Read plan_ledger.py next.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from rankdeck.base.errors import RankdeckError
from rankdeck.base.phrases import join_sentences, phrase
from rankdeck.config import RunConfig
from rankdeck.config.gpu_models import Rates
from rankdeck.data.loader import first_batch
from rankdeck.memory.entries import DeviceBytes
from rankdeck.parallel.collectives.replica_threads import ReplicaError
from rankdeck.parallel.mesh import Backend
from rankdeck.planner.fake_values import FakeValues
from rankdeck.planner.plan_ledger import PlanLedger, StorageChange
from rankdeck.planner.planning_mode import ShapeDataset, emulate_cuda, planned_dataset, planning_mode
from rankdeck.planner.samples import UNIFORM, Samples
from rankdeck.planner.step_cost import StepRecorder, Work, WorkCounter
from rankdeck.planner.value_answers import AnswerFn, is_data_dependent
from rankdeck.run.movement import Operation
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.base import Strategy
from rankdeck.strategies.facts import PipelineFacts
from rankdeck.torch_compat.dtensors import is_dtensor
from rankdeck.torch_compat.fake_tensors import FakeTensorMode, init_fake_process_group
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.loop import Trainer
from rankdeck.training.parity_notes import loss_note

NUM_STEPS = 2


@dataclass(frozen=True)
class PassRequest:
    """Request to run one rank: `config` names the strategy; `num_devices` is the run's number of devices."""

    config: RunConfig
    num_devices: int
    rank: int = 0
    like_cuda: bool = False
    """Whether kernels, rounding and the optimizer behave as on a GPU rather than as in a rehearsal."""
    rates: Rates | None = None
    samples: Samples = UNIFORM

    @property
    def num_steps(self) -> int:
        return NUM_STEPS + self.config.strategy_spec.planning.extra_steps

    @property
    def device_indices(self) -> list[int]:
        """Indices, within the run, of the devices that the rank drives."""
        card = self.config.strategy_spec
        if card.one_device:
            return [0]
        return list(range(self.num_devices)) if card.one_process else [self.rank]

    @property
    def world_size(self) -> int:
        return 1 if self.config.strategy_spec.one_process else self.num_devices


@dataclass(frozen=True)
class PassResult:
    """Memory and work of the rank's devices in the last step, by device index in the run."""

    devices: dict[int, DeviceBytes]
    logs: dict[int, list[StorageChange]]
    work: dict[int, Work]
    operations: list[Operation]
    mesh: tuple[tuple[str, int], ...]
    """Name and size of each mesh axis; empty if one process drives all devices."""
    sent_bytes: int
    pipeline: PipelineFacts | None = None
    equal_slices: tuple[int, ...] = ()
    """For every slice of sharded weights, the index of the first slice with the same shapes; empty if nothing
    is sharded."""
    omissions: tuple[str, ...] = ()
    """Reasons why the predicted memory is only a lower bound, as sentences for display."""
    notes: tuple[str, ...] = ()
    """Reasons why the run would end with different weights than a run on a single device."""


class NotTraceableError(Exception):
    """Error for a model that was built, but whose steps cannot run on fake tensors.

    `persistent` is the memory of the weights, gradients and optimizer state, by the device's index in the
    run. `num_weights` is set if the steps failed only because fake tensors have no values.
    """

    def __init__(
        self, cause: Exception, certain: dict[int, DeviceBytes], num_weights: int | None = None
    ) -> None:
        super().__init__(str(cause))
        self.num_weights = num_weights
        self.cause = cause
        self.persistent = certain


def fake_pass(request: PassRequest, answers: AnswerFn | None = None) -> PassResult:
    """Return the memory and work that the devices of one rank need.

    Call it in a process without a process group. `answers` supplies the values that a model reads from fake
    tensors.

    Raises:
        RankdeckError: the model, the data or the strategy is refused, as it would be in a run.
        NotTraceableError: the model was built, but cannot run on fake tensors.
        Exception: building the model on fake tensors failed.
    """
    values = FakeValues(answers, has_padding=request.samples.has_padding)
    ledger = PlanLedger(
        len(request.device_indices), FakeTensorMode(), values.compute, like_cuda=request.like_cuda
    )
    workload = workloads.load_without_data(
        request.config, ShapeDataset, lambda train: planned_dataset(train, request.samples, request.config)
    )
    with (
        _process_group(request),
        planning_mode(like_cuda=request.like_cuda, on_model_built=ledger.on_model_built) as backend,
        emulate_cuda(request.config.train.precision, enabled=request.like_cuda),
    ):
        try:
            trainer = _build_trainer(request, workload, ledger, backend)
        except Exception as error:  # splitting into stages runs the model
            if isinstance(error, RankdeckError) or not is_data_dependent(error):
                raise
            raise NotTraceableError(error, {}, _count_weights(workload, ledger)) from error
        try:
            try:
                with values.track_modules():
                    work, operations = _run_steps(trainer, workload, ledger, request, values)
            except Exception as error:
                stand_in = request.config.strategy_spec.planning.stand_in(request.config.strategy.options)
                # Errors worded for users: a real run would raise them too.
                refuses = isinstance(error, RankdeckError) and not isinstance(error, ReplicaError)
                needs_values = is_data_dependent(error)
                if refuses or (stand_in is not None and not needs_values):
                    raise
                num_weights = _count_weights(workload, ledger) if needs_values else None
                certain = dict(zip(request.device_indices, _persistent_memory(trainer, ledger), strict=True))
                raise NotTraceableError(error, certain, num_weights) from error
            sent = trainer.strategy.facts.sent_bytes()
            return PassResult(
                devices=dict(zip(request.device_indices, ledger.devices(), strict=True)),
                logs=dict(zip(request.device_indices, ledger.logs, strict=True)),
                work=work,
                operations=operations,
                mesh=trainer.strategy.mesh().sizes,
                sent_bytes=0 if sent is None else sent.num_bytes,
                pipeline=trainer.strategy.facts.pipeline(),
                equal_slices=_find_equal_slices(trainer.strategy),
                omissions=_find_omissions(request, values, trainer.optimizer),
                notes=_notes(trainer, workload),
            )
        finally:
            trainer.strategy.close()


def _count_weights(workload: workloads.Workload, ledger: PlanLedger) -> int:
    """Count the weights of the whole model; a rank may hold only a shard of them."""
    with ledger.fake_mode:
        return sum(weight.numel() for weight in workload.build_model().parameters())


def _find_equal_slices(strategy: Strategy) -> tuple[int, ...]:
    """Return, for every slice of sharded weights, the index of the first slice with the same shapes.

    torch shards the first dim of every weight into slices of ceil(length / n); the last slices may be shorter
    or empty.
    """
    num_slices = strategy.mesh().size("shard")
    lengths = [length for weight in strategy.module.parameters() if (length := _sharded_length(weight))]
    # Slices are ceil(length / n) long: 9 rows over 8 ranks are 2, 2, 2, 2, 1, 0, 0, 0.
    if num_slices == 1 or not lengths:
        return ()
    shapes = []
    for index in range(num_slices):
        wholes = ((length, -(-length // num_slices)) for length in lengths)
        shapes.append(
            tuple(max(0, min(slice_length, length - index * slice_length)) for length, slice_length in wholes)
        )
    return tuple(shapes.index(shape) for shape in shapes)


def _sharded_length(weight: torch.Tensor) -> int | None:
    """Return the length of a sharded weight's first dim before sharding; None for a weight without
    placements."""
    placements = getattr(weight, "placements", None)
    if placements is None or not weight.dim():
        return None
    mesh: Any = getattr(weight, "device_mesh", None)
    length = weight.shape[0]
    for axis, placement in enumerate(placements):
        if (mesh.mesh_dim_names or ("",) * mesh.ndim)[axis] == "tensor" and placement.is_shard(0):
            # FSDP shards the part that tensor parallelism leaves to each rank.
            length //= mesh.size(axis)
    return length


def _notes(trainer: Trainer, workload: workloads.Workload) -> tuple[str, ...]:
    of_loss = loss_note(workload, trainer.strategy)
    problems = [*trainer.notes, *filter(None, [of_loss])]
    return tuple(
        join_sentences((problem.as_phrase("message"), problem.as_phrase("advice"))) for problem in problems
    )


def _find_omissions(request: PassRequest, values: FakeValues, optimizer: Optimizer) -> tuple[str, ...]:
    options = request.config.strategy.options
    by_torchs_wrapper = request.config.strategy_spec.planning.stand_in(options) is not None
    left_out = []
    if values.has_workspaces:
        left_out.append(phrase("This is a lower bound: the LSTM kernel's workspace size is unknown."))
    state_values = [value for state in optimizer.state.values() for value in state.values()]
    if any(isinstance(value, torch.Tensor) and value.is_sparse for value in state_values):
        left_out.append(
            phrase("This is a lower bound: the optimizer state for sparse gradients grows with each step.")
        )
    elif values.forgets_elements:
        left_out.append(
            phrase("This is a lower bound: the number of elements in a sparse tensor depends on the data.")
        )
    if by_torchs_wrapper and options.get("compress") not in (None, "none"):
        left_out.append(
            phrase("This is a lower bound: torch's buffers for gradient compression are not included.")
        )
    return tuple(left_out)


def _persistent_memory(trainer: Trainer, ledger: PlanLedger) -> list[DeviceBytes]:
    """Return the memory that is live on each device after an optimizer step with zero gradients."""
    for group in trainer.optimizer.param_groups:
        for weight in group["params"]:
            weight.grad = None
    with ledger.fake_mode, ledger.tracking():
        for weight in [weight for group in trainer.optimizer.param_groups for weight in group["params"]]:
            weight.grad = torch.zeros_like(weight)
        trainer.optimizer.step()
    return ledger.devices()


@contextlib.contextmanager
def _process_group(request: PassRequest) -> Iterator[None]:
    """Enter a context with a fake process group if the strategy uses ranks; its collectives complete at
    once."""
    if request.config.strategy_spec.one_process:
        yield
        return
    init_fake_process_group(request.rank, request.world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _build_trainer(
    request: PassRequest, workload: workloads.Workload, ledger: PlanLedger, backend: Backend
) -> Trainer:
    with ledger.fake_mode:
        trainer = assemble(
            workload,
            rank=request.rank,
            world_size=request.world_size,
            devices=[torch.device("cpu")] * len(request.device_indices),
            device_indices=request.device_indices,
            writer=EventWriter(Path(os.devnull)),
            ledger=ledger,
            backend=backend,
        )
    # Strategies that fix the first batch's sizes must refuse here, as they would in the run.
    if request.samples.is_varied:
        trainer.strategy.require_varying_sizes()
    if request.like_cuda:
        _use_foreach_step(trainer.optimizer)
        ledger.counters_on_device = any(
            group.get("fused") or group.get("capturable") for group in trainer.optimizer.param_groups
        )
    return trainer


def _use_foreach_step(optimizer: Optimizer) -> None:
    """Set `foreach` to torch's default for optimizers on a GPU: True, except for DTensors."""
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = not any(is_dtensor(weight) for weight in group["params"])


def _run_steps(
    trainer: Trainer,
    workload: workloads.Workload,
    ledger: PlanLedger,
    request: PassRequest,
    values: FakeValues,
) -> tuple[dict[int, Work], list[Operation]]:
    batches = _batches(trainer.strategy, workload)
    num_steps = request.num_steps + trainer.strategy.num_fill_steps
    with ledger.fake_mode:
        # Earlier steps only create gradients, optimizer state and buckets; their work is not counted.
        for step in range(1, num_steps):
            trainer.step(step, batches, is_tracked=True)
        work = WorkCounter(ledger, request.rates)
        recorder = values.recorder = StepRecorder(work, request.device_indices)
        ledger.on_transfer = recorder.record_copy
        spans = trainer.strategy.spans
        # Spans of the last step are recorded, because they divide its operations into phases.
        spans.start_step(num_steps, record=True)
        trainer.step(num_steps, batches, is_tracked=True)
        spans.end_step()
        ledger.on_transfer = values.recorder = None
    return dict(zip(request.device_indices, work.by_device, strict=True)), recorder.operations(
        spans.pop_spans()
    )


def _batches(strategy: Strategy, workload: workloads.Workload) -> Iterator[Any]:
    train = workload.config.train
    size = train.global_batch // train.accumulate // strategy.data_shard()[1]
    while True:
        yield first_batch(workload.train, size)
