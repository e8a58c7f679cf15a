"""List a plan's candidates: strategies, their options, and the configuration of each.

Each strategy's spec lists the options worth planning: its defaults, and the options that change its memory
use most.
The configuration's own strategy comes first, unchanged; candidates are planned in order of planning cost.
Read pool.py next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankdeck.base.errors import ConfigError, did_you_mean, format_choices
from rankdeck.base.parsing import TomlTable
from rankdeck.base.phrases import phrase
from rankdeck.base.units import format_setting
from rankdeck.config import RunConfig, from_dict
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.gpu_models import GpuModel, Rates, gpu_model
from rankdeck.config.planning import StrategyOptions
from rankdeck.events import DeviceInfo
from rankdeck.run.plan_lines import FITS, TIGHT, PlanLine
from rankdeck.telemetry.gpu_status import GpuStatus

ALL, OWN = "all", "own"
MAX_BATCH = 2**20
_MAX_BISECTIONS = 12


@dataclass(frozen=True)
class Candidate:
    """One way to train: a strategy, its `options`, and `changes` (new values by dotted configuration key)."""

    strategy: str
    options: StrategyOptions = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    configured: bool = False

    @property
    def label(self) -> str:
        """The strategy and its non-default options: 'pipeline, schedule = 1f1b'."""
        card = STRATEGIES[self.strategy]
        options = card.non_default_options(self.options)
        key = card.planning.label_option
        if key is not None and not options:
            options = {key: getattr(card.options(), key)}
        return ", ".join([self.strategy, *itertools.starmap(format_setting, options.items())])

    def make_config(self, base: RunConfig, target: Target) -> RunConfig:
        """Return the configuration of a run of this candidate.

        Raises:
            ConfigError: the options, the batch or the devices are incompatible.
        """
        tables = base.to_dict()
        tables["strategy"] = {"use": self.strategy, **self.options}
        tables |= target.to_tables(base.hosts.across)
        tables["rehearsal"] = {}
        for key, value in self.changes.items():
            *sections, name = key.split(".")
            table = tables
            for section in sections:
                table = table[section]
            table[name] = value
        folder = Path(base.folder or ".")
        config = from_dict(tables, folder=folder)
        if config.train.compile:  # checked above, but a plan runs without it
            tables["train"]["compile"] = False
            config = from_dict(tables, folder=folder)
        return config


def candidates_for(config: RunConfig, selection: str | None, num_devices: int) -> list[Candidate]:
    """Return the candidates that `--strategy` names.

    `selection` is "all" (or None), "own" for the configuration's strategy alone, or comma-separated names.

    Raises:
        ConfigError: a name is unknown.
    """
    strategy = config.strategy
    candidates = [Candidate(strategy.use, dict(strategy.options), configured=True)]
    if selection == OWN:
        return candidates
    names = list(STRATEGIES)
    if selection is not None and selection != ALL:
        names = [name.strip() for name in selection.split(",")]
        for name in names:
            if name not in STRATEGIES:
                raise ConfigError(
                    phrase('"{name}" is not a strategy.', name=name),
                    code="unknown-strategy",
                    path="strategy.use",
                    advice=did_you_mean(name, STRATEGIES)
                    or phrase(
                        'Use "all", "own", or strategies separated by commas: {names}.',
                        names=format_choices(STRATEGIES),
                    ),
                )
    if strategy.use not in names:
        candidates = []
    for name in names:
        for options in STRATEGIES[name].planning.variants(num_devices):
            candidate = Candidate(name, options)
            if all(candidate.label != other.label for other in candidates):
                candidates.append(candidate)
    return candidates


def planning_cost(config: RunConfig, num_devices: int) -> tuple[int, bool]:
    """Return a sort key that puts the configuration with the shortest planning time first.

    The key is (number of times that a step executes the whole model, whether there is a process group).
    """
    card, options = config.strategy_spec, config.strategy.options
    slices, stages = card.batch_split(options, num_devices)
    replicas = slices if card.one_process else 1
    return replicas * num_microbatches(options, stages), not card.one_process


def num_microbatches(options: StrategyOptions, stages: int) -> int:
    """Return the number of microbatches in a replica's batch."""
    return int(options.get("microbatches") or 2 * stages) if stages > 1 else 1


def representative_ranks(
    equal_ranks: str, options: StrategyOptions, num_devices: int, alike: Sequence[int] = ()
) -> dict[int, int]:
    """Return, for every rank, the rank whose plan also applies to it.

    `equal_ranks` is the rule in the strategy's spec. In a mesh, replicas and the ranks of one tensor group
    have tensors of equal shapes; stages differ. `alike` gives, for every slice of sharded weights, the index
    of the first slice with the same shapes; if `alike` is empty, all slices are treated as equal to the first
    slice.
    """
    if equal_ranks == "all":
        return dict.fromkeys(range(num_devices), 0)
    slices = alike or (0,) * num_devices
    if equal_ranks == "slices":
        return {rank: slices[rank] for rank in range(num_devices)}
    if equal_ranks == "mesh":
        shard, stage, tensor = (int(options.get(axis, 1)) for axis in ("shard", "stage", "tensor"))
        same = {}
        for rank in range(num_devices):
            at_stage = rank // tensor % stage
            at_shard = slices[rank // (tensor * stage) % shard]
            same[rank] = (at_shard * stage + at_stage) * tensor
        return same
    return {rank: rank for rank in range(num_devices)}


# The target of a plan: devices with their size and speed, whether GPU rules apply, and memory used by others.


@dataclass(frozen=True)
class TargetDevice:
    """A device to plan for.

    `total_bytes` is the usable memory, None if unspecified; `gpu` is None for a virtual device.
    """

    name: str | None
    total_bytes: int | None
    others_bytes: int = 0
    gpu: GpuModel | None = None

    @classmethod
    def of_gpu(cls, gpu: DeviceInfo | GpuStatus, others_bytes: int = 0) -> TargetDevice:
        """Return the target device for an existing GPU, of which other processes use `others_bytes`; its
        total memory excludes what the driver reserves."""
        total_bytes = None if gpu.total_bytes is None else gpu.total_bytes - (gpu.driver_bytes or 0)
        return cls(gpu.name, total_bytes, others_bytes, gpu_model(gpu.name, total_bytes))

    @property
    def room_bytes(self) -> int | None:
        """Memory available to a run, None if unspecified."""
        return None if self.total_bytes is None else self.total_bytes - self.others_bytes

    @property
    def kind(self) -> tuple[GpuModel | None, int | None]:
        """Key shared by equal devices, which need the same memory for the same tensors."""
        return self.gpu, self.room_bytes

    @property
    def rates(self) -> Rates | None:
        return None if self.gpu is None else self.gpu.rates


@dataclass(frozen=True)
class Target:
    """The devices to plan for.

    `name` is for display ("8 x A100-80GB"). `like_cuda` is true if the devices are GPUs, on this machine or
    another. `host_bytes` is this machine's free memory if virtual devices share it, else None. `by_host` maps
    each host of a run on several hosts to its number of devices.
    """

    name: str
    devices: tuple[TargetDevice, ...]
    like_cuda: bool
    host_bytes: int | None = None
    by_host: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return len(self.devices)

    def to_tables(self, across: Sequence[str]) -> TomlTable:
        """Return the configuration tables for these devices and hosts, for a check by the configuration
        rules. `across` lists the mesh axes whose groups may span hosts."""
        hosts = {name: self._devices_option(count) for name, count in self.by_host.items()}
        of_hosts = {"use": list(hosts), "devices": hosts, "across": list(across)} if hosts else {}
        return {"devices": {"use": self._devices_option(self.num_devices)}, "hosts": of_hosts}

    def _devices_option(self, count: int) -> str:
        return "gpu:" + ",".join(map(str, range(count))) if self.like_cuda else f"cpu:{count}"


# The largest batch that fits

PlanFn = Callable[[Sequence[Candidate]], Iterator[PlanLine]]


def largest_batch(candidate: Candidate, base: RunConfig, target: Target, plan: PlanFn) -> int | None:
    """Return the largest train.global_batch that fits on every device; None if even the smallest does not
    fit.

    The search doubles the size, then bisects between the last size that fits and the first that does not.
    All sizes are multiples of the smallest batch, which `least_batch` returns.
    """
    unit = least_batch(candidate.make_config(base, target), target.num_devices)

    def fits(count: int) -> bool:
        # "drop": each size leaves another shorter last step, which needs no more memory than a full one.
        changed = {**candidate.changes, "train.global_batch": count * unit, "data.last": "drop"}
        (line,) = plan([Candidate(candidate.strategy, candidate.options, changed)])
        return line.verdict in (FITS, TIGHT)

    low, high = 0, 1
    while high * unit <= MAX_BATCH and fits(high):
        low, high = high, 2 * high
    for _ in range(_MAX_BISECTIONS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * unit or None


def least_batch(config: RunConfig, num_devices: int) -> int:
    """Return the smallest batch: one sample per microbatch, in each microstep, on each device."""
    options = config.strategy.options
    shards, stages = config.strategy_spec.batch_split(options, num_devices)
    return math.prod((config.train.accumulate, shards, num_microbatches(options, stages)))


def bytes_outside_allocator(config: RunConfig, device: TargetDevice, num_devices: int) -> int:
    """Return the memory outside torch's allocator: the CUDA context, and NCCL's buffers if they are used."""
    if device.gpu is None:
        return 0
    card = config.strategy_spec
    talks = num_devices > 1 and card.planning.uses_nccl and not card.one_device
    return device.gpu.context_bytes + (device.gpu.nccl_bytes if talks else 0)
