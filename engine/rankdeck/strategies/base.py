"""What a strategy is. One training loop (training/loop.py) owns data, clipping by a number, optimizer,
schedule and metrics; a strategy owns where tensors live, forward and backward, and how gradients meet.

    build(model_fn)                 the model, placed
    forward_backward(batch, ...)    one part of the global batch: a LossSum; gradients accumulate
    sync_gradients()                after the last part: gradients of the whole global batch everywhere
    clip(max_norm)                  one norm over everything, wherever it lives
    evaluate(batch, num_valid)      held-out sums
    weights()                       name -> tensor under the model's original names

`compute` is the one forward and backward that single, ddp, fsdp, tensor and hybrid share. Read single.py
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
    """A loss summed over `count` targets: tensors without dims that stay on the device until they are
    reported, or numbers."""

    total: Tensor
    count: Tensor | int


@dataclass(frozen=True)
class HeldoutSums:
    """Sums over one rank's share of the held-out samples. `correct` is None where there are no classes."""

    total: float
    count: float
    correct: float | None

    def __add__(self, other: HeldoutSums) -> HeldoutSums:
        correct = None if self.correct is None or other.correct is None else self.correct + other.correct
        return HeldoutSums(self.total + other.total, self.count + other.count, correct)


@dataclass
class Setup:
    """What a strategy is given.

    `options` are those of its card in config/catalog.py. `devices` are the torch devices that this rank
    drives, in the run's order (all `cpu` in a rehearsal, where the ledger keeps them apart).
    `microstep_samples` is how many samples one part of the global batch has over all data ranks, `accumulate`
    how many parts there are; `sample(n)` reads the first n training samples as one batch, for a strategy that
    must know shapes before the first step. `drained(microbatches under way, updates)` is called when a pipe
    without a flush was emptied. `analysis` is what the same strategy over the same model has found out about
    it before.
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
    """See the top of this file.

    A subclass names the torch features that it cannot combine with in catalog.py, not here.
    """

    name: ClassVar[str]
    axis: ClassVar[str] = "data"
    """Of the mesh, along which all ranks stand."""
    needs_warm_up: ClassVar[bool] = False
    """Whether a resumed run takes one step for nothing first, because the first one is unlike the others."""
    forward_is_local: ClassVar[bool] = True
    """Whether one rank can run the module's forward without the others."""
    communicates_in_forward: ClassVar[bool] = False
    """Whether a forward or backward waits for other ranks in its middle."""
    owns_optimizer_step: ClassVar[bool] = False
    """Whether it steps the optimizer inside its own schedule; gradients are then never the loop's."""
    is_sharded: ClassVar[bool] = False
    """Whether each rank holds weights, or slices of weights, of its own."""
    options: Options
    facts: StrategyFacts
    """What it sends and how it runs, for whoever reports it."""
    module: nn.Module
    """The model under its original names, holding this rank's parameters; `build` sets it."""
    stage_modules: Sequence[nn.Module] = ()
    """Modules of their own over the model's weights, where it is cut into stages."""
    replicas: Sequence[dist.ProcessGroup | None] = (None,)
    """The groups of ranks that hold the same weights; None is all ranks."""

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
        """Whether gradients of an embedding may be sparse: nothing adds them up or cuts them."""
        return not self.is_sharded

    @property
    def pads_batches(self) -> bool:
        """Whether a part with fewer samples than the others is filled up, because shapes are fixed."""
        return False

    def min_forward_samples(self, num_samples: int) -> int:
        """How many of the samples that this rank reads the smallest of its forwards sees."""
        return num_samples

    def require_varying_sizes(self) -> None:  # noqa: B027
        """Raises: ModelError where all batches must have the first one's sizes, whatever their samples."""

    def data_shard(self) -> tuple[int, int]:
        """(index, count): which slice of each part of the batch this rank reads. Replicas and shards read
        slices of their own; stages and tensor ranks share one."""
        mesh = self.mesh()
        index = mesh.coordinate("data") * mesh.size("shard") + mesh.coordinate("shard")
        return index, mesh.size("data") * mesh.size("shard")

    def reports_loss(self) -> bool:
        """Whether this rank's loss sums count for the run's loss."""
        return True

    @property
    def num_fill_steps(self) -> int:
        """How many steps go by before one needs what every later one needs: a pipe fills slowly."""
        return 0

    @abstractmethod
    def build(self, model_fn: Callable[[], nn.Module]) -> None: ...

    @abstractmethod
    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        """Forward and backward of one part of the batch. The loss is multiplied by `scale` before backward, 0
        for a part that counts nothing; `last` says that no more parts follow, so that gradients may start to
        travel."""

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
        parameters = self.module.parameters()
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
        """For each weight of this rank that several stages hold, how many do."""
        return {}

    def optimizer_phase(self) -> contextlib.AbstractContextManager[object]:
        """The optimizer's phase, on the devices that hold what it changes."""
        return self.spans.phase(0, "step")

    def weights(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers under the model's original names; tied weights under every name.

        All ranks call this together; rank 0 gets them.
        """
        return full_tensors(self.module, keep=self.setup.rank == 0)

    def set_update_weights(self, update_weights: Callable[[int, Any], object]) -> None:  # noqa: B027
        """How a strategy that steps itself does it: `update_weights(update, count of targets)` takes one
        optimizer step with the gradients that are there. Called once, before the first batch."""

    def finalize(self) -> None:
        """Bring weights and buffers to a state that a checkpoint can hold: any rank may write a buffer."""
        self.broadcast_buffers()

    def broadcast_buffers(self) -> None:
        """The first replica's buffers to all, where each rank's own data has changed them: all evaluate with
        the running statistics that will be saved."""
        buffers = list(self.module.buffers()) if self._buffers_differ else []
        if buffers:
            with self.ledger.phase("communication"):
                for group in self.replicas:
                    broadcast_from_rank_0(buffers, group)
        self._buffers_differ = False

    def extra_state(self) -> dict[str, Tensor]:
        """What this rank keeps beside weights and optimizer, for a run that goes on under the same layout."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """What `extra_state` gave."""

    def close(self) -> None:  # noqa: B027
        """Give back threads and groups."""

    def to_device(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch on a device, floating inputs in the run's precision. Batches are read on the host."""
        target = device or self.device
        with self.spans.phase(0, "data"):
            moved: Batch = cast_to(batch, self.setup.dtype)
            if target.type != "cpu":
                moved = map_tensors(moved, lambda tensor: tensor.to(device=target, non_blocking=True))
        if self.ledger.is_tracking:
            self.ledger.adopt(tensor_leaves(moved), 0, "inputs")
        return moved

    def compute(self, forward: Callable[..., Any], batch: Batch, scale: float | Tensor) -> LossSum:
        """Forward, loss and backward of one batch on this device; gradients add up in the parameters."""
        inputs, targets = self.to_device(batch)
        with self.autocast():
            with self.spans.phase(0, "forward"):
                outputs = call_model(forward, inputs)
            with self.spans.phase(0, "loss"):
                total, count = self.loss.function(outputs, targets)
                del outputs
        with self.spans.phase(0, "backward"):
            backward(total, scale)
        return LossSum(total.detach(), count)

    def compute_heldout(
        self, forward: Callable[..., Any], batch: Batch, num_valid: int, *, runs_on_all_ranks: bool = False
    ) -> HeldoutSums:
        """Forward and loss of the batch in eval mode. Where ranks have to be in a forward
        `runs_on_all_ranks`, one whose batch does not count computes it for nothing."""
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
        """A forward and backward of this rank's part of a batch. Afterwards state that the forward changes is
        that of one device with the whole batch."""
        if self._forward_state is None:
            self._forward_state = ForwardState(self.module, ledger=self.ledger)
        counts_nothing = isinstance(scale, float) and not scale
        self._forward_state.start([0 if counts_nothing else num_samples(batch)])
        with self._forward_state.chunk(0):
            yield
        self._forward_state.finish(self.replicas)
        self._buffers_differ = True

    @contextlib.contextmanager
    def communication_phase(self, name: str = "all-reduce", num_bytes: int | None = None) -> Iterator[None]:
        """A phase in which this rank sends `num_bytes`; what it allocates meanwhile is for that."""
        with self.ledger.phase("communication"), self.spans.phase(0, name, num_bytes=num_bytes):
            yield

    def meta_init_model(self, model_fn: Callable[[], nn.Module]) -> MetaInitModel:
        """A model that is filled with rank 0's weights part by part: no device has to hold it whole."""
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
        """Inputs of a sample or two, to look at what a model does with them; None where nobody knows any."""
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
    """The module's forward, through torch.compile where the run asks for it.

    Weights and names stay the module's. Where the model computes its loss inside, the first forward runs as
    it is: a compiled graph does not tell what the loss is a mean of.
    """
    if not setup.compile:
        return module
    fast: Callable[..., Any] = torch.compile(module)
    if not setup.loss.is_in_model:
        return fast
    first = iter([module])
    return lambda *args, **kwargs: next(first, fast)(*args, **kwargs)


def place_model(model: nn.Module, setup: Setup, device: torch.device) -> nn.Module:
    """The model in the run's precision on a device, in train mode. bf16 is autocast: weights stay fp32."""
    return convert_model(model, setup.precision, device)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What forward and loss are computed under in 16 bits; nothing in other precisions."""
    dtype = _AUTOCAST.get(precision)
    return _NO_AUTOCAST if dtype is None else torch.autocast(device.type, dtype=dtype)


def convert_model(model: nn.Module, precision: str, device: torch.device) -> nn.Module:
    """The same, where there is no setup."""

    def moved(tensor: Tensor) -> Tensor:
        dtype = fp64_dtype(tensor.dtype) if precision == "fp64" else tensor.dtype
        new = tensor.to(device=device, dtype=dtype)
        return new.contiguous() if is_expanded(new) else new  # nobody could write to it

    apply_to_tensors(model, moved)
    return model.train()
