"""Checks that options are consistent: within a table, between tables, and with the run's devices.

Incompatible features are listed in compatibility.py; the rules for mesh sizes and microbatches are in
mesh_sizes.py and microbatches.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rankdeck.base.errors import ConfigError, DeviceError, Problem, format_choices
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.base.units import parse_bytes
from rankdeck.config import mesh_sizes, microbatches, multi_host
from rankdeck.config.catalog import DATA, STRATEGIES, StrategySpec
from rankdeck.config.checks import ProblemReport
from rankdeck.config.compatibility import Facts, find_incompatibilities
from rankdeck.config.devices import MAX_VIRTUAL_DEVICES, parse_devices
from rankdeck.config.schema import (
    Choice,
    DataConfig,
    DevicesConfig,
    HostsConfig,
    ModelConfig,
    RehearsalConfig,
    RunConfig,
    TrainConfig,
)


def _check_train(report: ProblemReport, train: TrainConfig) -> None:
    if train.steps is not None and train.epochs is not None:
        report.add(
            "both-given",
            ("train", "epochs"),
            phrase("train.steps and train.epochs are both set."),
            phrase("Keep only one of them."),
            {"train.epochs": None},
        )


def _check_devices(report: ProblemReport, devices: DevicesConfig) -> None:
    try:
        parse_devices(devices.use)
    except DeviceError as error:
        report.add("device", ("devices", "use"), error.message, error.advice)


def _check_rehearsal(report: ProblemReport, rehearsal: RehearsalConfig) -> None:
    if rehearsal.device_gflops is not None and rehearsal.pace == "real":
        report.add(
            "does-not-combine",
            ("rehearsal", "device_gflops"),
            phrase("rehearsal.device_gflops applies only to a simulated pace, but the pace is real."),
            phrase('Set pace = "simulated", or leave device_gflops out.'),
            {"rehearsal.pace": "simulated"},
        )
    try:
        parse_bytes(rehearsal.capacity or 0)
    except ValueError as error:
        message = phrase("rehearsal.capacity: {why}.", why=error.args[0])
        report.add("wrong-value", ("rehearsal", "capacity"), message, phrase('Write it as "24GiB".'))


def _check_hosts(report: ProblemReport, hosts: HostsConfig) -> None:
    for problem in multi_host.hosts_table_problems(hosts):
        report.append(problem)


TABLE_RULES: dict[str, Callable[[ProblemReport, Any], None]] = {
    "train": _check_train,
    "devices": _check_devices,
    "rehearsal": _check_rehearsal,
    "hosts": _check_hosts,
}


class CheckedTables(NamedTuple):
    """The tables that are checked together; None for a table that is invalid by itself."""

    model: ModelConfig | None
    data: DataConfig | None
    train: TrainConfig
    strategy: Choice
    devices: DevicesConfig
    rehearsal: RehearsalConfig | None
    hosts: HostsConfig


def check_combinations(report: ProblemReport, tables: CheckedTables) -> Choice:
    """Check the tables against each other; return the strategy, with default mesh sizes if none are set."""
    selections = tables.hosts.selections(tables.devices)
    if (odd := multi_host.device_kinds_problem(selections)) is not None:
        report.append(odd)
    _check_batch(report, tables.train, tables.data)
    kinds = {selection.kind for selection in selections.values()}
    # `auto` may turn out to be GPUs, so rules that depend on the kind wait for the launch.
    kind = "gpu" if "gpu" in kinds else None if "auto" in kinds else "cpu"
    return _check_on_devices(report, tables, kind, tables.hosts.counts(tables.devices))


def _check_batch(report: ProblemReport, train: TrainConfig, data: DataConfig | None) -> None:
    """Check that the data fills at least one step, unless its size is known only at run time."""
    card = DATA.get(data.use) if data is not None else None
    if data is None or card is None:
        return
    num_samples = card.train_samples or (data.args.get("samples") if card.name == "synthetic" else None)
    if num_samples is not None and train.global_batch > num_samples:
        message = phrase(
            "train.global_batch = {batch} exceeds the {most} samples of the training data.",
            batch=train.global_batch,
            most=num_samples,
        )
        advice = phrase("Reduce the global batch to {most} or less, or use more data.", most=num_samples)
        power = 1 << (int(num_samples).bit_length() - 1)  # divisible by most device counts
        report.add("batch", ("train", "global_batch"), message, advice, {"train.global_batch": power})


def on_devices(config: RunConfig, kind: str, *counts: int) -> RunConfig:
    """Return the configuration for devices of `kind` (cpu | gpu); `counts` are the hosts' device counts.

    If the configuration does not name devices, their kind and counts are known only at launch.

    Raises:
        ConfigError: the configuration is not compatible with these devices.
    """
    report = ProblemReport({}, [])
    tables = CheckedTables(**{name: getattr(config, name) for name in CheckedTables._fields})
    strategy = _check_on_devices(report, tables, kind, counts)
    if report.problems:
        raise ConfigError(report.problems[0].as_phrase("message"), problems=report.problems)
    return config.model_copy(update={"strategy": strategy})


def _check_on_devices(
    report: ProblemReport, tables: CheckedTables, kind: str | None, counts: Sequence[int] | None
) -> Choice:
    """Check the tables against the devices; return the strategy. `kind` and `counts` are None if unknown."""
    train, strategy, rehearsal, hosts = tables.train, tables.strategy, tables.rehearsal, tables.hosts
    num_devices = None if counts is None else sum(counts)
    if num_devices is not None:
        strategy = _with_mesh(strategy, num_devices)
    model_args = tables.model.args if tables.model else {}
    for row in find_incompatibilities(Facts(strategy, train, model_args, kind)):
        report.add("does-not-combine", tuple(row.path.split(".")), row.why, row.advice, row.changes)
    if kind == "gpu" and train.precision == "fp64":
        message = phrase("train.precision = fp64 is only for rehearsals on CPU.")
        advice, changes = phrase("Use fp32, or cpu:N for a rehearsal."), {"train.precision": "fp32"}
        report.add("precision", ("train", "precision"), message, advice, changes)
    if kind == "gpu" and rehearsal and rehearsal.pace == "simulated":
        message = phrase("rehearsal.pace = simulated needs virtual devices, but devices.use selects GPUs.")
        advice, changes = phrase('Use pace = "real", or devices.use = "cpu:4".'), {"rehearsal.pace": "real"}
        report.add("does-not-combine", ("rehearsal", "pace"), message, advice, changes)
    num_hosts = len(counts or hosts.use)
    if odd := multi_host.hosts_problem(strategy, num_hosts, counts, hosts.across):
        report.append(odd)
    if num_devices is not None:
        for problem in batch_problems(train, strategy, num_devices):
            report.append(problem)
    return strategy


def _with_mesh(strategy: Choice, num_devices: int) -> Choice:
    """Return the strategy, with default mesh sizes filled in if it has a mesh without sizes."""
    sizes = mesh_sizes.sizes_of(strategy.options).values()
    if not STRATEGIES[strategy.use].has_mesh or math.prod(sizes) > 1:
        return strategy
    return Choice(
        use=strategy.use, options={**strategy.options, **mesh_sizes.default_mesh_sizes(num_devices)}
    )


_UNEVEN_ON_MESH = tr_noop(
    "train.global_batch = {batch} does not divide into {parts} equal parts (train.accumulate = "
    "{accumulate}, data x shard = {slices})."
)
_UNEVEN_ON_DEVICES = tr_noop(
    "train.global_batch = {batch} does not divide into {parts} equal parts (train.accumulate = "
    "{accumulate}, {slices} devices)."
)


def batch_problems(train: TrainConfig, strategy: Choice, num_devices: int) -> list[Problem]:
    """Return the problems with splitting the global batch into microsteps, batch slices and microbatches."""
    card = STRATEGIES[strategy.use]
    # Reported alone: how the batch splits means nothing on an impossible number of devices.
    if problem := _device_count_problem(card, num_devices):
        return [problem]
    options = strategy.options
    if card.has_mesh and (problem := mesh_sizes.mesh_problem(options, num_devices)):
        return [problem]
    slices, stages = card.batch_split(options, num_devices)
    num_parts = train.accumulate * slices
    if train.global_batch % num_parts == 0:
        problem = _stage_problem(train, strategy, num_devices, train.global_batch // slices, stages)
        return [] if problem is None else [problem]
    below = train.global_batch // num_parts * num_parts
    choices = [str(below)] if below else []
    choices.append(str(below + num_parts))
    return [
        Problem(
            "batch",
            phrase(
                _UNEVEN_ON_MESH if card.has_mesh else _UNEVEN_ON_DEVICES,
                batch=train.global_batch,
                parts=num_parts,
                accumulate=train.accumulate,
                slices=slices,
            ),
            path="train.global_batch",
            advice=phrase("Use {choices}.", choices=format_choices(choices)),
            cure={"train.global_batch": below or below + num_parts},
        )
    ]


def _device_count_problem(card: StrategySpec, num_devices: int) -> Problem | None:
    """Return a problem if the strategy cannot run on this number of devices."""
    if num_devices < card.min_devices:
        return Problem(
            "too-few-devices",
            phrase(
                "strategy.use = {strategy} needs {least} devices, but there is only {devices}.",
                strategy=card.name,
                least=card.min_devices,
                devices=num_devices,
            ),
            path="devices.use",
            advice=phrase(
                'Use cpu:{least} for a rehearsal, or strategy.use = "single".', least=card.min_devices
            ),
            cure={"devices.use": f"cpu:{card.min_devices}"},
        )
    if card.one_process and not card.one_device and num_devices > MAX_VIRTUAL_DEVICES:
        return Problem(
            "too-many-devices",
            phrase(
                "strategy.use = {strategy} drives all devices from one process on one machine, "
                "which is not possible for {devices} devices.",
                strategy=card.name,
                devices=num_devices,
            ),
            path="devices.use",
            advice=phrase(
                "Use at most {most} devices, or a strategy with one process per device.",
                most=MAX_VIRTUAL_DEVICES,
            ),
        )
    return None


def _stage_problem(
    train: TrainConfig, strategy: Choice, num_devices: int, batch: int, stages: int
) -> Problem | None:
    """Return a problem if the pipeline's schedule or mode does not allow `batch` or the value of
    train.accumulate."""
    options = strategy.options
    if stages > 1:
        num_microbatches = options.get("microbatches")
        return microbatches.microbatch_problem(
            options["schedule"], stages, batch, train.accumulate, num_microbatches
        )
    if "mode" in options:
        return microbatches.async_pipeline_problem(options["mode"], num_devices, train.accumulate)
    return None
