"""One run of a rank that saves or goes on from a checkpoint, in this process; its losses step by step.

Called on each rank of a RankSet, or here for the strategies that have one process. `go_on` with
`without_optimizer_state` or `without_random_states` are negative controls.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from rankdeck import events
from rankdeck.checkpoint import store as checkpoints
from rankdeck.checkpoint.store import CheckpointStore
from rankdeck.checkpoint.training_state import TrainingState
from rankdeck.checkpoint.weights import gather_extra_state, save_weights
from rankdeck.checkpoint_files import CheckpointError, newest_intact
from rankdeck.config import from_text
from rankdeck.run.attempt import Attempt
from rankdeck.run.batch import Batch
from rankdeck.run_dir import EventReader, RunDir
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.rank_consensus import RankConsensus
from rankdeck.training.sampling_budget import SamplingBudget
from rankdeck.training.saving import Saver


def run(
    toml: str,
    folder: str,
    *,
    attempt: int = 0,
    source: str | None = None,
    without: str | None = None,
    ends: bool = False,
    beat: Callable[[int, str], None] = lambda step, phase: None,
) -> None:
    """A run whose checkpoints and events are in `folder`; `source` is a folder to go on from.

    Its final weights are left there. `without`: "optimizer" or "random", what is not taken over. With `ends`
    it fails at its end where its last save did, as a rank does.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    config = from_text(toml, folder=Path.cwd())
    card = config.strategy_spec
    device_indices = list(range(config.selection.count or 1)) if card.one_process else [rank]
    here = RunDir(Path(folder))
    here.path.mkdir(parents=True, exist_ok=True)
    writer = here.writer(f"rank-{rank}", attempt)
    store = CheckpointStore(
        here.checkpoints_folder,
        rank=rank,
        world_size=world_size,
        layout=f"{config.strategy.use} {config.strategy.options} {world_size} {len(device_indices)}",
        keep=config.train.keep_checkpoints,
    )
    start = None if source is None else newest_intact(RunDir(Path(source)).checkpoints_folder)[0]
    assert start is not None or source is None
    saver = Saver(
        store=store,
        consensus=RankConsensus(here.requests_folder, rank, 0 if world_size == 1 else 1),
        writer=writer,
        rank=rank,
        save_interval=config.train.checkpoint_every,
        stop_requested=lambda: False,
        resume_from=start,
    )
    trainer = assemble(
        workloads.load(config),
        rank=rank,
        world_size=world_size,
        devices=[torch.device("cpu")] * len(device_indices),
        device_indices=device_indices,
        writer=writer,
        sampling=SamplingBudget(),
        beat=beat,
        saver=saver,
    )
    with _without(without):
        trainer.run()
    weights = trainer.strategy.weights()
    extra_state = gather_extra_state(trainer.strategy.module, trainer.strategy.stage_modules)
    if rank == 0:
        save_weights(here.weights, weights, {}, extra_state)
    trainer.strategy.close()
    writer.close()
    if ends:
        saver.raise_save_error()


@contextlib.contextmanager
def _without(what: str | None) -> Iterator[None]:
    """Weights are put in place, and then nothing more, or everything but the random states."""
    with contextlib.ExitStack() as stack:
        if what == "optimizer":
            load_state = checkpoints.load_state

            def only_weights(state: TrainingState, *arguments: Any) -> list[str]:
                missing = load_state(state, *arguments)
                state.optimizer.state.clear()
                return missing

            stack.enter_context(mock.patch.object(checkpoints, "load_state", only_weights))
        if what == "random":
            stack.enter_context(mock.patch.object(checkpoints, "load_random_states", lambda _: None))
        yield


def losses(folder: Path, world_size: int, attempt: int = 0) -> dict[int, float]:
    """Step -> loss of one attempt, as readers see it."""
    attempt_state, batch = Attempt(attempt), Batch()
    attempt_state.joiner.world_size = world_size
    for name, new_events in EventReader(RunDir(folder)).batches():
        if name.endswith(f".{attempt}.jsonl"):
            batch.add(name, new_events)
    for _, block in batch.steps:
        attempt_state.joiner.add(block)
    attempt_state.join_rows()
    step, loss, *_ = attempt_state.table.rows.tolist()
    return {int(number): value for number, value in zip(step, loss, strict=True) if value == value}


def problems(folder: Path) -> list[Any]:
    return [
        event.problem
        for _, event in EventReader(RunDir(folder)).read()
        if isinstance(event, events.ProblemRaised) and event.problem.severity != "info"
    ]


def save_with_import_error(module: str, folder: str) -> str:
    """What this rank is told of a save while the last rank cannot import `module`."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.SGD(model.parameters()))
    store = CheckpointStore(Path(folder), rank=rank, world_size=world_size, layout="ddp", keep=1)
    imported = sys.modules.get(module)
    if rank == world_size - 1:
        sys.modules[module] = None  # type: ignore[assignment]
    try:
        store.save(5, state, {})
    except CheckpointError as error:
        return error.message
    finally:
        sys.modules.pop(module, None)
        if imported is not None:
            sys.modules[module] = imported
    return "saved"
