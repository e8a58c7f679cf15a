"""What to change where a run does not fit: the same question with one thing different, and what that saves.

Each change is planned like any row, so the bytes beside it are the planner's own. Another strategy or mesh is
advice as well; the other rows of a plan say that. Read rows.py and pool.py before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rankdeck.base.units import format_bytes
from rankdeck.config import RunConfig
from rankdeck.planner.rows import Row
from rankdeck.planner.targets import Target
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT, PlanLine

Options = Mapping[str, Any]
Asking = Callable[[Sequence[Row]], Iterator[PlanLine]]

MAX_BATCH = 2**20
_ROUNDS = 12


def changes_for(config: RunConfig, target: Target) -> list[dict[str, Any]]:
    """What could be changed about a configuration's memory, one thing each."""
    train = config.train
    found: list[dict[str, Any]] = []
    if not train.activation_checkpointing:
        found.append({"train.activation_checkpointing": True})
    if target.like_cuda and train.precision == "fp32":
        found.append({"train.precision": "bf16"})
    less = config.strategy_card.planning.less_memory(config.strategy.options)
    if less:
        found.append({f"strategy.{name}": value for name, value in less.items()})
    if train.global_batch // train.accumulate > _unit(config, target.num_devices):
        found.append({"train.accumulate": 2 * train.accumulate})
    return found


def advise(line: PlanLine, row: Row, base: RunConfig, target: Target, ask: Asking) -> Iterator[PlanLine]:
    """Lines of advice for one that does not fit, or barely; only what saves something."""
    if line.verdict not in (TIGHT, DOES_NOT_FIT):
        return
    config = row.config(base, target)
    rows = [
        Row(row.strategy, row.options, changes, row.configured) for changes in changes_for(config, target)
    ]
    before = line.fullest
    for changed in ask(rows):
        after = changed.fullest
        if changed.verdict == CANNOT or before is None or after is None or changed.is_bound:
            continue
        saved_bytes = before.total_bytes - after.total_bytes
        if saved_bytes <= 0:
            continue
        changed.saves_bytes = saved_bytes
        what = ", ".join(f"{key} = {_toml(value)}" for key, value in changed.changes.items())
        enough = {FITS: "it fits then", TIGHT: "it is tight then"}.get(changed.verdict, "not enough alone")
        changed.advice = f"{what} saves {format_bytes(saved_bytes)} on the fullest device: {enough}."
        yield changed


def largest_batch(row: Row, base: RunConfig, target: Target, ask: Asking) -> int | None:
    """The largest train.global_batch of which every device has room; None where not even the least has.

    Doubling, then halving between the last that fits and the first that does not; sizes are multiples of what
    devices, parts and microbatches cut the batch into.
    """
    unit = _unit(row.config(base, target), target.num_devices)

    def fits(count: int) -> bool:
        changed = {**row.changes, "train.global_batch": count * unit}
        (line,) = ask([Row(row.strategy, row.options, changed)])
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


def _unit(config: RunConfig, num_devices: int) -> int:
    """The least batch: every device, part and microbatch gets one sample."""
    options = config.strategy.options
    shards, stages = config.strategy_card.batch_cut(options, num_devices)
    microbatches = int(options.get("microbatches") or 2 * stages) if stages > 1 else 1
    return math.prod((config.train.accumulate, shards, microbatches))


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
