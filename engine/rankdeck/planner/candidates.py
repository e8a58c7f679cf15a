"""The candidates of a plan: which strategies, with which options, and the configuration of each of them.

What is sensible stands on each strategy's card: its defaults, and the options that change what it needs most.
The configuration's own strategy comes first, as it is; they are planned by effort. Read pool.py next.
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
    """One way to train. `changes` are dotted keys of the configuration beside the strategy."""

    strategy: str
    options: StrategyOptions = field(default_factory=dict)
    changes: Mapping[str, object] = field(default_factory=dict)
    configured: bool = False

    @property
    def label(self) -> str:
        """'pipeline, schedule = 1f1b': the strategy and what is not its default."""
        card = STRATEGIES[self.strategy]
        shown = card.non_default_options(self.options)
        key = card.planning.label_option
        if key is not None and not shown:
            shown = {key: getattr(card.options(), key)}
        return ", ".join([self.strategy, *itertools.starmap(format_setting, shown.items())])

    def make_config(self, base: RunConfig, target: Target) -> RunConfig:
        """The configuration of a run of this candidate.

        Raises: ConfigError where the options, the batch or the devices do not go together.
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
        if config.train.compile:  # which may be refused here, and is left out where it is not
            tables["train"]["compile"] = False
            config = from_dict(tables, folder=folder)
        return config


def candidates_for(config: RunConfig, wanted: str | None, num_devices: int) -> list[Candidate]:
    """The candidates of `--strategy`: "all" (or nothing), "own" for the configuration's alone, or names with
    commas between them.

    Raises: ConfigError for an unknown name.
    """
    own = config.strategy
    candidates = [Candidate(own.use, dict(own.options), configured=True)]
    if wanted == OWN:
        return candidates
    names = list(STRATEGIES)
    if wanted is not None and wanted != ALL:
        names = [name.strip() for name in wanted.split(",")]
        for name in names:
            if name not in STRATEGIES:
                raise ConfigError(
                    phrase('"{name}" is not a strategy.', name=name),
                    code="unknown-strategy",
                    path="strategy.use",
                    advice=did_you_mean(name, STRATEGIES)
                    or phrase("Use all, own, or {names}.", names=format_choices(STRATEGIES)),
                )
    if own.use not in names:
        candidates = []
    for name in names:
        for options in STRATEGIES[name].planning.variants(num_devices):
            candidate = Candidate(name, options)
            if all(candidate.label != known.label for known in candidates):
                candidates.append(candidate)
    return candidates


def planning_cost(config: RunConfig, num_devices: int) -> tuple[int, bool]:
    """What sorts configurations by how long a plan of them takes: how often the whole model runs in a step,
    and whether there is a process group.
    """
    card, options = config.strategy_spec, config.strategy.options
    slices, stages = card.batch_split(options, num_devices)
    replicas = slices if card.one_process else 1
    return replicas * num_microbatches(options, stages), not card.one_process


def num_microbatches(options: StrategyOptions, stages: int) -> int:
    """Into how many microbatches a replica's batch is cut."""
    return int(options.get("microbatches") or 2 * stages) if stages > 1 else 1


def representative_ranks(
    equal_ranks: str, options: StrategyOptions, num_devices: int, alike: Sequence[int] = ()
) -> dict[int, int]:
    """For every rank the rank whose figures are its own as well.

    Replicas and ranks of one tensor group hold equal shapes; stages differ. `alike` says for every slice of
    sharded weights which slice is like it; without it all are taken for the first.
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


# What is planned for: devices, their size and speed, whether GPU rules hold, and who else is on them.


@dataclass(frozen=True)
class TargetDevice:
    """`total_bytes` is what programs can have, None where nobody named a size; `gpu` is None for a virtual
    device."""

    name: str | None
    total_bytes: int | None
    others_bytes: int = 0
    gpu: GpuModel | None = None

    @classmethod
    def of_gpu(cls, gpu: DeviceInfo | GpuStatus, others_bytes: int = 0) -> TargetDevice:
        """Return a GPU that is there, without the memory that its driver keeps."""
        total_bytes = None if gpu.total_bytes is None else gpu.total_bytes - (gpu.driver_bytes or 0)
        return cls(gpu.name, total_bytes, others_bytes, gpu_model(gpu.name, total_bytes))

    @property
    def room_bytes(self) -> int | None:
        """What is there for a run, None where nobody named a size."""
        return None if self.total_bytes is None else self.total_bytes - self.others_bytes

    @property
    def kind(self) -> tuple[GpuModel | None, int | None]:
        """Devices of one kind need the same for the same tensors."""
        return self.gpu, self.room_bytes

    @property
    def rates(self) -> Rates | None:
        return None if self.gpu is None else self.gpu.rates


@dataclass(frozen=True)
class Target:
    """`name` name it for people ("8 x A100-80GB"). `like_cuda`: these are GPUs, whoever has them.

    `host_bytes`: the memory that virtual devices have together, None where that is not this machine's.
    `by_host`: how many of the devices each host has, in a run of several.
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
        """What a configuration for it says of devices and hosts, so that it is refused what these refuse."""
        hosts = {name: self._devices_option(count) for name, count in self.by_host.items()}
        of_hosts = {"use": list(hosts), "devices": hosts, "across": list(across)} if hosts else {}
        return {"devices": {"use": self._devices_option(self.num_devices)}, "hosts": of_hosts}

    def _devices_option(self, count: int) -> str:
        return "gpu:" + ",".join(map(str, range(count))) if self.like_cuda else f"cpu:{count}"


# The largest batch that fits

PlanFn = Callable[[Sequence[Candidate]], Iterator[PlanLine]]


def largest_batch(candidate: Candidate, base: RunConfig, target: Target, plan: PlanFn) -> int | None:
    """The largest train.global_batch of which every device has room; None where not even the least has.

    Doubling, then halving between the last that fits and the first that does not; sizes are multiples of what
    devices, parts and microbatches cut the batch into.
    """
    unit = least_batch(candidate.make_config(base, target), target.num_devices)

    def fits(count: int) -> bool:
        # Each size leaves another last step to an epoch, which needs no more than a whole one.
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
    """The least batch: every device, part and microbatch gets one sample."""
    options = config.strategy.options
    shards, stages = config.strategy_spec.batch_split(options, num_devices)
    return math.prod((config.train.accumulate, shards, num_microbatches(options, stages)))
