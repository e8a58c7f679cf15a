"""A rank's trainer, put together from what is trained and where. Read worker.py before, loop.py next."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from rankdeck import events
from rankdeck.data.loader import first_batch
from rankdeck.memory.ledger import Ledger
from rankdeck.memory.null_ledger import AnyLedger, NullLedger
from rankdeck.parallel.backend import Backend
from rankdeck.profiling.simulated_pace import pace_of
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.rundir import EventWriter
from rankdeck.strategies.base import Setup, Strategy
from rankdeck.training.gradient_hooks import refuse_gradient_hooks
from rankdeck.training.last_step import check_last_step
from rankdeck.training.loop import Trainer
from rankdeck.training.optimizer_check import refuse_optimizer
from rankdeck.training.refusals import refuse_sparse
from rankdeck.training.sameness import Traits, differences, traits_of
from rankdeck.training.trial_weights import ModelWeights, layout_of
from rankdeck.training.workload import Workload


def assemble(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    places: list[int],
    writer: EventWriter,
    ledger: Ledger | None = None,
    backend: Backend | None = None,
    **job: Any,
) -> Trainer:
    """A trainer over a strategy that is built: what a rank does once data is loaded and the ranks have met.

    `devices` are this rank's torch devices and `places` where they stand in the run; `ledger` is made here
    for a rehearsal that brings none; `job` goes to Trainer.

    Raises: RankdeckError where the strategy refuses the model, the data or the devices.
    """
    config, backend = workload.config, backend or Backend()
    if config.train.allow_tf32:  # GPUs alone look at it; elsewhere torch's own setting holds
        torch.backends.cuda.matmul.allow_tf32 = True
    strategy_type: type[Strategy] = config.strategy_card.load()
    pace = pace_of(config, devices[0], world_size, waits_inside=strategy_type.waits_inside)
    setup = Setup(
        options=config.strategy_card.options(**config.strategy.options),
        loss=workload.loss,
        devices=devices,
        rank=rank,
        world_size=world_size,
        ledger=ledger or _ledger(workload, devices),
        precision=config.train.precision,
        compile=config.train.compile,
        part_batch=config.train.global_batch // config.train.accumulate,
        accumulate=config.train.accumulate,
        sample=functools.partial(first_batch, workload.train),
        spans=SpanRecorder(devices, pace),
        backend=backend,
        drained=lambda under_way, updates: writer.write(events.Drained(rank, under_way, updates)),
    )
    strategy = strategy_type(setup)
    traits, layout = Traits(), ModelWeights()

    def model_fn() -> nn.Module:
        nonlocal traits, layout
        model = backend.model(workload.build_model)
        traits, layout = traits_of(model), layout_of(model)
        _refuse_gradients(model, workload, strategy)
        return model

    with setup.ledger.following():
        strategy.build(model_fn)
    check_last_step(workload, strategy, with_batch_norm=traits.has_batch_norm)
    # Random streams are the strategy's to part; the weights came from the bare seed.
    torch.manual_seed(config.train.seed * 1_000_003 + 1 + strategy.mesh().random_stream)
    optimizer = workload.build_optimizer(strategy.module.parameters())
    refuse_optimizer(workload.build_optimizer, optimizer, strategy, config, layout)
    setup.ledger.watch(strategy.module, optimizer)
    notes = differences(workload, strategy, traits)
    return Trainer(workload, strategy, optimizer, writer, rank=rank, places=places, notes=notes, **job)


def _refuse_gradients(model: nn.Module, workload: Workload, strategy: Strategy) -> None:
    """Raises: ModelError, ConfigError for gradients that the strategy cannot move, or hooks that change them
    otherwise than on one device."""
    refuse_sparse(model, strategy, workload.config)
    refuse_gradient_hooks(model, workload.build_model, strategy, workload.config)


def _ledger(workload: Workload, devices: list[torch.device]) -> AnyLedger:
    """A compiled graph runs past the ledger: bytes are not known then, and not guessed."""
    if devices[0].type == "cpu" and not workload.config.train.compile:
        return Ledger(len(devices))
    return NullLedger()
