"""Find fixes for a plan that does not fit, with the planner's predictions for them.

    one change         for a configuration that does not fit or barely fits: each single change to it
    several changes    if no planned line fits: the configured strategy, fsdp and the strategy that needs the
                       least memory, each with all changes that save memory; for the best of these, the fewest
                       changes that suffice
    more devices       if several changes do not suffice: sharded weights on twice, then four times as many
                       devices, ...
    no fix             if more devices do not suffice: how much memory is missing for the line that is
                       closest to fitting

Each fix is planned like any candidate, so its bytes are the planner's own prediction; all fixes keep the
global batch. The plan's other lines show whether another strategy or mesh fits. Read candidates.py and
pool.py first.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import msgspec
import torch

from rankdeck.base import files
from rankdeck.base.errors import ConfigError
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.base.units import format_bytes, format_setting
from rankdeck.config import RunConfig, load
from rankdeck.config.catalog import OPTIMIZERS
from rankdeck.config.devices import MAX_VIRTUAL_DEVICES
from rankdeck.config.gpu_models import MAX_PLANNED
from rankdeck.diagnose.fixes import fixes_file, fullest_device
from rankdeck.planner.accuracy import target_of_run
from rankdeck.planner.candidates import Candidate, PlanFn, Target, candidates_for, least_batch
from rankdeck.planner.pool import plan_candidates, read_samples_in_child
from rankdeck.run import plan_lines
from rankdeck.run.bounds import ROW_TIMEOUT_S
from rankdeck.run.plan_lines import CANNOT, DOES_NOT_FIT, FITS, TIGHT, PlanLine, PlannedDevice
from rankdeck.run.plan_marks import has_stale_weights
from rankdeck.run_dir import RunDir

TargetPlanFn = Callable[[Target, Sequence[Candidate]], Iterator[PlanLine]]

_SAVING_TEXTS = {
    FITS: tr_noop("{setting} saves {size} on the fullest device: the run then fits."),
    TIGHT: tr_noop("{setting} saves {size} on the fullest device: the run then fits, but memory is tight."),
    DOES_NOT_FIT: tr_noop("{setting} saves {size} on the fullest device, which is not enough on its own."),
}
_LAST_RESORT_KEYS = ("train.precision",)
"""Keys that are changed last, because changing them affects rounding; all other changes keep results the
same."""
_MAX_TENSOR_PARALLEL = 8
"""Maximum number of slices of a layer: the number of GPUs in a typical machine."""
_MAX_ACCUMULATE = 4
"""Maximum number of microsteps: planning each one takes as long as planning an undivided batch."""
_MAX_REMAINING_SHARE = 0.95
"""Maximum ratio of a device's memory need on twice as many devices to its need on the current number; above
this ratio, more devices do not help."""
_PERSISTENT_KINDS = ("parameters", "gradients", "optimizer", "buffers")
_FIT_TEXTS = {
    FITS: tr_noop("{what} fits on {devices} and needs {size} on the fullest device."),
    TIGHT: tr_noop("{what} is tight on {devices}: {size} on the fullest device."),
}
_NOTHING_FITS_TEXT = tr_noop(
    "This model cannot be trained on {devices}, or on more devices of this kind: even the smallest plan, "
    "{what}, needs {size} more on the fullest device. Use a smaller model, or devices with more memory."
)
_NOTHING_FITS_HERE_TEXT = tr_noop(
    "This model cannot be trained on {devices}: even the smallest plan, {what}, needs {size} "
    "more on the fullest device. Use a smaller model, or devices with more memory."
)


# Fixes with one change.


def memory_changes(config: RunConfig, target: Target) -> list[dict[str, object]]:
    """Return the changes to a configuration that could each lower its memory use."""
    train = config.train
    changes: list[dict[str, object]] = []
    if not train.activation_checkpointing:
        changes.append({"train.activation_checkpointing": True})
    if target.like_cuda and train.precision == "fp32":
        changes.append({"train.precision": "bf16"})
    changes += _optimizer_step_changes(config, target)
    less = config.strategy_spec.planning.less_memory(config.strategy.options)
    if less:
        changes.append({f"strategy.{name}": value for name, value in less.items()})
    if train.global_batch // train.accumulate > least_batch(config, target.num_devices):
        changes.append({"train.accumulate": 2 * train.accumulate})
    return changes


def _optimizer_step_changes(config: RunConfig, target: Target) -> Iterator[dict[str, object]]:
    """Yield changes that avoid a torch optimizer's foreach implementation, which needs temporary copies."""
    chosen = config.train.optimizer
    foreach, fused = chosen.options.get("foreach"), chosen.options.get("fused")
    takes_lists = target.like_cuda and not fused if foreach is None else foreach
    option_names = _optimizer_options(chosen.use) if takes_lists else ()
    if "foreach" in option_names:
        yield {"train.optimizer.foreach": False}
    if "fused" in option_names and foreach is None and target.like_cuda:
        yield {"train.optimizer.fused": True}


def _optimizer_options(optimizer: str) -> Collection[str]:
    """Return the names of a torch optimizer's options, and no names for any other optimizer."""
    if optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer].options.model_fields
    module, _, name = optimizer.rpartition(":")
    optimizer_class = getattr(torch.optim, name, None) if module == "torch.optim" else None
    return () if optimizer_class is None else inspect.signature(optimizer_class).parameters


def single_fixes(
    line: PlanLine,
    candidate: Candidate,
    base: RunConfig,
    target: Target,
    plan: PlanFn,
    *,
    always: bool = False,
) -> Iterator[PlanLine]:
    """Yield a plan line for each single change that saves memory, if `line` does not fit or is tight.

    If `always` is true, do this even for a line that fits.
    """
    if line.verdict not in (FITS, TIGHT, DOES_NOT_FIT) or (line.verdict == FITS and not always):
        return
    config = candidate.make_config(base, target)
    changed = [
        Candidate(candidate.strategy, candidate.options, changes, candidate.configured)
        for changes in memory_changes(config, target)
    ]
    before = line.fullest_device
    for line_after in plan(changed):
        after = line_after.fullest_device
        if line_after.verdict == CANNOT or before is None or after is None or line_after.is_bound:
            continue
        saved_bytes = before.total_bytes - after.total_bytes
        if saved_bytes <= 0:
            continue
        what = ", ".join(itertools.starmap(format_setting, line_after.changes.items()))
        advice = phrase(_SAVING_TEXTS[line_after.verdict], setting=what, size=format_bytes(saved_bytes))
        yield msgspec.structs.replace(line_after, saves_bytes=saved_bytes, advice=advice)


# Fixes with several changes, or more devices.


def combined_fixes(
    lines: Sequence[PlanLine],
    base: RunConfig,
    target: Target,
    plan: TargetPlanFn,
    *,
    more_devices: bool = True,
) -> Iterator[PlanLine]:
    """Yield one line that names changes or devices that make the run fit, or else the missing memory.

    Yield nothing if one of `lines` already fits, or if none of them has a prediction.
    """
    planned = [line for line in lines if line.verdict != CANNOT and line.devices]
    if not planned or any(line.verdict in (FITS, TIGHT) for line in planned):
        return
    together = [
        _with_all_changes(candidate, base, target)
        for candidate in _combined_candidates(planned, base, target)
    ]
    tried = [line for line in plan(target, [item for item in together if item.changes]) if line.devices]
    best = _best_line(tried)
    if best is not None:
        candidate = next(item for item in together if item.label == best.label)
        yield _with_advice(
            _with_fewest_changes(candidate, best, lambda rows: plan(target, rows)), _FIT_TEXTS[best.verdict]
        )
        return
    larger = _on_more_devices([*planned, *tried], base, target, plan) if more_devices else None
    if larger is not None:
        yield _with_advice(larger, _FIT_TEXTS[larger.verdict])
        return
    smallest = min([*planned, *tried], key=_missing_bytes)
    explained = _with_advice(
        smallest, _NOTHING_FITS_TEXT if more_devices else _NOTHING_FITS_HERE_TEXT, _missing_bytes(smallest)
    )
    yield (
        explained
        if explained.changes
        else msgspec.structs.replace(explained, changes={"strategy.use": smallest.strategy})
    )


def _best_line(lines: Sequence[PlanLine]) -> PlanLine | None:
    """Return the best line that fits. Lines that fit well come before tight lines; among equals, the line
    with the fewest changes wins."""
    good = [line for line in lines if line.verdict in (FITS, TIGHT)]
    return min(good, key=lambda line: (line.verdict != FITS, len(line.changes)), default=None)


def _combined_candidates(planned: Sequence[PlanLine], base: RunConfig, target: Target) -> list[Candidate]:
    """Return the configured strategy, the strategy that needs the least memory on its fullest device, and
    fsdp.

    Strategies whose weights, gradients and optimizer state alone are too large are left out.
    """
    exact = [line for line in planned if not line.changes and not has_stale_weights(line)]
    smallest = min(exact, key=_missing_bytes, default=planned[0])
    candidates = [
        Candidate(base.strategy.use, dict(base.strategy.options), configured=True),
        Candidate(smallest.strategy, dict(smallest.options)),
        *([Candidate("fsdp")] if target.num_devices > 1 else []),
    ]
    hopeless = {line.label for line in planned if _is_hopeless(line)}
    # reversed, so that of equal labels, the first candidate (the configured one) wins.
    by_label = {candidate.label: candidate for candidate in reversed(candidates)}
    return [candidate for label, candidate in by_label.items() if label not in hopeless]


def _is_hopeless(line: PlanLine) -> bool:
    """Check whether the memory that persists between steps is too large for a device."""
    return any(
        device.capacity_bytes is not None
        and _persistent_bytes(device) > device.capacity_bytes - device.others_bytes - device.constants_bytes
        for device in line.devices
    )


def _persistent_bytes(device: PlannedDevice) -> int:
    return sum(device.by_kind.get(kind, 0) for kind in _PERSISTENT_KINDS)


def _with_all_changes(candidate: Candidate, base: RunConfig, target: Target) -> Candidate:
    """Return the candidate with all changes that save memory; the changes to drop first are at the end.

    Return the candidate unchanged if its options, the batch or the devices are incompatible.
    """
    try:
        config = candidate.make_config(base, target)
    except ConfigError:
        return candidate
    changes: dict[str, object] = {}
    for change in memory_changes(config, target):
        if all(any(key.startswith("train.optimizer.") for key in keys) for keys in (change, changes)):
            continue  # an alternative to a change that is already included
        changes |= change
    max_microsteps = (
        config.train.global_batch * config.train.accumulate // least_batch(config, target.num_devices)
    )
    if "train.accumulate" in changes:
        changes["train.accumulate"] = _largest_divisor(
            config.train.global_batch, min(max_microsteps, _MAX_ACCUMULATE)
        )
    ordered = sorted(changes, key=lambda key: key in _LAST_RESORT_KEYS)
    return replace(candidate, changes={key: changes[key] for key in ordered})


def _largest_divisor(number: int, maximum: int) -> int:
    """Return the largest divisor of `number` that is at most `maximum`."""
    return next(count for count in range(max(1, maximum), 0, -1) if number % count == 0)


def _with_fewest_changes(
    candidate: Candidate, full_line: PlanLine, plan: Callable[[Sequence[Candidate]], Iterator[PlanLine]]
) -> PlanLine:
    """Plan the candidate with its first change, its first two changes, and so on; return the line with the
    fewest changes that fits at least as well as `full_line`, which has all changes."""
    items = list(candidate.changes.items())
    fewer = [replace(candidate, changes=dict(items[:count])) for count in range(1, len(items))]
    good = [line for line in plan(fewer) if line.verdict in (FITS, full_line.verdict)]
    return min(good, key=lambda line: len(line.changes), default=full_line)


def _on_more_devices(
    lines: Sequence[PlanLine], base: RunConfig, target: Target, plan: TargetPlanFn
) -> PlanLine | None:
    """Double the number of devices until sharded weights fit, and return the plan line for that number.

    Return None if more devices do not help.
    """
    first = target.devices[0]
    kinds = {(device.gpu, device.total_bytes) for device in target.devices}
    if target.by_host or len(kinds) > 1 or first.total_bytes is None:
        return None
    max_devices = MAX_PLANNED if target.like_cuda else MAX_VIRTUAL_DEVICES
    kept_bytes = min(sum(map(_persistent_bytes, line.devices)) for line in lines)
    count = 2 * target.num_devices
    while count * first.total_bytes < kept_bytes:
        count *= 2
    needed_bytes = math.inf
    while count <= max_devices:
        virtual_name = phrase("{count} virtual devices", count=count)
        larger = replace(
            target,
            name=f"{count} x {first.name}" if target.like_cuda else virtual_name,
            devices=(replace(first, others_bytes=0),) * count,
        )
        use = larger.to_tables(())["devices"]["use"]
        rows = [_with_all_changes(candidate, base, larger) for candidate in _sharded_candidates(base, count)]
        rows = [replace(row, changes={"devices.use": use, **row.changes}) for row in rows]
        planned = [line for line in plan(larger, rows) if line.verdict != CANNOT]
        before_bytes, needed_bytes = needed_bytes, min(map(_needed_bytes, planned), default=math.inf)
        best = _best_line(planned)
        if best is not None or needed_bytes > _MAX_REMAINING_SHARE * before_bytes or not planned:
            return best
        count *= 2
    return None


def _sharded_candidates(base: RunConfig, count: int) -> list[Candidate]:
    """Return fsdp, or hybrid with tensor parallelism if `count` devices cannot share the batch equally."""
    shard = math.gcd(base.train.global_batch, count)
    if shard == count:
        return [Candidate("fsdp")]
    tensor = count // shard
    return [Candidate("hybrid", {"shard": shard, "tensor": tensor})] if tensor <= _MAX_TENSOR_PARALLEL else []


def _needed_bytes(line: PlanLine) -> int:
    return fullest_device(line).total_bytes


def _missing_bytes(line: PlanLine) -> int:
    """Return how many bytes are missing on the fullest device."""
    fullest = fullest_device(line)
    room = fullest.room_bytes
    return fullest.total_bytes if room is None else -room


def _with_advice(line: PlanLine, template: str, num_bytes: int | None = None) -> PlanLine:
    """Return the line with advice from `template`, whose {size} is `num_bytes`, by default the memory
    needed on the fullest device."""
    changes = {
        key: value for key, value in line.changes.items() if key not in ("devices.use", "strategy.use")
    }
    what = ", ".join([line.label, *itertools.starmap(format_setting, changes.items())])
    size = format_bytes(_needed_bytes(line) if num_bytes is None else num_bytes)
    return msgspec.structs.replace(line, advice=phrase(template, what=what, devices=line.target, size=size))


# Fixes for a run that ran out of memory: every strategy, and single and combined changes.
#
# They are planned once per attempt, for the devices that it had, and stored in the run directory.
# diagnose/fixes.py ranks the lines.


def plan_run_fixes(run: RunDir, timeout_s: float = ROW_TIMEOUT_S) -> Iterator[PlanLine]:
    """Plan a run's fixes, store the lines and yield them; yield none for a run without devices.

    Raises:
        ConfigError: the run's configuration cannot be read.
    """
    config = load(run.config_to_resume)
    infos = run.devices()
    if not infos:
        return
    target = target_of_run(infos)
    if not target.like_cuda:
        capacity = config.capacity_bytes
        devices = tuple(replace(device, total_bytes=capacity) for device in target.devices)
        # A rehearsal's devices have no size of their own; its simulated capacity is what ran out.
        target = replace(target, devices=devices)
    samples = read_samples_in_child(config, timeout_s)

    def plan_rows(rows: Sequence[Candidate]) -> Iterator[PlanLine]:
        return plan_candidates(config, rows, target, timeout_s=timeout_s, samples=samples)

    rows = candidates_for(config, None, target.num_devices)
    by_label = {row.label: row for row in rows}
    lines: list[PlanLine] = []
    for line in plan_rows(rows):
        lines.append(line)
        yield line
    configured = next((line for line in lines if line.configured), None)
    if configured is not None:
        for line in single_fixes(
            configured, by_label[configured.label], config, target, plan_rows, always=True
        ):
            lines.append(line)
            yield line
    for line in combined_fixes(lines, config, target, lambda _, rows: plan_rows(rows), more_devices=False):
        lines.append(line)
        yield line
    files.replace_file(fixes_file(run), b"".join(map(plan_lines.encode, lines)))
