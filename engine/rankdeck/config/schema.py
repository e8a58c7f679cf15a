"""The tables of a configuration as validated pydantic models, with `RunConfig` as the root.

`RunConfig.to_toml` returns the text of the resolved configuration that is stored with a run. It includes all
defaults, and its paths are absolute, so nothing else is needed to repeat the run. The options of a choice (a
model, a strategy) are validated by its spec in catalog.py. Read loading.py next.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, model_serializer

from rankdeck.base.parsing import TomlTable
from rankdeck.base.units import parse_bytes
from rankdeck.config.catalog import STRATEGIES, StrategySpec
from rankdeck.config.devices import DeviceSelection, parse_devices

DEFAULT_STEPS = 500
"""Steps of a run whose configuration sets neither steps nor epochs."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
PositiveCount = Annotated[int, Field(ge=1, lt=2**53)]  # exact in JSON and in a double


class Table(BaseModel):
    """Base class for tables; unknown keys are rejected."""

    # TOML has inf, which would pass every lower bound.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(Table):
    """A catalog entry by name, with its options in the same table: `{ use = "adamw", lr = 3e-4 }`."""

    use: str
    options: TomlTable = Field(default_factory=dict)

    @model_serializer
    def _as_table(self) -> TomlTable:
        """Serialize the choice as written in TOML, with its options next to `use`."""
        return {"use": self.use, **self.options}


class ModelConfig(Table):
    use: str = "mlp"
    """A catalogue name, or your own "package.module:factory" or "path/to/file.py:factory"."""
    args: TomlTable = Field(default_factory=dict, examples=[{"hidden": [64, 64]}])
    """Arguments of the model; a catalogue model checks their names and bounds."""


class DataConfig(Table):
    use: str = "digits"
    """A catalogue name, or your own "package.module:factory" or "path/to/file.py:factory"."""
    args: TomlTable = Field(default_factory=dict, examples=[{"path": "~/corpus.txt"}])
    """Arguments of the data set; a catalogue data set checks their names and bounds."""
    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """DataLoader workers per rank."""
    pin_memory: bool = True
    """On GPUs, copy batches from page-locked memory."""
    order: Literal["shuffled", "given"] = "shuffled"
    """shuffled: a new order in each epoch, drawn from train.seed. given: always the order of the data set."""
    last: Literal["drop", "keep"] = "drop"
    """What to do with the samples that do not fill the last step of an epoch: drop them, or keep them as a
    shorter step."""
    longest: PositiveCount | None = Field(None, examples=[512])
    """Length of the longest sample, for plans of data that pads each batch to its longest sample."""


class LossConfig(Table):
    use: str = "cross_entropy"
    """A catalogue name, or your own "package.module:function" or "path/to/file.py:function"."""


class TrainConfig(Table):
    steps: PositiveCount | None = Field(
        None,
        examples=[DEFAULT_STEPS],
        description=f"Optimizer steps. {DEFAULT_STEPS} if neither steps nor epochs is set.",
    )
    epochs: PositiveCount | None = Field(None, examples=[10])
    """Passes over the training data; replaces steps."""
    global_batch: PositiveCount = 32
    """Samples per optimizer step, over all devices together."""
    accumulate: PositiveCount = 1
    """Micro-batches per optimizer step: their gradients are added before the optimizer steps."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the weights, of the order of samples, and of dropout."""
    precision: Literal["fp32", "fp64", "bf16", "fp16"] = "fp32"
    """Type of the computation. bf16 and fp16 use autocast: weights and optimizer state stay fp32."""
    allow_tf32: bool = False
    """Let GPUs compute fp32 matrix products in TF32: faster on Ampere and later, with a 10-bit mantissa."""
    optimizer: Choice = Choice(use="adamw")
    schedule: Choice = Choice(use="constant")
    clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """Maximum norm of all gradients together; 0 turns clipping off."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: saves memory, costs time."""
    compile: bool = False
    """Compile the model with torch.compile; only for the strategies single and ddp."""
    verify: Literal["auto", "off", "full"] = "auto"
    """Compare two steps with the same steps on one device before training starts. auto: on a few samples.
    full: on whole batches, however long that takes. off: not at all."""
    checkpoint_every: Count = 0
    """Steps between checkpoints; 0 turns them off. Stopping a run saves one, except with --now."""
    keep_checkpoints: PositiveCount = 3
    """Checkpoints to keep; older ones are deleted."""
    evaluate_every: Count = 100
    """Steps between evaluations; 0 turns them off. The run always ends with one."""

    @property
    def known_steps(self) -> int | None:
        """Number of steps; None if epochs are set, because the number then depends on the data's length."""
        return None if self.epochs is not None else self.steps or DEFAULT_STEPS


class DevicesConfig(Table):
    use: str = "auto"
    """Devices to train on: auto, cpu:4 (four virtual devices), gpu:all, gpu:0,2 or gpu:GPU-<uuid>."""


class RehearsalConfig(Table):
    pace: Literal["real", "simulated"] = "real"
    """real: virtual devices run as fast as the CPU. simulated: each step is stretched to the time that its
    FLOPs would take at device_gflops."""
    device_gflops: Annotated[float, Field(gt=0)] | None = Field(None, examples=[20.0])
    """Simulated speed of a virtual device. By default, a speed that this CPU can keep up with."""
    capacity: str | None = Field(None, examples=["24GiB"])
    """Simulated memory of a virtual device, as in "24GiB"."""


class LaunchConfig(Table):
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] = 60.0
    """Seconds without progress after which a run counts as hanging; see on_hang."""
    on_hang: Literal["stop", "wait", "restart"] = "stop"
    """What to do about a hang. stop: end the run and free its devices. wait: only report the hang. restart:
    resume from the newest checkpoint, at least once."""
    max_restarts: Count = 0
    """How many times a failed run is restarted automatically, from its newest checkpoint."""


class HostsConfig(Table):
    use: list[str] = Field([], examples=[["box1", "box2"]])
    """Hosts to train on: host names for ssh, or localhost. The run's directory is on the first host. Empty:
    this host only."""
    devices: dict[str, str] = Field({}, examples=[{"box2": "gpu:0,1"}])
    """Devices of individual hosts, by host name, if they differ from devices.use."""
    address: str | None = Field(None, examples=["192.168.7.1"])
    """Address at which the other hosts reach the first one, if it differs from the one in ssh's
    configuration."""
    min: PositiveCount | None = Field(None, examples=[1])
    """Minimum number of hosts that a restart may use after other hosts are lost (see launch.max_restarts). By
    default, all hosts."""
    across: list[Literal["shard", "tensor"]] = Field([], examples=[["tensor"]])
    """Axes of a mesh that may span hosts. Both axes cause heavy traffic, so they stay within one host by
    default."""

    def selections(self, devices: DevicesConfig) -> dict[str, DeviceSelection]:
        """Return a mapping from host names to device selections. If the table lists no hosts, the only key is
        "" (this host)."""
        return {name: parse_devices(self.devices.get(name, devices.use)) for name in self.use or [""]}

    def counts(self, devices: DevicesConfig) -> list[int] | None:
        """Return the device count of each host, or of this host alone if the table lists no hosts.

        Returns None if a count depends on the machine.
        """
        counts = [selection.known_count for selection in self.selections(devices).values()]
        known_counts = [count for count in counts if count is not None]
        return known_counts if len(known_counts) == len(counts) else None


class RunConfig(Table):
    """A complete, validated configuration of a run. Create it with `load` or `from_dict`, not directly."""

    name: str = Field("", examples=["my-run"])
    """Name of the run. By default the name of the configuration file."""
    folder: str | None = Field(None, examples=["~/project"])
    """Folder that relative paths and your own modules are resolved against. By default the folder of the
    configuration file."""
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
        """Number of devices; None if it depends on the machine."""
        counts = self.hosts.counts(self.devices)
        return None if counts is None else sum(counts)

    @property
    def strategy_spec(self) -> StrategySpec:
        return STRATEGIES[self.strategy.use]

    @property
    def capacity_bytes(self) -> int | None:
        return None if self.rehearsal.capacity is None else parse_bytes(self.rehearsal.capacity)

    def code_folders(self) -> list[Path]:
        """Return the resolved folders whose Python code this run imports; the user is asked to trust these.

        Empty for a run that uses the catalog alone.
        """
        folders: list[Path] = []
        base = Path(self.folder or ".")
        for use in self.user_code():
            module = use.rpartition(":")[0]
            folder = ((base / module).parent if module.endswith(".py") else base).resolve()
            if folder not in folders:
                folders.append(folder)
        return folders

    def user_code(self) -> list[str]:
        """Return the references to user code, "module:attribute"."""
        return [use for use, _ in self.user_calls().values()]

    def user_calls(self) -> dict[str, tuple[str, TomlTable]]:
        """Return the calls to user code as (reference, arguments), keyed by "model", "data", "loss" or
        "optimizer"."""
        used = {
            "model": (self.model.use, self.model.args),
            "data": (self.data.use, self.data.args),
            "loss": (self.loss.use, {}),
            "optimizer": (self.train.optimizer.use, self.train.optimizer.options),
        }
        return {section: call for section, call in used.items() if ":" in call[0]}

    def to_dict(self) -> TomlTable:
        """Return the tables as written in TOML, without None values."""
        tables = self.model_dump(exclude_none=True)
        return (
            tables
            if self.hosts != HostsConfig()
            else {name: tables[name] for name in tables if name != "hosts"}
        )

    def to_toml(self) -> str:
        return tomlkit.dumps(self.to_dict())
