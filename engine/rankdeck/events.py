"""Define the event types and convert each to one JSON line and back.

An event is one appended record. Each writer (a rank, the supervisor, the sampler) has its own file and
numbers its lines with a contiguous `seq`; `v` is the version of this format, `t` is Unix time in seconds. A
line of steps stores several of them as columns and takes 12 bytes per step; a line per step would take 104
bytes. Readers skip, count and report events of unknown kinds and of newer versions. run_dir/ appends the
lines and reads them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, get_args

import msgspec

from rankdeck.base.allocations import Allocation
from rankdeck.base.errors import Problem
from rankdeck.base.memory_kinds import MEMORY_KINDS as MEMORY_KINDS
from rankdeck.base.parsing import check_depth, decode_json, encode_json
from rankdeck.base.phrases import tr_noop

VERSION = 1

UNATTRIBUTED = "unattributed"
"""In a user script, the memory kind of tensors whose owner was not found."""

MEASURED_IN_REHEARSAL = tr_noop("measured in rehearsal")
MEASURED_ON_GPU = tr_noop("measured on GPU")
FOLLOWED = tr_noop("measured in full observation")
"""Source of a user script's memory values when every operation of the step was tracked."""
OWNERS_SEEN = tr_noop("owners seen on CPU")
"""Source of a user script's memory values that count only tensors with known owners: the peak is unknown."""

CONFIGURATION, SCRIPT = "configuration", "script"
"""Sources of a run: a configuration, or an unmodified user script."""
ASKED_TO_STOP = tr_noop("asked to stop")
"""End reason of a rank that itself received SIGTERM; ranks that stop along with it report "stopped"."""
OUTPUT_LOST = "output-lost"
"""Problem code: a script's output no longer reaches the stdout or stderr of the command that started it."""

# The years 1900 and 9892.
EARLIEST, LATEST = -2_200_000_000, 250_000_000_000
UnixTime = Annotated[float, msgspec.Meta(ge=EARLIEST, le=LATEST)]
"""Seconds since 1970, limited to four-digit years; a clock that was never set may show a time before 1970."""


# Lines omit defaults, so the default of a field must never change: it would change the meaning of old files.
class Event(msgspec.Struct, tag_field="kind", omit_defaults=True, kw_only=True):
    """Fields that every line has. Writers fill in `seq` and `t`."""

    # A higher version fails the validation, which leads decode() to its check for unknown events.
    v: Annotated[int, msgspec.Meta(le=VERSION)] = VERSION
    seq: int = 0
    t: UnixTime = 0.0

    def __deepcopy__(self, _memo: object) -> Self:
        """Return the event itself: events are immutable, so a copied container can share them with the
        original."""
        return self


class DeviceInfo(msgspec.Struct, omit_defaults=True):
    """A device of a run.

    `index` is its device index in the run (0 is the lead device); `uuid` is None for a virtual device.
    `driver_bytes` is the part of `total_bytes` that a GPU's driver reserves; `host` is the device's host, ""
    in a run on one host.
    """

    index: int
    name: str
    kind: str  # gpu | virtual
    uuid: str | None = None
    total_bytes: int | None = None
    driver_bytes: int | None = None
    host: str = ""

    @property
    def title(self) -> str:
        return f"{self.host} {self.name}".lstrip()


class RunStarted(Event, tag="run_started"):
    """The start of an attempt, written by the supervisor.

    `started` is when the user's command started (Unix seconds); `steps` is None if the run is configured in
    epochs. If `source` is SCRIPT, strategy, steps and global batch are not known in advance, and `world_size`
    is the requested number of ranks: a script may start more ranks itself. `cores` is the number of CPU cores
    that the ranks share.
    """

    run: str
    attempt: int
    world_size: int
    devices: list[DeviceInfo]
    started: UnixTime
    strategy: str | None = None
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    steps: int | None = None
    global_batch: int | None = None
    pace: str = "real"  # real | simulated
    source: str = CONFIGURATION
    cores: int | None = None

    def __post_init__(self) -> None:
        check_depth(self.options)


class RankStarted(Event, tag="rank_started"):
    """The start of a rank.

    `devices` are the indices of the devices that the rank uses; `uuids` are read from the devices themselves.
    In an observed script, `world_size` is that of the rank's process group. `stack_signal` is the signal that
    makes the rank write the stacks of all its threads to logs/rank-<r>.<attempt>.stacks; None if no signal
    does. `threads` is the number of CPU threads that torch uses on this rank.
    """

    rank: int
    pid: int
    devices: list[int]
    uuids: list[str | None] = msgspec.field(default_factory=list)
    phase: str = tr_noop("started")
    world_size: int | None = None
    stack_signal: int | None = None
    threads: int | None = None


class Phase(Event, tag="phase"):
    """A rank's activity before or after its steps, such as 'loading data' or 'saving weights'.

    `steps` is the number of steps of the whole run, reported once the data is known; `samples` is the number
    of training samples, and `left_out` the number of samples that an epoch's steps do not use.
    """

    rank: int
    phase: str
    steps: int | None = None
    samples: int | None = None
    left_out: int | None = None


class Verified(Event, tag="verified"):
    """Result of the check before the first step: two steps under the strategy, compared with the same two
    steps on one device.

    `outcome`: equal | noted (different for a reason inherent in the strategy) | differs (the run is refused)
    | unchecked (`why` gives the reason). `cause`: batch-norm | samples | loss | state | forward | gradient |
    optimizer | unknown | staleness | compress; `names` are the tensors that differ most. `largest` is the
    largest absolute difference of any weight after `steps` steps of `samples` samples each, in `precision`.
    `layers` is the maximum number of layers of each kind that were compared; None means all.
    """

    rank: int
    outcome: str
    cause: str | None = None
    names: list[str] = msgspec.field(default_factory=list)
    largest: float | None = None
    precision: str | None = None
    samples: int = 0
    steps: int = 2
    seconds: float = 0.0
    why: str | None = None
    layers: int | None = None


class Restored(Event, tag="restored"):
    """A rank has restored its state and continues after `step` (0: from the beginning).

    The steps after `step` that earlier attempts recorded are no longer valid.
    """

    rank: int
    step: int


class Steps(Event, tag="steps"):
    """Consecutive steps of one rank as columns.

    Entry i is step `first + i` (the first step of a run is 1). `loss_sum` and `count` are this rank's share
    of the global batch, or None if the rank does not report a loss. A step's loss is the sum of all reporting
    ranks' `loss_sum` divided by the sum of their `count`. `step_s` is the wall time since the end of the
    previous step; `ended` contains the Unix times at which the steps ended. `wait_s` is the part of a step
    spent in the data loader, and `backwards` the number of backward passes in the step; both exist for
    observed scripts only. In an observed script, a step that was not sampled has no loss, gradient norm or
    learning rate (None), and no samples if no loader reports them.
    """

    rank: int
    first: int
    loss_sum: list[float | None] | None = None
    count: list[float] | None = None
    lr: list[float | None] = msgspec.field(default_factory=list)
    samples: list[int | None] = msgspec.field(default_factory=list)
    step_s: list[float] = msgspec.field(default_factory=list)
    ended: list[float] = msgspec.field(default_factory=list)
    grad_norm: list[float | None] | None = None
    wait_s: list[float] | None = None
    backwards: list[int] | None = None


class DeviceMemory(msgspec.Struct, omit_defaults=True):
    """Bytes of one device in one sampled step.

    The values of `peak_by_kind` add up to `peak_bytes`; `peak_by_kind` is None if the kinds are unknown.
    """

    device: int
    live_bytes: int
    peak_bytes: int
    live_by_kind: dict[str, int] | None = None
    peak_by_kind: dict[str, int] | None = None
    reserved_bytes: int | None = None
    peak_reserved_bytes: int | None = None


class Memory(Event, tag="memory"):
    """Memory of a rank's devices in a sampled step (step 0: after the model was built)."""

    rank: int
    step: int
    source: str
    devices: list[DeviceMemory]


class ProcessUse(msgspec.Struct, omit_defaults=True):
    """A process on a GPU. `used_bytes` is None if the driver does not report it.

    `foreign`: the pid belongs to another namespace (another container, or the host), so `name` is None.
    `type`: compute | graphics. `rank` is set if the process is a rank of the run that this sampler belongs
    to. `user`, `command` (without anything that looks like a secret) and `host_bytes` are filled in only for
    processes on this machine and are not stored in runs.
    """

    pid: int
    name: str | None = None
    used_bytes: int | None = None
    type: str = "compute"
    foreign: bool = False
    rank: int | None = None
    user: str | None = None
    command: str | None = None
    host_bytes: int | None = None


class DeviceSample(msgspec.Struct, omit_defaults=True):
    """One reading of one device. A field is None if it was not read this time; its last value remains valid.

    `utilisation` (0..1) is the fraction of time that a GPU's SMs or, in a rehearsal, the device's thread was
    busy. `throttle` is NVML's bit mask of throttle reasons. `missing` maps each metric without a value to the
    reason ("unsupported", "error: ..."); {} means that no metric is missing, None that the mapping has not
    changed. `processes` are all processes that hold memory on the device.
    """

    device: int
    utilisation: float | None = None
    used_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    memory_utilisation: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: int | None = None
    fan: float | None = None
    ecc_errors: int | None = None
    missing: dict[str, str] | None = None
    processes: list[ProcessUse] | None = None


class Sample(Event, tag="sample"):
    """Readings of devices; `utilisation` is measured over the `interval_s` seconds before `t`."""

    devices: list[DeviceSample]
    interval_s: float
    rank: int | None = None


class DeviceNotice(Event, tag="device_notice"):
    """An event of a device, or of the device reader itself (`device` is then None).

    `code`: lost | back | xid | slow | restarted | no-driver | driver, as in telemetry/readings.py. If the
    user has to know about a notice, a problem follows it.
    """

    code: str
    message: str
    device: int | None = None
    xid: int | None = None


class Comm(Event, tag="comm"):
    """Bytes that this rank sends per step with one algorithm.

    `measured` is False if the bytes are computed from a formula. `by_peer` is indexed by the receiving rank.
    `sync_s` is the time of one step's gradient sync from its first to its last byte, `overlapped_s` the part
    of it that overlapped with the backward pass; both are None if not measured.
    """

    rank: int
    step: int
    algorithm: str
    sent_bytes: int
    measured: bool = True
    by_peer: dict[str, int] | None = None
    sync_s: float | None = None
    overlapped_s: float | None = None


class Pipeline(Event, tag="pipeline"):
    """Measurements of this rank's pipeline, and the theoretical bubble.

    `in_flight` is the largest number of microbatches whose activations the rank held at the same time.
    `theory_bubble` is the fraction of a step that ranks spend waiting according to the schedule, None for a
    pipeline without a flush. `weight_versions` (the largest number held at the same time) and `staleness` (in
    updates) are set only for a pipeline without a flush.
    """

    rank: int
    step: int
    stages: list[int]
    microbatches: int
    in_flight: int
    theory_bubble: float | None = None
    weight_versions: int | None = None
    staleness: int | None = None


class Spans(Event, tag="spans"):
    """Named phases of a rank's devices in one sampled step, as columns.

    Entry i is phase `names[name[i]]` on device index `device[i]` of the run; it starts `start_us[i]`
    microseconds after `began` (Unix time) and lasts `duration_us[i]`. `seconds` is the length of the step.
    `stage`, `microbatch` and `num_bytes` are None if they apply to no phase. `simulated`: the devices slept
    to simulate a certain compute rate. `followed`: the memory ledger tracked the step, which slows the step
    down.
    """

    rank: int
    step: int
    began: UnixTime
    seconds: float
    names: list[str]
    name: list[int]
    device: list[int]
    start_us: list[int]
    duration_us: list[int]
    stage: list[int | None] | None = None
    microbatch: list[int | None] | None = None
    num_bytes: list[int | None] | None = None
    simulated: bool = False
    followed: bool = False


class Observed(Event, tag="observed"):
    """Observations of one rank of a user script.

    Each event is complete, so a rank's latest event replaces its earlier ones. `wrapper` is the parallel
    wrapper in use (DistributedDataParallel, DataParallel, FullyShardedDataParallel, fully_shard), with its
    own `wrapper_options`. `model`, `optimizer` and `dataset` are "module:Class". `other_optimizers` counts
    the steps of optimizers other than `optimizer`, `skipped` the steps that a gradient scaler skipped.
    `batch` is the number of samples in a batch of the training loader, `accumulate` the number of backward
    passes per step. `not_finite` is the first step whose loss was observed to be NaN or infinite. `parts`
    maps each disabled part of the observer to the reason.

    `batch_norms` counts the model's batch-norm layers that, in training, normalise over this rank's samples
    alone. `first_batches` is a digest of the first numbers of the rank's first training batches: ranks with
    the same digest train on the same samples. `same_epochs` counts the epochs with the same sample order as
    the previous epoch, as happens if the script does not call set_epoch on its shuffling DistributedSampler.
    `sampler` describes the training loader's sampler: its `class` and, where it has them, its `num_replicas`,
    `rank`, `shuffle` and `seed`. Its `iterable` is set if the dataset is an IterableDataset. `epoch_batches`
    is the number of batches in the first complete pass over a training loader.
    """

    rank: int
    script: str
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    wrapper: str | None = None
    wrapper_options: dict[str, Any] = msgspec.field(default_factory=dict)
    backend: str | None = None
    model: str | None = None
    num_parameters: int | None = None
    optimizer: str | None = None
    parameter_groups: list[dict[str, Any]] = msgspec.field(default_factory=list)
    other_optimizers: dict[str, int] = msgspec.field(default_factory=dict)
    skipped: int = 0
    dataset: str | None = None
    num_samples: int | None = None
    batch: int | None = None
    loader_workers: int | None = None
    first_batches: str | None = None
    same_epochs: int = 0
    sampler: dict[str, Any] = msgspec.field(default_factory=dict)
    epoch_batches: int | None = None
    batch_norms: int | None = None
    accumulate: int | None = None
    precision: str | None = None
    not_finite: int | None = None
    libraries: list[str] = msgspec.field(default_factory=list)
    parts: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_depth(self.wrapper_options, self.parameter_groups, self.sampler)


class Anomaly(Event, tag="anomaly"):
    """Something that looks wrong in a user script, reported once by one rank.

    `code` names the check, and `step` is the first step in which it failed. `line` is the script's line
    ("file:line"), "" if unknown. `names` are the first of the parameters, keys or modules concerned.
    `numbers` are further values, by name; the value of "names" is the total number of names.
    """

    rank: int
    code: str
    step: int
    line: str = ""
    names: list[str] = msgspec.field(default_factory=list)
    numbers: dict[str, float] = msgspec.field(default_factory=dict)


class WeightDigests(Event, tag="weights"):
    """Digests of one rank's weights after `step` (0: before the first step).

    Entry i is the sum of the bit patterns of a part of parameter i, modulo 2**53; the step alone determines
    which part. Ranks whose weights are equal bit by bit therefore have equal digests. The digests are taken
    just before the next step. `synced_bytes` is the number of bytes that collectives passed between `step`
    and the next backward pass, 0 if too few to have averaged the weights. `rate` is the learning rate.
    `training` is the index of a series of digests: a new series starts when another optimizer becomes the
    leading one, or when its parameters change. The first event of a series has no digests; it has the `names`
    and `sizes` (in elements) of the parameters, their total `num_bytes`, and `max_elements`, the size up to
    which a digest covers a whole parameter.
    """

    rank: int
    step: int
    digests: list[int]
    training: int = 0
    names: list[str] | None = None
    sizes: list[int] | None = None
    num_bytes: int | None = None
    rate: float | None = None
    synced_bytes: int = 0
    max_elements: int | None = None


class Metrics(Event, tag="metric"):
    """Values that a script or a configured run's user model has logged, as columns by name.

    Entry i of `values[name]` belongs to `steps[i]`, in the script's own step count (None if it passed none),
    and was logged at `times[i]` (Unix seconds), when the observer had counted `after[i]` steps. A value is
    None if it was not finite or if the entry has no value of that name. `through` is the API that was called:
    rankdeck | transformers | accelerate | lightning | tensorboard | wandb | mlflow.
    """

    rank: int
    through: str
    steps: list[int | None]
    times: list[float]
    after: list[int]
    values: dict[str, list[float | None]]


class Collectives(Event, tag="collectives"):
    """Collectives that the script itself has called since the previous event, up to `step`.

    The mappings contain, by collective, the number of calls, the bytes of the tensors that this rank passed,
    and the duration of the calls on this rank. From step `changed_steps[i]` on, each step makes the calls in
    `changed_calls[i]` (their number by "name file:line"), until the next change or, if there is none, until
    `counted_until`. These numbers include only calls on the default process group.
    """

    rank: int
    step: int
    calls: dict[str, int]
    num_bytes: dict[str, int]
    seconds: dict[str, float]
    counted_until: int = 0
    changed_steps: list[int] = []
    changed_calls: list[dict[str, int]] = []


class LossScale(Event, tag="loss_scale"):
    """The loss scale of fp16 training from `step` on.

    If it is lower than before, the gradients of the previous step were not finite, and the optimizer skipped
    that step.
    """

    rank: int
    step: int
    scale: float


class Evaluation(Event, tag="evaluation"):
    """Evaluation on all held-out samples.

    `loss` is None if not finite or if all targets are masked; `accuracy` is None if there are no classes.
    """

    step: int
    loss: float | None
    samples: int
    seconds: float
    accuracy: float | None = None
    final: bool = False


class ProblemRaised(Event, tag="problem"):
    """A problem: its cause, its rank and its fix."""

    problem: Problem


class RankFailed(Event, tag="rank_failed"):
    """The failure of a rank, as the rank observed it; the supervisor names one cause for the whole run.

    `is_communication`: the exception is about other ranks (a closed connection, a timeout), so this rank most
    likely failed because another rank did. `exit_code` is the rank's exit code.
    """

    rank: int
    problem: Problem
    exit_code: int = 1
    is_communication: bool = False


class OutOfMemory(Event, tag="out_of_memory"):
    """A rank's memory when an allocation failed in `step` (0: before the first step).

    `device` is the index of the device that ran out of memory; `allocation` contains the values parsed from
    the error message. `module` is the innermost user module that was running, None during the backward pass.
    `devices` contains the bytes at that time; if no bytes were counted in this step, it is empty and the last
    sampled step's values apply. `modules` contains bytes by kind for the model's modules and the optimizer on
    the device (on all of the rank's devices if they are virtual); activations are not assigned to modules.
    """

    rank: int
    step: int
    allocation: Allocation
    device: int | None = None
    module: str | None = None
    source: str | None = None
    devices: list[DeviceMemory] = msgspec.field(default_factory=list)
    modules: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


class Drained(Event, tag="drained"):
    """A pipeline without a flush was drained for an evaluation or a checkpoint.

    On this rank, `microbatches` were in flight; every rank has made `updates` updates since the attempt
    started.
    """

    rank: int
    microbatches: int
    updates: int


class WeightsSaved(Event, tag="weights_saved"):
    """The final weights were written, under the model's original parameter names."""

    path: str
    num_bytes: int


class CheckpointSaved(Event, tag="checkpoint"):
    """The state after `step` is committed to disk. `reason`: schedule | request | stop | end."""

    step: int
    num_bytes: int
    seconds: float
    reason: str


class StoodStill(Event, tag="stood_still"):
    """State of a rank whose last heartbeat was `silent_s` seconds ago.

    The node hosts of a run send this event to the coordinator, which compares all ranks. `until_told_s` is
    the silence after which a warning is due. `is_excused`: the rank is writing a checkpoint or is in a
    debugger. `is_close`: the rank's process was inspected, so the remaining fields are known: `frames` (file,
    line, function), innermost first, `calls` as in diagnose/stacks.py, and `work`, the rank's last microbatch
    (phase, number).
    """

    rank: int
    pid: int
    step: int
    phase: str
    silent_s: float
    until_told_s: float
    is_excused: bool = False
    is_close: bool = False
    suspended: bool = False
    cores: float = 0.0
    frames: list[tuple[str, int, str]] = msgspec.field(default_factory=list)
    calls: list[tuple[str, int, str, str, bool]] = msgspec.field(default_factory=list)
    work: tuple[str, int] | None = None


class Dropped(Event, tag="dropped"):
    """Lines that could not be written: their number, and the system's error message, e.g. for a full disk."""

    lines: int
    reason: str


class RankEnded(Event, tag="rank_ended"):
    """The end of a rank. `reason`: completed | failed | stopped | asked to stop."""

    rank: int
    reason: str
    step: int


class Stopping(Event, tag="stopping"):
    """A stop was requested and the attempt's ranks were notified; `RunEnded` follows once they have
    exited."""

    attempt: int


class RunEnded(Event, tag="run_ended"):
    """The end of an attempt, as the supervisor observed it. `outcome`: completed | failed | stopped.

    `script_status` is the exit status of a user script as a shell reports it (128 + n for signal n).
    """

    outcome: str
    exit_code: int
    attempt: int
    script_status: int | None = None


AnyEvent = (
    RunStarted
    | RankStarted
    | Phase
    | Verified
    | Restored
    | Steps
    | Memory
    | Sample
    | DeviceNotice
    | Comm
    | Pipeline
    | Spans
    | Observed
    | Anomaly
    | WeightDigests
    | Metrics
    | Collectives
    | LossScale
    | Evaluation
    | ProblemRaised
    | RankFailed
    | OutOfMemory
    | Drained
    | WeightsSaved
    | CheckpointSaved
    | StoodStill
    | Dropped
    | RankEnded
    | Stopping
    | RunEnded
)

_encoder = msgspec.json.Encoder()
_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(AnyEvent))
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode(event: Event) -> bytes:
    """Encode an event as one JSON line with its line feed. NaN and infinity become null, as JSON has
    neither."""
    return encode_json(_encoder.encode, event) + b"\n"


def decode(line: bytes) -> AnyEvent | None:
    """Decode one line; return None for an event of an unknown kind or of a newer version.

    Raises:
        msgspec.DecodeError: the line is not an event.
    """
    try:
        return decode_json(_decoder.decode, line)
    except msgspec.ValidationError:
        # Decode again without types: a line with `seq` and an unknown kind or version is skipped, any other
        # is damage.
        loose = decode_json(msgspec.json.decode, line)
        if not isinstance(loose, dict) or "seq" not in loose or "kind" not in loose:
            raise
        kind, version = loose["kind"], loose.get("v", VERSION)
        is_newer = isinstance(version, int) and version > VERSION
        if not isinstance(kind, str) or (kind in _KINDS and not is_newer):
            raise
        return None


def decode_lines(chunk: bytes) -> list[AnyEvent | None]:
    """Decode a chunk of complete lines, 5 times faster than line by line. Unknown events become None.

    Raises:
        msgspec.DecodeError: a line is not an event.
    """
    try:
        return list(_decoder.decode_lines(chunk))
    except (msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        # One unknown or bad line fails the whole chunk, so decode each line on its own.
        return [decode(line) for line in chunk.splitlines() if line]
