"""What a strategy is. One training loop (training/loop.py) owns data, clipping by a number, optimizer,
schedule and metrics; a strategy owns where tensors live, forward and backward, and how gradients meet.

    build(model_fn)                 the model, placed
    forward_backward(batch, ...)    one part of the global batch: a LossSum; gradients accumulate
    sync_gradients()                after the last part: gradients of the whole global batch everywhere
    clip(max_norm)                  one norm over everything, wherever it lives
    evaluate(batch, num_valid)      held-out sums
    weights()                       name -> tensor under the model's original names

Read single.py first, then data_parallel.py and ddp.py.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rankdeck.memory.ledger import Ledger
from rankdeck.models.losses import Loss
from rankdeck.parallel.collectives.grad_sync import SyncTimes
from rankdeck.parallel.mesh import Mesh
from rankdeck.profiling.spans import SpanRecorder

Batch = tuple[Any, Any]


@dataclass(frozen=True)
class LossSum:
    """A loss summed over `count` targets;

    both stay on the device until they are reported. Tensors without dims, or numbers.
    """

    total: Tensor
    count: Tensor | int


@dataclass(frozen=True)
class HeldoutSums:
    """What one rank found on its share of the held-out samples.

    `correct` is None where there are no classes.
    """

    total: float
    count: float
    correct: float | None


@dataclass(frozen=True)
class PipelineFacts:
    """How a pipeline runs on one rank.

    `in_flight`: the most microbatches whose activations it held at once. `theory_bubble`: the share of a step
    that the schedule makes ranks wait, None where nothing is flushed. `weight_versions` (the most that it
    held) and `staleness` (updates between the weights that a microbatch saw and those it updated) belong to
    a pipeline without a flush.
    """

    stages: list[int]
    microbatches: int
    in_flight: int
    theory_bubble: float | None = None
    weight_versions: int | None = None
    staleness: int | None = None


@dataclass
class Setup:
    """What a strategy is given. `devices` are the torch devices that this rank drives, in the run's order
    (all `cpu` in a rehearsal,
    where the ledger keeps them apart); `ledger` is None on GPUs. `part_batch` is how many samples one part of
    the global batch has over all data ranks, `accumulate` how many parts there are; `sample(n)` reads the
    first n training samples as one batch, for a strategy that must know shapes before the first step."""

    options: Mapping[str, Any]
    loss: Loss
    devices: list[torch.device]
    rank: int = 0
    world_size: int = 1
    ledger: Ledger | None = None
    precision: str = "fp32"
    compile: bool = False
    seed: int = 0
    part_batch: int = 1
    accumulate: int = 1
    sample: Callable[[int], Batch] | None = None
    extras: dict[str, Any] = field(default_factory=dict)
    spans: SpanRecorder = field(default_factory=SpanRecorder)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def is_rehearsal(self) -> bool:
        return self.devices[0].type == "cpu"


class Strategy(ABC):
    """See the top of this file.

    A subclass names the torch features that it cannot combine with in catalog.py, not here.
    """

    name: ClassVar[str]
    warms_up: ClassVar[bool] = False
    """Whether a resumed run takes one step for nothing first, because the first one is unlike the others."""
    forwards_alone: ClassVar[bool] = True
    """Whether one rank can run the module's forward without the others."""
    waits_inside: ClassVar[bool] = False
    """Whether a forward or backward waits for other ranks in its middle."""
    steps_itself: ClassVar[bool] = False
    """Whether it steps the optimizer inside its own schedule; gradients are then never the loop's."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.loss = setup.loss
        self.device = setup.devices[0]
        self.spans = setup.spans
        # The loop sets both for a strategy that steps itself: one optimizer step with the gradients that are
        # there (update, count of targets), and word of a drained pipe (microbatches under way, updates).
        self.update_weights: Callable[[int, Any], object] = lambda update, count: None
        self.tell_drained: Callable[[int, int], object] = lambda under_way, updates: None

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, data=self.setup.world_size)

    def data_shard(self) -> tuple[int, int]:
        """(index, count): which slice of each part of the batch this rank reads."""
        mesh = self.mesh()
        return mesh.coordinate("data"), mesh.size("data")

    def reports_loss(self) -> bool:
        """Whether this rank's loss sums count for the run's loss."""
        return True

    @property
    def steps_to_fill(self) -> int:
        """How many steps go by before one needs what every later one needs: a pipe fills slowly."""
        return 0

    @abstractmethod
    def build(self, model_fn: Callable[[], nn.Module]) -> None: ...

    @property
    @abstractmethod
    def module(self) -> nn.Module:
        """The model under its original names, holding this rank's parameters."""

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        """Forward and backward of one part of the batch. The loss is multiplied by `scale` before backward;
        `last` says that no more
        parts follow, so that gradients may start to travel."""

    def sync_gradients(self) -> None:  # noqa: B027 - most strategies have nothing to do here
        """Make gradients those of the whole global batch; nothing to do where backward did."""

    @abstractmethod
    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Loss sums over the first `num_valid` samples of the batch, in eval mode, without gradients.

        All ranks are called equally often, with 0 where a rank's share is all padding; a rank that does not
        report loss returns what it likes.
        """

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their common norm is at most `max_norm`; returns the norm before."""
        return nn.utils.clip_grad_norm_(self.module.parameters(), max_norm)

    def stepping(self) -> contextlib.AbstractContextManager[object]:
        """The optimizer's phase, on the devices that hold what it changes."""
        return self.spans.phase(0, "step")

    def replicas_busy_s(self) -> list[float] | None:
        """CPU seconds that each device's thread has worked so far;

        None where the whole rank is one device.
        """
        return None

    def sent_bytes_per_step(self) -> tuple[str, int, bool] | None:
        """(algorithm, bytes this rank sends per step, measured or by formula); None where nothing is sent."""
        return None

    def sent_by_peer(self) -> dict[str, int] | None:
        """The same bytes by the rank that receives them; None where they are not counted one by one."""
        return None

    def sync_times(self) -> SyncTimes | None:
        """How long a step's sync takes and how much of it backward hides; None where nobody measured."""
        return None

    def pipeline_facts(self) -> PipelineFacts | None:
        """How this rank's stages run; None where there are none."""
        return None

    def weights(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers under the model's original names; tied weights under every name.

        All ranks call this together; rank 0 gets them.
        """
        return {name: tensor.detach() for name, tensor in self.module.state_dict(keep_vars=True).items()}

    def settle(self) -> None:  # noqa: B027
        """Bring weights to a state that a checkpoint can hold; nothing to do where a step leaves them so."""

    def extra_state(self) -> dict[str, Tensor]:
        """What this rank keeps beside weights and optimizer, for a run that goes on under the same layout."""
        return {}

    def put_extra_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """What `extra_state` gave."""

    def close(self) -> None:  # noqa: B027
        """Give back threads and groups."""

    # -- shared by strategies that run the whole model on one device --

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch on a device, floating inputs in the run's precision."""
        inputs, targets = batch
        target = device or self.device
        with self.spans.phase(0, "data"):
            moved: Batch = each_tensor(
                cast((inputs, targets), self.setup.dtype),
                lambda tensor: tensor.to(device=target, non_blocking=True),
            )
        ledger = self.setup.ledger
        if ledger is not None and ledger.is_following:
            ledger.adopt(tensors_of(moved), 0, "inputs")
        return moved

    def phase(self, kind: str) -> contextlib.AbstractContextManager[None]:
        """A context in which new storages are `kind` in the ledger, where there is one."""
        ledger = self.setup.ledger
        return contextlib.nullcontext() if ledger is None else ledger.phase(kind)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.setup.precision)
        if dtype is not None:
            return torch.autocast(self.device.type, dtype=dtype)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.module.eval()
        try:
            with torch.no_grad(), self.autocast():
                yield
        finally:
            self.module.train()

    def heldout_sums(self, outputs: Any, targets: Any) -> HeldoutSums:
        total, count = self.loss.function(outputs, targets)
        correct = None if self.loss.correct is None else float(self.loss.correct(outputs, targets))
        return HeldoutSums(float(total), float(count), correct)


def call(module: Callable[..., Any], inputs: Any) -> Any:
    """The model on its inputs: a dict becomes keyword arguments, a tuple positional ones."""
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def first_samples(value: Any, num_valid: int) -> Any:
    """The first samples of a batch, whatever it is made of."""
    return each_tensor(value, lambda tensor: tensor[:num_valid])


def tensors_of(value: Any) -> list[Tensor]:
    """Every tensor inside tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return [tensor for item in value for tensor in tensors_of(item)]
    return []


def each_tensor(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: each_tensor(inner, change) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(each_tensor(inner, change) for inner in value)
    return value


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating tensors in the run's precision.

    Only fp64 asks for it: what is fp32 or less stays as it came.
    """
    if dtype is not torch.float64:
        return value
    return each_tensor(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def compiled(module: nn.Module, setup: Setup) -> Callable[..., Any]:
    """The module's forward, through torch.compile where the run asks for it.

    Weights and names stay the module's.
    """
    return torch.compile(module) if setup.compile else module


def place(model: nn.Module, setup: Setup, device: torch.device) -> nn.Module:
    """The model in the run's precision on a device, in train mode. bf16 is autocast: weights stay fp32."""
    return model.to(device=device, dtype=torch.float64 if setup.precision == "fp64" else None).train()
