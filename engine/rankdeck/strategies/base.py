"""Define the interface of a strategy.

The one training loop (training/loop.py) owns data, clipping, optimizer, schedule and metrics. A strategy owns
the placement of tensors, the forward and backward passes, and gradient synchronization.

    build(model_fn)                 abstract: build the model and place it
    forward_backward(batch, ...)    abstract: run one microstep, return its LossSum; gradients accumulate
    evaluate(batch, num_valid)      abstract: return held-out sums
    sync_gradients()                make each gradient cover the whole global batch, after the last microstep
    clip(max_norm)                  limit the total norm of the gradients on all devices to max_norm
    weights()                       return name -> tensor under the model's original names

single, ddp, fsdp, tensor and hybrid share `compute`, which runs a forward and a backward pass. Read single.py
first, then data_parallel.py and ddp.py.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.config.catalog import Options
from rankdeck.memory.ledger import AnyLedger, NullLedger
from rankdeck.models.losses import Loss
from rankdeck.parallel.backward import backward
from rankdeck.parallel.collectives.broadcast import broadcast_from_rank_0
from rankdeck.parallel.fsdp.meta_init import MetaInitModel
from rankdeck.parallel.mesh import Backend, Mesh
from rankdeck.parallel.pytree import (
    call_model,
    cast_to,
    fp64_dtype,
    map_tensors,
    num_samples,
    tensor_leaves,
)
from rankdeck.parallel.state.forward import ForwardState
from rankdeck.parallel.tensor.gradients import clip_grad_norm_over_ranks, full_tensors
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.strategies.facts import StrategyFacts
from rankdeck.torch_compat.modules import apply_to_tensors, is_expanded

Batch = tuple[Any, Any]
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NO_AUTOCAST: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@dataclass(frozen=True)
class LossSum:
    """A loss summed over `count` targets. Its tensors are scalars and stay on the device until reported."""

    total: Tensor
    count: Tensor | int


@dataclass(frozen=True)
class HeldoutSums:
    """Sums over one rank's share of the held-out samples; `correct` is None if targets are not classes."""

    total: float
    count: float
    correct: float | None

    def __add__(self, other: HeldoutSums) -> HeldoutSums:
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return HeldoutSums(self.total + other.total, self.count + other.count, correct)


@dataclass
class Setup:
    """Arguments of a strategy.

    `options` are the options in the strategy's spec in config/catalog.py. `devices` are the devices that this
    rank drives, in the run's order (all `cpu` in a rehearsal, where the ledger distinguishes them).
    `microstep_samples` is the number of samples in one microstep across all data ranks, `accumulate` the
    number of microsteps per step. `read_samples(n)` reads the first n training samples as one batch, if
    `build` needs samples. After a drain, a pipeline calls `on_drained(microbatches that were in flight,
    updates so far)`. `analysis` contains findings about the model, possibly from an earlier build.
    """

    options: Options
    loss: Loss
    devices: list[torch.device]
    rank: int = 0
    world_size: int = 1
    ledger: AnyLedger = field(default_factory=NullLedger)
    precision: str = "fp32"
    compile: bool = False
    microstep_samples: int = 1
    accumulate: int = 1
    read_samples: Callable[[int], Batch] | None = None
    spans: SpanRecorder = field(default_factory=SpanRecorder)
    backend: Backend = field(default_factory=Backend)
    on_drained: Callable[[int, int], object] = lambda under_way, updates: None
    analysis: ModelAnalysis = field(default_factory=ModelAnalysis)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.precision == "fp64" else torch.float32

    @property
    def is_rehearsal(self) -> bool:
        return self.devices[0].type == "cpu"


class Strategy(ABC):
    """Base class of strategies; the module's docstring describes the interface.

    config/compatibility.py lists the options that cannot be combined with a strategy."""

    name: ClassVar[str]
    axis: ClassVar[str] = "data"
    """The name of the mesh axis along which all ranks are arranged."""
    needs_warm_up: ClassVar[bool] = False
    """Whether a resumed run first takes a dummy step: a process's first step differs from later steps."""
    forward_is_local: ClassVar[bool] = True
    """Whether one rank can run the module's forward pass without the other ranks."""
    communicates_in_forward: ClassVar[bool] = False
    """Whether ranks wait for each other within a forward or backward pass."""
    owns_optimizer_step: ClassVar[bool] = False
    """Whether the strategy's own schedule steps the optimizer; the loop then never handles gradients."""
    is_sharded: ClassVar[bool] = False
    """Whether ranks hold different weights, or different shards of the same weights."""
    options: Options
    facts: StrategyFacts
    """Statistics on what the strategy sends and how it runs."""
    module: nn.Module
    """The model with its original names and this rank's parameters; set by `build`."""
    stage_modules: Sequence[nn.Module] = ()
    """The stages as modules that share the model's weights; empty if the model is not split into stages."""
    replicas: Sequence[dist.ProcessGroup | None] = (None,)
    """Groups of ranks that hold the same weights; None stands for all ranks."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.options = setup.options
        self.loss = setup.loss
        self.device = setup.devices[0]
        self.spans = setup.spans
        self.ledger = setup.ledger
        self.facts = StrategyFacts()
        self._buffers_differ = False
        self._forward_state: ForwardState | None = None

    def mesh(self) -> Mesh:
        return Mesh.of(self.setup.rank, **{self.axis: self.setup.world_size})

    @property
    def supports_sparse_gradients(self) -> bool:
        """Whether the strategy supports sparse gradients of embeddings; such gradients cannot be sharded."""
        return not self.is_sharded

    @property
    def pads_batches(self) -> bool:
        """Whether the strategy pads a microstep that has too few samples, because it needs fixed shapes."""
        return False

    def min_forward_samples(self, num_samples: int) -> int:
        """Return the smallest batch size of a forward pass when this rank processes `num_samples` samples."""
        return num_samples

    def require_varying_sizes(self) -> None:  # noqa: B027
        """Check that the strategy supports samples of different sizes. Raises: ModelError."""

    def data_shard(self) -> tuple[int, int]:
        """Return (index, count) of this rank's slice of each microstep's batch. Replicas and shards read
        different slices; the stages and tensor ranks of a replica read the same slice."""
        mesh = self.mesh()
        index = mesh.coordinate("data") * mesh.size("shard") + mesh.coordinate("shard")
        return index, mesh.size("data") * mesh.size("shard")

    def reports_loss(self) -> bool:
        """Check whether this rank's loss sums contribute to the run's loss."""
        return True

    @property
    def num_fill_steps(self) -> int:
        """Number of steps before resource use is steady: an asynchronous pipeline fills up slowly."""
        return 0

    @abstractmethod
    def build(self, model_fn: Callable[[], nn.Module]) -> None: ...

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        """Run the forward and backward pass of one microstep, with the loss multiplied by `scale`; a `scale`
        of 0 discards the microstep. Gradients may be sent during the backward pass only if `last` is true,
        that is, in the step's last microstep."""

    def sync_gradients(self) -> None:  # noqa: B027 - most strategies have nothing to do here
        """Make each gradient cover the whole global batch, unless the backward pass has already done so."""

    @abstractmethod
    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        """Return loss sums over the first `num_valid` samples, in eval mode and without gradients.

        All ranks call this equally often; `num_valid` is 0 if a rank's share is all padding. Only the results
        of ranks whose `reports_loss` returns True are used.
        """

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients to a total norm of at most `max_norm`; return the norm before clipping."""
        parameters = self.module.parameters()
        # The class decides, not the mesh: torch's norm and ours over ranks (in fp64) differ in the last bits.
        if not self.is_sharded:
            return nn.utils.clip_grad_norm_(parameters, max_norm)
        return clip_grad_norm_over_ranks(
            parameters,
            max_norm,
            world_size=self.setup.world_size,
            num_stages=self.mesh().size("stage"),
            owners=self.num_stage_holders(),
        )

    def num_stage_holders(self) -> Mapping[nn.Parameter, int]:
        """Return, for each weight of this rank that several stages share, the number of these stages."""
        return {}

    def optimizer_phase(self) -> contextlib.AbstractContextManager[object]:
        """Mark the optimizer's phase on the devices whose weights it updates."""
        return self.spans.phase(0, "step")

    def weights(self) -> dict[str, Tensor]:
        """Return parameters and persistent buffers under the model's original names; tied weights appear
        under each of their names. All ranks must call this together; only rank 0 gets the tensors."""
        return full_tensors(self.module, should_keep=self.setup.rank == 0)

    def set_update_weights(self, update_weights: Callable[[int, Any], object]) -> None:  # noqa: B027
        """Set, before the first batch, the function that a strategy calls if it owns the optimizer step.
        `update_weights(update, count of targets)` takes one optimizer step with the current gradients."""

    def finalize(self) -> None:
        """Make weights and buffers ready for a checkpoint; any rank can then write the buffers."""
        self.broadcast_buffers()

    def broadcast_buffers(self) -> None:
        """Broadcast the first replica's buffers if training has changed them, so that all ranks evaluate with
        the running statistics that a checkpoint will contain."""
        # Without a step since the last broadcast, buffers are equal on all ranks.
        buffers = list(self.module.buffers()) if self._buffers_differ else []
        if buffers:
            with self.ledger.phase("communication"):
                for group in self.replicas:
                    broadcast_from_rank_0(buffers, group)
        self._buffers_differ = False

    def extra_state(self) -> dict[str, Tensor]:
        """Return this rank's state other than weights and optimizer state, for a resume with the same
        layout."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore the state that `extra_state` returned."""

    def close(self) -> None:  # noqa: B027
        """Release threads and process groups."""

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """Move a batch from the CPU to a device, and convert floating-point inputs to the run's precision."""
        target = device or self.device
        with self.spans.phase(0, "data"):
            moved: Batch = cast_to(batch, self.setup.dtype)
            if target.type != "cpu":
                moved = map_tensors(moved, lambda tensor: tensor.to(device=target, non_blocking=True))
        if self.ledger.is_tracking:
            self.ledger.adopt(tensor_leaves(moved), 0, "inputs")  # a rehearsal's batch stays on the CPU
        return moved

    def compute(self, forward: Callable[..., Any], batch: Batch, scale: float | Tensor) -> LossSum:
        """Run the forward pass, loss and backward pass of one batch on this device; gradients accumulate."""
        inputs, targets = self.to_device(batch)
        with self.autocast():
            with self.spans.phase(0, "forward"):
                outputs = call_model(forward, inputs)
            with self.spans.phase(0, "loss"):
                total, count = self.loss.function(outputs, targets)
                # Free the outputs before backward, unless the graph keeps them.
                del outputs
        with self.spans.phase(0, "backward"):
            backward(total, scale)
        return LossSum(total.detach(), count)

    def compute_heldout(
        self, forward: Callable[..., Any], batch: Batch, num_valid: int, *, runs_on_all_ranks: bool = False
    ) -> HeldoutSums:
        """Run the forward pass and loss of a batch in eval mode. If `runs_on_all_ranks` is true, all ranks
        communicate in the forward pass, so a rank without valid samples runs it too and returns zero sums."""
        if num_valid == 0 and not runs_on_all_ranks:
            return self.zero_sums()
        inputs, targets = self.to_device(batch)
        with self.eval_mode():
            sums = self.heldout_sums(call_model(forward, inputs), targets)
        return sums if num_valid else self.zero_sums()

    def zero_sums(self) -> HeldoutSums:
        return HeldoutSums(0.0, 0.0, None if self.loss.count_correct is None else 0.0)

    @contextlib.contextmanager
    def track_forward_state(self, batch: Batch, scale: float | Tensor) -> Iterator[None]:
        """Wrap the forward and backward pass of this rank's share of a batch, so that state changed in the
        forward pass ends up as if one device had processed the whole batch."""
        if self._forward_state is None:
            self._forward_state = ForwardState(self.module, ledger=self.ledger)
        # A tensor's value is not read, because that would wait for the GPU.
        counts_nothing = isinstance(scale, float) and not scale
        self._forward_state.start([0 if counts_nothing else num_samples(batch)])
        with self._forward_state.chunk(0):
            yield
        self._forward_state.finish(self.replicas)
        self._buffers_differ = True

    @contextlib.contextmanager
    def communication_phase(self, name: str = "all-reduce", num_bytes: int | None = None) -> Iterator[None]:
        """Mark a phase in which this rank sends `num_bytes`; its allocations then count as communication."""
        with self.ledger.phase("communication"), self.spans.phase(0, name, num_bytes=num_bytes):
            yield

    def meta_init_model(self, model_fn: Callable[[], nn.Module]) -> MetaInitModel:
        """Return a model on the meta device, to be filled with rank 0's weights module by module, so that no
        device has to hold the complete model."""
        setup = self.setup
        with self.ledger.paused():
            return MetaInitModel(
                model_fn,
                rank=setup.rank,
                device=self.device,
                dtype=setup.dtype if setup.precision == "fp64" else None,
                build_on_meta=setup.backend.build_on_meta,
            )

    def sample_inputs(self) -> Any:
        """Return the inputs of one or two samples for analyzing the model; None if there is no data."""
        sample = self.setup.read_samples
        return None if sample is None else sample(min(2, self.setup.microstep_samples))[0]

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.setup.precision, self.device)

    @contextlib.contextmanager
    def eval_mode(self) -> Iterator[None]:
        for module in (self.module, *self.stage_modules):
            module.eval()
        try:
            with torch.no_grad(), self.autocast():
                yield
        finally:
            for module in (self.module, *self.stage_modules):
                module.train()

    def heldout_sums(self, outputs: Any, targets: Any) -> HeldoutSums:
        total, count = self.loss.function(outputs, targets)
        correct = (
            None if self.loss.count_correct is None else float(self.loss.count_correct(outputs, targets))
        )
        return HeldoutSums(float(total), float(count), correct)


def compile_forward(module: nn.Module, setup: Setup) -> Callable[..., Any]:
    """Return the module, compiled if `setup.compile` is true; its weights keep their identity and names.

    A model with its own loss runs uncompiled the first time: compilation hides how the loss is averaged.
    """
    if not setup.compile:
        return module
    fast: Callable[..., Any] = torch.compile(module)
    if not setup.loss.is_in_model:
        return fast
    first = iter([module])
    return lambda *args, **kwargs: next(first, fast)(*args, **kwargs)


def place_model(model: nn.Module, setup: Setup, device: torch.device) -> nn.Module:
    """Move the model to a device in the run's precision, in train mode. With bf16, weights stay fp32."""
    return convert_model(model, setup.precision, device)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the autocast context of the forward pass and loss; it does nothing except in bf16 and fp16."""
    dtype = _AUTOCAST.get(precision)
    return _NO_AUTOCAST if dtype is None else torch.autocast(device.type, dtype=dtype)


def convert_model(model: nn.Module, precision: str, device: torch.device) -> nn.Module:
    """Move the model to the device and convert it, as `place_model` does, but without a `Setup`."""

    def moved(tensor: Tensor) -> Tensor:
        dtype = fp64_dtype(tensor.dtype) if precision == "fp64" else tensor.dtype
        new = tensor.to(device=device, dtype=dtype)
        return new.contiguous() if is_expanded(new) else new  # expanded memory cannot be written to

    apply_to_tensors(model, moved)
    return model.train()
