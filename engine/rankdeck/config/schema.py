"""The tables of a configuration as validated models, whole in `RunConfig`.

`RunConfig.to_toml` writes the resolved copy that a run keeps: all defaults spelled out, paths absolute,
enough to run it again alone. Options of a card (a model, a strategy) are validated by the card in catalog.py.
Read loading.py next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, model_serializer

from rankdeck.base.parsing import TomlTable
from rankdeck.base.units import parse_bytes
from rankdeck.config.catalog import STRATEGIES, StrategyCard
from rankdeck.config.devices import DeviceSelection, parse_devices

DEFAULT_STEPS = 500
"""Of a run whose configuration names neither steps nor epochs."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]  # what JSON and a double still count exactly


class Table(BaseModel):
    """A table that refuses what it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(Table):
    """A card by name with its options beside it: `{ use = "adamw", lr = 3e-4 }`."""

    use: str
    options: TomlTable = Field(default_factory=dict)

    @model_serializer
    def _as_table(self) -> TomlTable:
        """As a person writes it: the options beside `use`."""
        return {"use": self.use, **self.options}


class ModelConfig(Table):
    use: str = "mlp"
    """A catalogue name, or your own "package.module:factory" or "path/to/file.py:factory"."""
    args: TomlTable = Field(default_factory=dict)


class DataConfig(Table):
    use: str = "digits"
    """digits, text, images, synthetic, or your own "module:factory"."""
    args: TomlTable = Field(default_factory=dict)
    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """DataLoader workers per rank."""
    pin_memory: bool = True
    """Page-locked batches, on GPUs."""
    order: Literal["shuffled", "given"] = "shuffled"
    """Another order in each epoch, by train.seed, or always that of the data set."""
    last: Literal["drop", "keep"] = "drop"
    """The samples behind the last whole step of an epoch: left out, or a shorter step of their own."""
    longest: AtLeastOne | None = None
    """Length of the longest sample that can come, for plans, where batches are padded to their longest."""


class LossConfig(Table):
    use: str = "cross_entropy"
    """cross_entropy, mse, model, or your own "module:function"."""


class TrainConfig(Table):
    steps: AtLeastOne | None = Field(
        None, description=f"Optimizer steps; {DEFAULT_STEPS} where neither steps nor epochs is given."
    )
    epochs: AtLeastOne | None = None
    """Passes over the training data, instead of steps."""
    global_batch: AtLeastOne = 32
    """Samples that one optimizer step sees, on all devices together."""
    accumulate: AtLeastOne = 1
    """Parts that the global batch is cut into, one after another."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    precision: Literal["fp32", "fp64", "bf16", "fp16"] = "fp32"
    allow_tf32: bool = False
    """Compute matrix products of fp32 on GPUs in TF32: faster from Ampere on, with 10 bits of a mantissa."""
    optimizer: Choice = Choice(use="adamw")
    schedule: Choice = Choice(use="constant")
    clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """Largest norm of all gradients together; 0 is off."""
    activation_checkpointing: bool = False
    """Recompute activations in backward: less memory, more time."""
    compile: bool = False
    verify: Literal["auto", "off", "full"] = "auto"
    """Before the first step, compare two steps with one device: on few samples, not at all, or on whole
    batches however long that takes."""
    checkpoint_every: Count = 0
    """Steps between checkpoints; 0 is off."""
    keep_checkpoints: AtLeastOne = 3
    evaluate_every: Count = 100
    """Steps between evaluations; 0 is off. A last evaluation always runs."""

    @property
    def known_steps(self) -> int | None:
        """How many steps there are; None with epochs, where only the data's length can tell."""
        return None if self.epochs is not None else self.steps or DEFAULT_STEPS


class DevicesConfig(Table):
    use: str = "auto"
    """auto, cpu:4, gpu:all, gpu:0,2 or gpu:GPU-<uuid>."""


class RehearsalConfig(Table):
    pace: Literal["real", "simulated"] = "real"
    """simulated: each virtual device takes the time that its FLOPs need, in its shape."""
    device_gflops: Annotated[float, Field(gt=0)] | None = None
    """How fast a virtual device pretends to be; chosen so that it holds by default."""
    capacity: str | None = None
    """The size that virtual devices pretend to have, as in "24GiB"."""


class LaunchConfig(Table):
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """Longest time without progress before a run that hangs is ended."""
    on_hang: Literal["stop", "wait", "restart"] = "stop"
    """stop: its devices are free again, and what it did after its newest checkpoint is lost. wait: it is only
    told. restart: it goes on from its newest checkpoint, at least once."""
    max_restarts: Count = 0
    """How often a run goes on by itself after a rank failed, from its newest checkpoint."""


class HostsConfig(Table):
    use: list[str] = []
    """Names that ssh knows, or localhost. The first one has the run; none: it is of this host alone."""
    devices: dict[str, str] = {}
    """By its name, what a host has in place of devices.use."""
    address: str | None = None
    """Where the others reach the first one, where that is another address than ssh's."""
    min: AtLeastOne | None = None
    """Where launch.max_restarts allows it, the run goes on with so many where others are lost; with all where
    it is not given."""
    across: list[Literal["shard", "tensor"]] = []
    """Axes that may lie over hosts: what they send is much, and stays inside of one otherwise."""

    def selections(self, devices: DevicesConfig) -> dict[str, DeviceSelection]:
        """What each host brings; "" is this one alone, where none is named."""
        return {name: parse_devices(self.devices.get(name, devices.use)) for name in self.use or [""]}

    def counts(self, devices: DevicesConfig) -> list[int] | None:
        """Devices of each host, of this one alone where none is named; None where that depends on what there
        is."""
        counts = [one.known_count for one in self.selections(devices).values()]
        known = [count for count in counts if count is not None]
        return known if len(known) == len(counts) else None


class RunConfig(Table):
    """One run, whole and validated. Make it with `load` or `from_dict`, never by hand."""

    name: str = ""
    """What a person calls it; where it is not given the file's name, and for a preset empty (naming.py)."""
    folder: str | None = None
    """Where relative paths start and your own modules are looked for."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    loss: LossConfig = LossConfig()
    train: TrainConfig = TrainConfig()
    strategy: Choice = Choice(use="single")
    devices: DevicesConfig = DevicesConfig()
    rehearsal: RehearsalConfig = RehearsalConfig()
    launch: LaunchConfig = LaunchConfig()
    hosts: HostsConfig = HostsConfig()

    @property
    def selection(self) -> DeviceSelection:
        return parse_devices(self.devices.use)

    @property
    def known_count(self) -> int | None:
        """The number of devices where it does not depend on what a machine has."""
        counts = self.hosts.counts(self.devices)
        return None if counts is None else sum(counts)

    @property
    def strategy_card(self) -> StrategyCard:
        return STRATEGIES[self.strategy.use]

    @property
    def capacity_bytes(self) -> int | None:
        return None if self.rehearsal.capacity is None else parse_bytes(self.rehearsal.capacity)

    def code_folders(self) -> list[Path]:
        """Folders, resolved, whose Python code this run imports; a person is asked to trust these.

        Empty for a run that uses the catalogue alone.
        """
        folders: list[Path] = []
        base = Path(self.folder or ".")
        for use in self.own_code():
            module = use.rpartition(":")[0]
            folder = ((base / module).parent if module.endswith(".py") else base).resolve()
            if folder not in folders:
                folders.append(folder)
        return folders

    def own_code(self) -> list[str]:
        """What is used that is a person's own, "module:attribute"."""
        return [use for use, _ in self.own_calls().values()]

    def own_calls(self) -> dict[str, tuple[str, TomlTable]]:
        """By part, what is used that is a person's own, with what it is called with."""
        used = {
            "model": (self.model.use, self.model.args),
            "data": (self.data.use, self.data.args),
            "loss": (self.loss.use, {}),
            "optimizer": (self.train.optimizer.use, self.train.optimizer.options),
        }
        return {part: call for part, call in used.items() if ":" in call[0]}

    def to_dict(self) -> TomlTable:
        """The tables as a person writes them, without what is None."""
        told = self.model_dump(exclude_none=True)
        return told if self.hosts != HostsConfig() else {name: told[name] for name in told if name != "hosts"}

    def to_toml(self) -> str:
        return tomlkit.dumps(self.to_dict())
