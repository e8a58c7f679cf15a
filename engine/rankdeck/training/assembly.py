"""Build a rank's strategy, optimizer and trainer from its workload and devices.

Read worker.py first, verify/ for the check before the first step, loop.py next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rankdeck import events
from rankdeck.base.errors import MachineError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.data.loader import first_batch
from rankdeck.memory.ledger import AnyLedger, Ledger, NullLedger
from rankdeck.parallel.mesh import Backend
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.profiling.simulated_pace import make_pace
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.run_dir import EventWriter
from rankdeck.strategies.base import Setup, Strategy
from rankdeck.training.batches import check_last_step
from rankdeck.training.loop import Trainer
from rankdeck.training.parity_notes import ModelTraits, find_parity_notes, model_traits
from rankdeck.training.preflight_checks import check_gradient_hooks, check_optimizer, check_sparse_gradients
from rankdeck.training.trial_weights import ModelWeights, describe_weights
from rankdeck.training.workload import Workload


@dataclass(frozen=True)
class BuiltStrategy:
    """A strategy with its model on the devices, and the optimizer that updates this rank's weights."""

    strategy: Strategy
    optimizer: Optimizer
    traits: ModelTraits


def assemble(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    device_indices: list[int],
    writer: EventWriter,
    ledger: Ledger | None = None,
    backend: Backend | None = None,
    analysis: ModelAnalysis | None = None,
    notes: Sequence[Problem] | None = None,
    **job: Any,
) -> Trainer:
    """Build the strategy and return its Trainer; call this after loading data and joining the process group.

    `devices` are this rank's torch devices and `device_indices` their indices in the run. A rehearsal without
    a `ledger` gets a new one. `analysis` is as in `build`. `notes` are the differences from a run on one
    device that the check in verify/ found (None if the check did not run). `job` holds further arguments of
    Trainer.

    Raises: RankdeckError if the strategy refuses the model, the data or the devices.
    """
    built = build(
        workload,
        rank=rank,
        world_size=world_size,
        devices=devices,
        ledger=ledger or _make_ledger(workload, devices),
        backend=backend,
        analysis=analysis,
        on_drained=lambda under_way, updates: writer.write(events.Drained(rank, under_way, updates)),
    )
    strategy, optimizer = built.strategy, built.optimizer
    strategy.ledger.watch(strategy.module, optimizer)
    is_verified = notes is not None
    notes = find_parity_notes(workload, strategy, built.traits) if notes is None else notes
    return Trainer(
        workload,
        strategy,
        optimizer,
        writer,
        rank=rank,
        device_indices=device_indices,
        notes=notes,
        is_verified=is_verified,
        **job,
    )


def build(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    ledger: AnyLedger,
    backend: Backend | None = None,
    analysis: ModelAnalysis | None = None,
    on_drained: Callable[[int, int], object] = lambda under_way, updates: None,
) -> BuiltStrategy:
    """Build one rank's strategy with its model, and its optimizer. All ranks call this together.

    `analysis` holds findings about the model from an earlier build; this build adds its own.
    `on_drained(microbatches that were in flight, number of updates)` is called after a pipeline is drained.
    Raises: RankdeckError if the strategy refuses the model, the data or the devices.
    """
    config, backend = workload.config, backend or Backend()
    if config.train.allow_tf32:  # only GPUs use it; elsewhere torch's own setting stays
        torch.backends.cuda.matmul.allow_tf32 = True
    strategy_type: type[Strategy] = config.strategy_spec.load()
    pace = make_pace(
        config, devices[0], world_size, communicates_in_forward=strategy_type.communicates_in_forward
    )
    setup = Setup(
        options=config.strategy_spec.options(**config.strategy.options),
        loss=workload.loss,
        devices=devices,
        rank=rank,
        world_size=world_size,
        ledger=ledger,
        precision=config.train.precision,
        compile=config.train.compile,
        microstep_samples=config.train.global_batch // config.train.accumulate,
        accumulate=config.train.accumulate,
        read_samples=functools.partial(first_batch, workload.train),
        spans=SpanRecorder(devices, pace),
        backend=backend,
        on_drained=on_drained,
        analysis=analysis or ModelAnalysis(),
    )
    strategy = strategy_type(setup)
    traits, layout = ModelTraits(), ModelWeights()

    def model_fn() -> nn.Module:
        nonlocal traits, layout
        model = backend.build_model(workload.build_model)
        traits, layout = model_traits(model), describe_weights(model)
        # On the whole model, before the strategy splits it.
        _check_gradients(model, workload, strategy)
        return model

    with setup.ledger.tracking():
        strategy.build(model_fn)
    check_last_step(workload, strategy, with_batch_norm=traits.has_batch_norm)
    # The strategy decides which ranks share a random stream; the weights came from the seed itself.
    torch.manual_seed(config.train.seed * 1_000_003 + 1 + strategy.mesh().random_stream)
    optimizer = workload.build_optimizer(strategy.module.parameters())
    check_optimizer(workload.build_optimizer, optimizer, strategy, config, layout)
    return BuiltStrategy(strategy, optimizer, traits)


def _check_gradients(model: nn.Module, workload: Workload, strategy: Strategy) -> None:
    """Check gradients and their hooks.

    Raises: ConfigError or ModelError for sparse gradients that the run does not support; ModelError for hooks
    whose results would differ from those on one device."""
    check_sparse_gradients(model, strategy, workload.config)
    check_gradient_hooks(model, workload.build_model, strategy, workload.config)


def _make_ledger(workload: Workload, devices: list[torch.device]) -> AnyLedger:
    """Return a ledger for a rehearsal, unless the model is compiled: a compiled graph bypasses the ledger."""
    if devices[0].type == "cpu" and not workload.config.train.compile:
        return Ledger(len(devices))
    return NullLedger()


# Find a rank's torch devices and check that they are the chosen ones.


def torch_devices(
    infos: Sequence[events.DeviceInfo], local_rank: int
) -> tuple[list[torch.device], list[str | None]]:
    """Return the torch devices, and the UUIDs that torch reports for them (None for virtual devices).

    The first device becomes CUDA's current device.

    Raises: MachineError if torch finds a different GPU than the chosen one.
    """
    if infos[0].kind == "virtual":
        return [torch.device("cpu")] * len(infos), [None] * len(infos)
    if torch.cuda.device_count() < len(infos):
        raise MachineError(
            phrase(
                "torch finds fewer CUDA devices ({num_seen}) than were chosen ({num_chosen}).",
                num_seen=torch.cuda.device_count(),
                num_chosen=len(infos),
            ),
            advice=phrase("Install a CUDA build of torch that matches the driver, or rehearse on cpu:N."),
        )
    # A rank with several devices drives all of them; otherwise each rank takes that of its local rank.
    first = 0 if len(infos) > 1 else local_rank
    devices = [torch.device("cuda", first + index) for index in range(len(infos))]
    uuids = [_device_uuid(device, info) for device, info in zip(devices, infos, strict=True)]
    for info, uuid in zip(infos, uuids, strict=True):
        # CUDA_VISIBLE_DEVICES may give the index to another GPU.
        if info.uuid is not None and info.uuid != uuid:
            raise MachineError(
                phrase(
                    "The chosen {device} has UUID {chosen}, but the device that torch uses has UUID {uuid}.",
                    device=info.name,
                    chosen=info.uuid,
                    uuid=uuid,
                ),
                advice=phrase("Unset CUDA_VISIBLE_DEVICES, or choose the GPU by its UUID."),
            )
    torch.cuda.set_device(devices[0])
    return devices, [*uuids]


def _device_uuid(device: Any, info: events.DeviceInfo) -> str:
    """Return torch's UUID of a device in NVML's notation, with the prefix that torch omits."""
    kind = "MIG" if (info.uuid or "").startswith("MIG-") else "GPU"
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"{kind}-{uuid}"
