"""What one rank does for the zoo: train one configuration and leave in a folder what came of it.

`RankSet.call` runs `train` on all ranks. Each leaves `rank-N.json`, rank 0 the weights as well, so that the
one who asked knows what each rank said also where the others waited for ever.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rankdeck import events
from rankdeck.base.errors import Problem, RankdeckError, TrainingError
from rankdeck.config import from_text
from rankdeck.diagnose.exceptions import describe_exception
from rankdeck.parallel.collectives.replica_threads import ReplicaError
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.run_dir import EventWriter
from rankdeck.run_dir.event_files import decode_or_none
from rankdeck.training import workload as workloads
from rankdeck.training.assembly import assemble
from rankdeck.training.verify import budget
from rankdeck.training.verify.before_run import verify
from tests.helpers.waiting import CHECK_TIMEOUT_S


def train(toml: str, folder: str, breaks: str = "") -> None:
    """One run of this rank. `breaks` names a function, "module:name", that makes a context in which the run
    goes wrong: a negative control.

    Raises: what the run raised, so that the others are not waited for.
    """
    rank, path = dist.get_rank(), Path(folder)
    facts: dict[str, Any] = {}
    writer = EventWriter(path / f"events-{rank}.jsonl")
    try:
        with _break_context(breaks):
            _train(toml, rank, dist.get_world_size(), writer, path, checks=not breaks)
    except Exception as error:
        facts = _error_facts(error)
        raise
    finally:
        writer.close()
        facts |= _read_events(path / f"events-{rank}.jsonl")
        (path / f"rank-{rank}.json").write_text(json.dumps(facts))


def _train(toml: str, rank: int, world_size: int, writer: EventWriter, folder: Path, *, checks: bool) -> None:
    """As a run does it; with `checks` after the check before the first step."""
    config = from_text(toml, folder=Path.cwd())
    num_devices = 1 if world_size > 1 else config.selection.count or 1
    workload = workloads.load(config)
    devices = [torch.device("cpu")] * num_devices
    notes, analysis = None, ModelAnalysis()
    budget.MIN_BUDGET_S = CHECK_TIMEOUT_S
    if checks and not config.strategy_spec.one_device:
        notes = verify(
            workload,
            rank=rank,
            world_size=world_size,
            devices=devices,
            num_devices=max(world_size, num_devices),
            analysis=analysis,
            beat=lambda phase: None,
            write=writer.write,
        )
    trainer = assemble(
        workload,
        rank=rank,
        world_size=world_size,
        devices=devices,
        notes=notes,
        analysis=analysis,
        device_indices=[rank] if world_size > 1 else list(range(num_devices)),
        writer=writer,
    )
    try:
        trainer.run()
        weights = trainer.strategy.weights()
        if rank == 0:
            torch.save({name: tensor.cpu() for name, tensor in weights.items()}, folder / "weights.pt")
    finally:
        trainer.strategy.close()


def _break_context(breaks: str) -> contextlib.AbstractContextManager[None]:
    if not breaks:
        return contextlib.nullcontext()
    module, _, name = breaks.partition(":")
    context: contextlib.AbstractContextManager[None] = getattr(importlib.import_module(module), name)()
    return context


def _error_facts(error: Exception) -> dict[str, Any]:
    """An error as a person would read it, and whether it is a sentence of the engine's. `named` is the code
    of a rule that knows the cause of an error in other words, as a run would tell it."""
    cause = error.__cause__ if isinstance(error, ReplicaError) else error
    is_refusal = isinstance(cause, RankdeckError) and not isinstance(cause, TrainingError)
    last = traceback.extract_tb(error.__traceback__)[-1]
    facts = {
        "error": f"{type(error).__name__}: {error}",
        "is_refusal": is_refusal,
        "at": f"{Path(last.filename).name}:{last.name}",
        "traceback": traceback.format_exc()[-3000:],
    }
    if isinstance(error, RankdeckError):
        facts["template"] = _problem_template(error.problems[0])
        facts["advice"] = error.problems[0].advice
        facts["cause"] = repr(error.__cause__) if error.__cause__ else None
    else:
        facts["named"] = describe_exception(error, 0).problem.code
    return facts


def _read_events(path: Path) -> dict[str, Any]:
    """What a rank reported: loss sums and counts of its steps, and problems."""
    rank_events = [decode_or_none(line) for line in path.read_bytes().splitlines()]
    steps = [event for event in rank_events if isinstance(event, events.Steps)]
    problems = [event.problem for event in rank_events if isinstance(event, events.ProblemRaised)]
    return {
        "sums": [total for event in steps for total in event.loss_sum or ()],
        "counts": [count for event in steps for count in event.count or ()],
        "notes": [[problem.code, _problem_template(problem), problem.message] for problem in problems],
    }


def _problem_template(problem: Problem) -> str:
    """What sentences that differ in names and numbers only have in common."""
    return problem.templates.get("message", problem.message)
