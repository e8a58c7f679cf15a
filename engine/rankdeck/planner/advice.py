"""What to change where a run does not fit: the same candidate with one thing different, and what that saves.

Each change is planned like any candidate, so the bytes beside it are the planner's own. Another strategy or
mesh is advice as well; the other lines of a plan say that. Read candidates.py and pool.py before.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from rankdeck.base.phrases import marked, phrase
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config import RunConfig
from rankdeck.config.catalog import OPTIMIZERS
from rankdeck.planner.candidates import Candidate, Target, num_microbatches
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT, PlanLine

Options = Mapping[str, Any]
Planner = Callable[[Sequence[Candidate]], Iterator[PlanLine]]

MAX_BATCH = 2**20
_ROUNDS = 12
_SAVES = {
    FITS: marked("{setting} saves {size} on the fullest device: it fits then."),
    TIGHT: marked("{setting} saves {size} on the fullest device: it is tight then."),
    DOES_NOT_FIT: marked("{setting} saves {size} on the fullest device: not enough alone."),
}


def changes_for(config: RunConfig, target: Target) -> list[dict[str, Any]]:
    """What could be changed about a configuration's memory, one thing each."""
    train = config.train
    changes: list[dict[str, Any]] = []
    if not train.activation_checkpointing:
        changes.append({"train.activation_checkpointing": True})
    if target.like_cuda and train.precision == "fp32":
        changes.append({"train.precision": "bf16"})
    changes += _steps_without_copies(config, target)
    less = config.strategy_card.planning.less_memory(config.strategy.options)
    if less:
        changes.append({f"strategy.{name}": value for name, value in less.items()})
    if train.global_batch // train.accumulate > least_batch(config, target.num_devices):
        changes.append({"train.accumulate": 2 * train.accumulate})
    return changes


def _steps_without_copies(config: RunConfig, target: Target) -> Iterator[dict[str, Any]]:
    """Other ways for an optimizer of torch's to step that would take lists of tensors, which it copies."""
    chosen = config.train.optimizer
    foreach, fused = chosen.options.get("foreach"), chosen.options.get("fused")
    takes_lists = target.like_cuda and not fused if foreach is None else foreach
    known = _options_of(chosen.use) if takes_lists else ()
    if "foreach" in known:
        yield {"train.optimizer.foreach": False}
    if "fused" in known and foreach is None and target.like_cuda:
        yield {"train.optimizer.fused": True}


def _options_of(optimizer: str) -> Collection[str]:
    """The options of an optimizer of torch's; none of others."""
    if optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer].options.model_fields
    module, _, name = optimizer.rpartition(":")
    found = getattr(torch.optim, name, None) if module == "torch.optim" else None
    return () if found is None else inspect.signature(found).parameters


def advise(
    line: PlanLine,
    candidate: Candidate,
    base: RunConfig,
    target: Target,
    plan: Planner,
    *,
    always: bool = False,
) -> Iterator[PlanLine]:
    """Lines of advice for one that does not fit, or barely, or `always`; only what saves something."""
    if line.verdict not in (FITS, TIGHT, DOES_NOT_FIT) or (line.verdict == FITS and not always):
        return
    config = candidate.config(base, target)
    changed = [
        Candidate(candidate.strategy, candidate.options, changes, candidate.configured)
        for changes in changes_for(config, target)
    ]
    before = line.fullest
    for line_after in plan(changed):
        after = line_after.fullest
        if line_after.verdict == CANNOT or before is None or after is None or line_after.is_bound:
            continue
        saved_bytes = before.total_bytes - after.total_bytes
        if saved_bytes <= 0:
            continue
        what = ", ".join(itertools.starmap(format_setting, line_after.changes.items()))
        said = phrase(_SAVES[line_after.verdict], setting=what, size=format_bytes(saved_bytes))
        yield msgspec.structs.replace(line_after, saves_bytes=saved_bytes, advice=said)


def largest_batch(candidate: Candidate, base: RunConfig, target: Target, plan: Planner) -> int | None:
    """The largest train.global_batch of which every device has room; None where not even the least has.

    Doubling, then halving between the last that fits and the first that does not; sizes are multiples of what
    devices, parts and microbatches cut the batch into.
    """
    unit = least_batch(candidate.config(base, target), target.num_devices)

    def fits(count: int) -> bool:
        # Each size leaves another last step to an epoch, which needs no more than a whole one.
        changed = {**candidate.changes, "train.global_batch": count * unit, "data.last": "drop"}
        (line,) = plan([Candidate(candidate.strategy, candidate.options, changed)])
        return line.verdict in (FITS, TIGHT)

    low, high = 0, 1
    while high * unit <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    for _ in range(_ROUNDS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit or None


def least_batch(config: RunConfig, num_devices: int) -> int:
    """The least batch: every device, part and microbatch gets one sample."""
    options = config.strategy.options
    shards, stages = config.strategy_card.batch_cut(options, num_devices)
    return math.prod((config.train.accumulate, shards, num_microbatches(options, stages)))
