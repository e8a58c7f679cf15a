"""What `show --json` says of a run of a person's own script, beside what it says of any run.

Nothing is invented: what the script did not show is None, and notes say what was not seen and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rankdeck import events
from rankdeck.run.fold import Fold
from rankdeck.run.imbalance import Imbalance
from rankdeck.run.script_figures import ScriptFigures
from rankdeck.run.script_words import script_of, without_steps
from rankdeck.rundir import RunDir

if TYPE_CHECKING:
    from rankdeck.config.script import ScriptConfig

_SHOWN = [name for name in events.Observed.__struct_fields__ if name not in ("seq", "t", "v", "rank")]
_DATA_PARALLEL = (
    "DataParallel keeps gradients, optimizer and gathered outputs on its first device. "
    "With DistributedDataParallel and a rank for each device every one holds the same."
)


def script_facts(run: RunDir, fold: Fold) -> dict[str, Any]:
    """The keys that a script's run fills; every run has them."""
    script, config = fold.script, script_of(run)
    is_script = script.is_script or (fold.started is None and config is not None)
    newest = fold.newest("loss")
    return {
        "run_source": events.SCRIPT if is_script else events.CONFIGURATION,
        "script": _script(config) if is_script and config is not None else None,
        "script_status": script.script_status,
        "steps_per_s": fold.steps_per_s(),
        "wait_share": script.wait_share,
        "loss_step": None if newest is None else newest[0],
        "not_finite": min((step for one in script.seen.values() if (step := one.not_finite)), default=None),
        "observed": _finite(_observed(script)) if script.seen else None,
        "metrics": {
            name: {"last": found.last, "step": found.step, "count": found.count, "through": found.through}
            for name, found in fold.metrics.items()
        },
        "collectives": _finite(_collectives(script)) or None,
        "notes": list(_notes(run, fold, config)) if is_script else [],
    }


def _script(config: ScriptConfig) -> dict[str, Any]:
    table = config.script
    return {
        "run": table.run,
        "kind": table.kind,
        "args": table.args,
        "folder": table.folder,
        "python": table.python,
        "ranks": table.ranks,
        "observe": table.observe,
    }


def _observed(script: ScriptFigures) -> dict[str, Any]:
    """What was seen of the lowest rank, and by rank what differs."""
    lead = script.lead
    facts = {} if lead is None else {key: getattr(lead, key) for key in _SHOWN}
    return {**facts, "ranks": list(_ranks(script))}


def _ranks(script: ScriptFigures) -> Iterable[dict[str, Any]]:
    has_wait = script.has_loader
    for number in sorted(script.seen.keys() | script.ranks.keys() | script.steps_by_rank.keys()):
        rank, steps = script.ranks.get(number), script.steps_by_rank.get(number)
        seen = script.seen.get(number)
        yield {
            "rank": number,
            "pid": None if rank is None else rank.pid,
            "world_size": None if rank is None else rank.world_size,
            "steps": 0 if steps is None else steps.num_steps,
            "skipped": None if seen is None else seen.skipped,
            "wait_share": steps.wait_s / steps.timed_s if has_wait and steps and steps.timed_s else None,
        }


def _collectives(script: ScriptFigures) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "calls": told.calls, "num_bytes": told.num_bytes, "seconds": told.seconds}
        for rank, told in script.collectives.items()
    ]


def _notes(run: RunDir, fold: Fold, config: ScriptConfig | None) -> Iterable[str]:
    """What a person has to know to read the figures."""
    script = fold.script
    if config is not None and config.script.observe == "none":
        yield "the script was not observed (--observe=none)"
    elif not fold.step:
        yield str(without_steps(began=bool(script.ranks), is_over=run.outcome() != "running"))
    yield from _parts_off(script.seen)
    for rank, observed in sorted(script.seen.items()):
        if observed.not_finite is not None:
            yield f"the loss of rank {rank} was not finite in step {observed.not_finite}"
    lead = script.lead
    if lead is not None and lead.skipped:
        yield f"a gradient scaler skipped {_count(lead.skipped, 'step')}"
    for name, count in (lead.other_optimizers if lead is not None else {}).items():
        yield f"{name.rpartition(':')[2]} stepped {_count(count, 'time')} besides the leading optimizer"
    for rank in script.alone:
        yield f"rank {rank} is a process that trained by itself (pid {script.ranks[rank].pid})"
    taken = {rank: steps.num_steps for rank, steps in script.steps_by_rank.items()}
    if (
        run.outcome() == "completed"
        and taken
        and max(taken.values()) - min(taken.values()) > max(1, 0.1 * max(taken.values()))
    ):
        yield "ranks took different numbers of steps: " + ", ".join(
            f"rank {rank} {count}" for rank, count in taken.items()
        )
    if script.num_names_cut:
        yield f"{_count(script.num_names_cut, 'name')} that the script logged were too many, and are not kept"
    if lead is not None and lead.wrapper == "DataParallel" and _is_notable(fold.imbalance()):
        yield _DATA_PARALLEL


def _is_notable(imbalance: Imbalance | None) -> bool:
    return imbalance is not None and imbalance.is_notable


def _parts_off(seen: Mapping[int, events.Observed]) -> Iterable[str]:
    """One note for each part of the observer and its reason, with the ranks where not all say so."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank, observed in sorted(seen.items()):
        for part, reason in observed.parts.items():
            ranks.setdefault((part, reason), []).append(rank)
    for (part, reason), told in ranks.items():
        some = "" if len(told) == len(seen) else f" on rank {', '.join(map(str, told))}"
        yield f"the observer's part {part} is off{some}: {reason}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _finite(value: Any) -> Any:
    """The same with None for what is no finite number: JSON has no word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value
