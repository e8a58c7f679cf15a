"""Fixes of a plan that does not fit: what to change, and what the planner predicts then.

    one change             the configuration with one thing different, where it does not fit or barely
    several together       where nothing that was planned fits: own strategy, fsdp and the one that needs the
                           least, with all that saves memory; of the best the fewest changes that are enough
    more devices           then sharded weights on twice as many, and twice as many again
    nothing                by how much the least of all these is too large

Each is planned like any candidate, so the bytes beside it are the planner's own; all of them leave the global
batch as it is. Another strategy or mesh is a fix as well: the other lines of a plan show that. Read
candidates.py and pool.py before.
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
    FITS: tr_noop("{setting} saves {size} on the fullest device: it fits then."),
    TIGHT: tr_noop("{setting} saves {size} on the fullest device: it is tight then."),
    DOES_NOT_FIT: tr_noop("{setting} saves {size} on the fullest device: not enough alone."),
}
_LAST_RESORT_KEYS = ("train.precision",)
"""Changes that round otherwise come after those that compute the same."""
_MAX_TENSOR_PARALLEL = 8
"""Slices of a layer: those of one machine."""
_MAX_ACCUMULATE = 4
"""Parts of an accumulated batch: each takes as long to plan as the whole."""
_MAX_REMAINING_SHARE = 0.95
"""Of what a device needs: where twice as many devices leave more than this, more of them do not help."""
_PERSISTENT_KINDS = ("parameters", "gradients", "optimizer", "buffers")
_FIT_TEXTS = {
    FITS: tr_noop("{what} fits on {devices}: {size} on the fullest device."),
    TIGHT: tr_noop("{what} is tight on {devices}: {size} on the fullest device."),
}
_NOTHING_FITS_TEXT = tr_noop(
    "This model cannot be trained on {devices}, nor on more of them: the least that was planned, {what}, "
    "lacks {size} on the fullest device. Use a smaller model, or devices with more memory."
)
_NOTHING_FITS_HERE_TEXT = tr_noop(
    "This model cannot be trained on {devices}: the least that was planned, {what}, lacks {size} on the "
    "fullest device. Use a smaller model, or devices with more memory."
)


# One change


def memory_changes(config: RunConfig, target: Target) -> list[dict[str, object]]:
    """What could be changed about a configuration's memory, one thing each."""
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
    """Other ways for an optimizer of torch's to step that would take lists of tensors, which it copies."""
    chosen = config.train.optimizer
    foreach, fused = chosen.options.get("foreach"), chosen.options.get("fused")
    takes_lists = target.like_cuda and not fused if foreach is None else foreach
    known = _optimizer_options(chosen.use) if takes_lists else ()
    if "foreach" in known:
        yield {"train.optimizer.foreach": False}
    if "fused" in known and foreach is None and target.like_cuda:
        yield {"train.optimizer.fused": True}


def _optimizer_options(optimizer: str) -> Collection[str]:
    """The options of an optimizer of torch's; none of others."""
    if optimizer in OPTIMIZERS:
        return OPTIMIZERS[optimizer].options.model_fields
    module, _, name = optimizer.rpartition(":")
    found = getattr(torch.optim, name, None) if module == "torch.optim" else None
    return () if found is None else inspect.signature(found).parameters


def single_fixes(
    line: PlanLine,
    candidate: Candidate,
    base: RunConfig,
    target: Target,
    plan: PlanFn,
    *,
    always: bool = False,
) -> Iterator[PlanLine]:
    """Fixes of a line that does not fit, or barely, or `always`; only those that save something."""
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
        said = phrase(_SAVING_TEXTS[line_after.verdict], setting=what, size=format_bytes(saved_bytes))
        yield msgspec.structs.replace(line_after, saves_bytes=saved_bytes, advice=said)


# Several together, or more devices


def combined_fixes(
    lines: Sequence[PlanLine],
    base: RunConfig,
    target: Target,
    plan: TargetPlanFn,
    *,
    more_devices: bool = True,
) -> Iterator[PlanLine]:
    """A line that says what fits, or that nothing does; none where a line fits, or where none has figures."""
    known = [line for line in lines if line.verdict != CANNOT and line.devices]
    if not known or any(line.verdict in (FITS, TIGHT) for line in known):
        return
    together = [
        _with_all_changes(candidate, base, target) for candidate in _combined_candidates(known, base, target)
    ]
    tried = [line for line in plan(target, [one for one in together if one.changes]) if line.devices]
    best = _best_line(tried)
    if best is not None:
        candidate = next(one for one in together if one.label == best.label)
        yield _with_advice(
            _with_fewest_changes(candidate, best, lambda rows: plan(target, rows)), _FIT_TEXTS[best.verdict]
        )
        return
    larger = _on_more_devices([*known, *tried], base, target, plan) if more_devices else None
    if larger is not None:
        yield _with_advice(larger, _FIT_TEXTS[larger.verdict])
        return
    least = min([*known, *tried], key=_missing_bytes)
    said = _with_advice(
        least, _NOTHING_FITS_TEXT if more_devices else _NOTHING_FITS_HERE_TEXT, _missing_bytes(least)
    )
    yield said if said.changes else msgspec.structs.replace(said, changes={"strategy.use": least.strategy})


def _best_line(lines: Sequence[PlanLine]) -> PlanLine | None:
    """One that fits before one that is tight, then the one with the fewest changes."""
    good = [line for line in lines if line.verdict in (FITS, TIGHT)]
    return min(good, key=lambda line: (line.verdict != FITS, len(line.changes)), default=None)


def _combined_candidates(known: Sequence[PlanLine], base: RunConfig, target: Target) -> list[Candidate]:
    """Own strategy, that with the least on its fullest device, and fsdp, unless weights, gradients and
    optimizer state alone are too large."""
    exact = [line for line in known if not line.changes and not has_stale_weights(line)]
    least = min(exact, key=_missing_bytes, default=known[0])
    found = [
        Candidate(base.strategy.use, dict(base.strategy.options), configured=True),
        Candidate(least.strategy, dict(least.options)),
        *([Candidate("fsdp")] if target.num_devices > 1 else []),
    ]
    hopeless = {line.label for line in known if _is_hopeless(line)}
    by_label = {candidate.label: candidate for candidate in reversed(found)}
    return [candidate for label, candidate in by_label.items() if label not in hopeless]


def _is_hopeless(line: PlanLine) -> bool:
    """Whether what stays from step to step is too large for a device."""
    return any(
        device.capacity_bytes is not None
        and _persistent_bytes(device) > device.capacity_bytes - device.others_bytes - device.constants_bytes
        for device in line.devices
    )


def _persistent_bytes(device: PlannedDevice) -> int:
    return sum(device.by_kind.get(kind, 0) for kind in _PERSISTENT_KINDS)


def _with_all_changes(candidate: Candidate, base: RunConfig, target: Target) -> Candidate:
    """The candidate with everything that saves memory, in the order in which to give it up; without changes
    where its options, the batch or the devices do not go together."""
    try:
        config = candidate.make_config(base, target)
    except ConfigError:
        return candidate
    changes: dict[str, object] = {}
    for change in memory_changes(config, target):
        if all(any(key.startswith("train.optimizer.") for key in keys) for keys in (change, changes)):
            continue  # another way to the same
        changes |= change
    parts = config.train.global_batch * config.train.accumulate // least_batch(config, target.num_devices)
    if "train.accumulate" in changes:
        changes["train.accumulate"] = _largest_divisor(config.train.global_batch, min(parts, _MAX_ACCUMULATE))
    ordered = sorted(changes, key=lambda key: key in _LAST_RESORT_KEYS)
    return replace(candidate, changes={key: changes[key] for key in ordered})


def _largest_divisor(number: int, most: int) -> int:
    """The largest divisor that is at most so large."""
    return next(count for count in range(max(1, most), 0, -1) if number % count == 0)


def _with_fewest_changes(
    candidate: Candidate, whole: PlanLine, plan: Callable[[Sequence[Candidate]], Iterator[PlanLine]]
) -> PlanLine:
    """The line with the fewest of the candidate's changes, from the first on, that is as good."""
    items = list(candidate.changes.items())
    fewer = [replace(candidate, changes=dict(items[:count])) for count in range(1, len(items))]
    good = [line for line in plan(fewer) if line.verdict in (FITS, whole.verdict)]
    return min(good, key=lambda line: len(line.changes), default=whole)


def _on_more_devices(
    lines: Sequence[PlanLine], base: RunConfig, target: Target, plan: TargetPlanFn
) -> PlanLine | None:
    """The line of the fewest devices, doubled, on which sharded weights fit; None where more do not help."""
    first = target.devices[0]
    kinds = {(device.gpu, device.total_bytes) for device in target.devices}
    if target.by_host or len(kinds) > 1 or first.total_bytes is None:
        return None
    most = MAX_PLANNED if target.like_cuda else MAX_VIRTUAL_DEVICES
    kept_bytes = min(sum(map(_persistent_bytes, line.devices)) for line in lines)
    count = 2 * target.num_devices
    while count * first.total_bytes < kept_bytes:
        count *= 2
    needed_bytes = math.inf
    while count <= most:
        words = phrase("{count} virtual devices", count=count)
        larger = replace(
            target,
            name=f"{count} x {first.name}" if target.like_cuda else words,
            devices=(replace(first, others_bytes=0),) * count,
        )
        use = larger.to_tables(())["devices"]["use"]
        rows = [_with_all_changes(candidate, base, larger) for candidate in _sharded_candidates(base, count)]
        rows = [replace(row, changes={"devices.use": use, **row.changes}) for row in rows]
        found = [line for line in plan(larger, rows) if line.verdict != CANNOT]
        before_bytes, needed_bytes = needed_bytes, min(map(_needed_bytes, found), default=math.inf)
        best = _best_line(found)
        if best is not None or needed_bytes > _MAX_REMAINING_SHARE * before_bytes or not found:
            return best
        count *= 2
    return None


def _sharded_candidates(base: RunConfig, count: int) -> list[Candidate]:
    """fsdp, and where a batch has no sample for every device, slices of layers besides."""
    shard = math.gcd(base.train.global_batch, count)
    if shard == count:
        return [Candidate("fsdp")]
    tensor = count // shard
    return [Candidate("hybrid", {"shard": shard, "tensor": tensor})] if tensor <= _MAX_TENSOR_PARALLEL else []


def _needed_bytes(line: PlanLine) -> int:
    return fullest_device(line).total_bytes


def _missing_bytes(line: PlanLine) -> int:
    """What the fullest device is short of."""
    fullest = fullest_device(line)
    room = fullest.room_bytes
    return fullest.total_bytes if room is None else -room


def _with_advice(line: PlanLine, words: str, num_bytes: int | None = None) -> PlanLine:
    """The line with what it means: the bytes of its fullest device, or `num_bytes`."""
    changes = {
        key: value for key, value in line.changes.items() if key not in ("devices.use", "strategy.use")
    }
    what = ", ".join([line.label, *itertools.starmap(format_setting, changes.items())])
    size = format_bytes(_needed_bytes(line) if num_bytes is None else num_bytes)
    return msgspec.structs.replace(line, advice=phrase(words, what=what, devices=line.target, size=size))


# Fixes of a run that ran out of memory: every strategy, and one thing changed at a time.
#
# They are planned once for each attempt, on the devices that it had, and kept in the run's directory.
# diagnose/fixes.py ranks the lines.


def plan_run_fixes(run: RunDir, timeout_s: float = ROW_TIMEOUT_S) -> Iterator[PlanLine]:
    """Plan them, and keep the lines; none for a run that had no devices.

    Raises:
        ConfigError: its configuration cannot be read.
    """
    config = load(run.config_to_resume)
    infos = run.devices()
    if not infos:
        return
    target = target_of_run(infos)
    if not target.like_cuda:
        capacity = config.capacity_bytes
        devices = tuple(replace(device, total_bytes=capacity) for device in target.devices)
        target = replace(target, devices=devices)
    samples = read_samples_in_child(config, timeout_s)

    def ask(rows: Sequence[Candidate]) -> Iterator[PlanLine]:
        return plan_candidates(config, rows, target, timeout_s=timeout_s, samples=samples)

    rows = candidates_for(config, None, target.num_devices)
    by_label = {row.label: row for row in rows}
    lines: list[PlanLine] = []
    for line in ask(rows):
        lines.append(line)
        yield line
    own = next((line for line in lines if line.configured), None)
    if own is not None:
        for line in single_fixes(own, by_label[own.label], config, target, ask, always=True):
            lines.append(line)
            yield line
    for line in combined_fixes(lines, config, target, lambda _, rows: ask(rows), more_devices=False):
        lines.append(line)
        yield line
    files.replace_file(fixes_file(run), b"".join(map(plan_lines.encode, lines)))
