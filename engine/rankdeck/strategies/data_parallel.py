"""dp: one process drives all devices; device 0 leads, and pays for it.

    scatter the batch -> replicate the model -> forward on every device -> gather outputs on device 0
    -> loss there
    -> backward on every device -> gradients add up on device 0 -> step there

Where: weights, gradients and optimizer state on device 0; a copy of the weights on every device during a
step. Sent per step: (n-1) x P bytes of weights out, (n-1) x P bytes of gradients back, inputs out, outputs
back. Wins: hardly ever; it is two lines of code. Breaks: device 0 is full first, with the outputs of all
devices and what the loss makes of them; batch norms see a device's slice. `parallel_loss` computes the loss
inside each replica's forward, so that only losses are gathered.

On GPUs this is torch.nn.DataParallel; in a rehearsal it is parallel/collectives/fan_out.py. Read
single.py before, ddp.py after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import DpOptions
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.backward import detached_loss_errors
from rankdeck.parallel.collectives.fan_out import data_parallel
from rankdeck.parallel.collectives.outputs import common_structure, flatten_output
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from rankdeck.parallel.pytree import call_model, cast_to, check_sample_dim, num_samples, tensor_leaves
from rankdeck.parallel.state.forward import ReplicaState
from rankdeck.profiling.spans import SpanRecorder
from rankdeck.strategies.base import Batch, HeldoutSums, LossSum, Setup, Strategy, place_model
from rankdeck.strategies.facts import FanOutFacts

_PARALLEL_LOSS_ADVICE = phrase('Set strategy.parallel_loss = true, or use strategy.use = "ddp".')


class _ReplicaModule(nn.Module):
    """What each device runs: the model, and `reduce`, which makes what leaves the device of its outputs."""

    def __init__(self, model: nn.Module, reduce: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.reduce = reduce

    def forward(self, inputs: Any, *targets: Any) -> Any:
        return self.reduce(call_model(self.model, inputs), *targets)


OnReplicas = Callable[[Sequence[nn.Module], Sequence[Any]], None]


class _TimedDataParallel(nn.DataParallel[nn.Module]):
    """torch's own class, whose four steps say when they begin and end."""

    def __init__(
        self,
        module: nn.Module,
        devices: Sequence[torch.device],
        spans: SpanRecorder,
        on_replicas: OnReplicas,
    ) -> None:
        super().__init__(module, device_ids=list(devices))
        self._spans = spans
        self._on_replicas = on_replicas

    def scatter(self, *args: Any) -> Any:
        with self._spans.phase(0, "scatter"):
            return super().scatter(*args)

    def replicate(self, *args: Any) -> Any:
        with self._spans.phase(0, "replicate"):
            return super().replicate(*args)

    def parallel_apply(self, replicas: Any, inputs: Any, kwargs: Any) -> Any:
        self._on_replicas(replicas, inputs)
        with self._spans.phase_on_all_devices("forward"):
            return super().parallel_apply(replicas, inputs, kwargs)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """torch joins lists of tensors; what they were taken from is ours."""
        apart = [flatten_output(output) for output in outputs]
        shell = common_structure([own for _, own in apart])
        with self._spans.phase(0, "gather"):
            return shell.unflatten(super().gather([tensors for tensors, _ in apart], output_device))


_NUM_PROBE_SAMPLES = 3
"""Samples that show what the first dim of a batch counts."""


class DataParallel(Strategy):
    name = "dp"
    options: DpOptions
    supports_sparse_gradients = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._threads: ReplicaThreads | None = None
        if setup.is_rehearsal:
            self._threads = ReplicaThreads(VirtualDevices(len(setup.devices), self.ledger), self.spans)
            self.facts = FanOutFacts(self._threads)

    def build(self, model_fn: Callable[[], nn.Module]) -> None:
        if self.setup.read_samples is not None:
            few = min(_NUM_PROBE_SAMPLES, self.setup.microstep_samples)
            check_sample_dim(self.setup.read_samples(few), few, self.name)
        self.module = place_model(model_fn(), self.setup, self.device)
        self._replica_state = ReplicaState(self.module, self._fetch, self.ledger)
        self._run_outputs = self._distribute(lambda outputs: outputs)
        inside = self.loss.is_in_model and not self.options.parallel_loss
        self._run_losses = self._distribute(self._sums_and_outputs if inside else self._loss_sums)
        self._run_heldout = self._distribute(self._sums_with_correct)

    def _distribute(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        """The model on all devices, each of which returns `reduce(outputs, targets)`; by torch's own class on
        GPUs."""
        module, threads = _ReplicaModule(self.module, reduce), self._threads
        if threads is None:
            return _TimedDataParallel(module, self.setup.devices, self.spans, self._start_replica_state)
        return lambda *inputs: data_parallel(module, inputs, threads, self._start_replica_state)

    def _loss_sums(self, outputs: Any, targets: Any) -> tuple[Tensor, ...]:
        """Loss and count, (1,) each: with parallel_loss nothing else leaves a device."""
        total, count = self.loss.function(outputs, targets)
        return total.view(1), torch.as_tensor(count, device=total.device).view(1)

    def _sums_and_outputs(self, outputs: Any, targets: Any) -> tuple[Any, ...]:
        """Where the model computes its loss itself, outputs are gathered all the same."""
        return *self._loss_sums(outputs, targets), [
            tensor for tensor in tensor_leaves(outputs) if tensor.dim()
        ]

    def _sums_with_correct(self, outputs: Any, targets: Any) -> tuple[Tensor, ...]:
        """Those of an evaluation, with the number of right answers where there are classes."""
        sums = self._loss_sums(outputs, targets)
        if self.loss.count_correct is None:
            return sums
        correct = self.loss.count_correct(outputs, targets)
        return *sums, torch.as_tensor(correct, device=sums[0].device).view(1)

    def _start_replica_state(self, replicas: Sequence[Any], slices: Sequence[Any]) -> None:
        """What replicas change in training comes back to the model when their backwards are done."""
        if self.module.training:
            self._replica_state.start(
                [replica.model for replica in replicas], [num_samples(own) for own in slices]
            )

    def _fetch(self, tensor: Tensor, device: int) -> Tensor:
        """A replica's tensor on device 0."""
        if self._threads is None:
            return tensor.to(self.device)
        return self._threads.devices.copy(tensor, device, 0, "buffers")

    def min_forward_samples(self, num_samples: int) -> int:
        """torch cuts a batch into equal chunks, of which the last one may be shorter."""
        chunk = -(-num_samples // len(self.setup.devices))
        return num_samples % chunk or chunk

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self._host_batch(batch)
        with self.facts.microstep(last=last), self.autocast():
            if self.options.parallel_loss or self.loss.is_in_model:
                # Gathered outputs, if any, live until the backward is done, as in anyone's own loop.
                totals, counts, *_gathered = self._run_losses(inputs, targets)
                total, count = totals.sum(), counts.sum()
                self._backward(total * scale)
            else:
                total, count = self._loss_on_lead(
                    self._run_outputs(inputs), self._targets_to_lead(targets), scale
                )
        self._replica_state.finish()
        return LossSum(total.detach(), count)

    def _loss_on_lead(self, outputs: Any, targets: Any, scale: float | Tensor) -> tuple[Tensor, Any]:
        """Loss and backward.

        What device 0 makes of gathered outputs, until gradients leave it, is because of them.
        """
        with self.ledger.phase("gathered"):
            with self.spans.phase(0, "loss"), detached_loss_errors(_PARALLEL_LOSS_ADVICE):
                total, count = self.loss.function(outputs, targets)
                del outputs
            self._backward(total * scale)
        return total, count

    def _backward(self, loss: Tensor) -> None:
        """What comes before the replicas' backwards is the loss's, what comes after them is the reduction."""
        threads = self._threads
        if threads is None:
            with self.spans.phase_on_all_devices("backward"):
                loss.backward()
            return
        threads.start_lead_phase("loss")
        try:
            loss.backward()
        finally:
            threads.end_lead_phase()

    def evaluate(self, batch: Batch, num_valid: int) -> HeldoutSums:
        inputs, targets = self._host_batch(batch)
        with self.eval_mode():
            if self.options.parallel_loss:
                sums = [float(own.sum()) for own in self._run_heldout(inputs, targets)]
                return HeldoutSums(sums[0], sums[1], sums[2] if self.loss.count_correct else None)
            if self.loss.is_in_model:
                totals, counts, *_gathered = self._run_losses(inputs, targets)
                return HeldoutSums(float(totals.sum()), float(counts.sum()), None)
            return self.heldout_sums(self._run_outputs(inputs), self._targets_to_lead(targets))

    def _host_batch(self, batch: Batch) -> Batch:
        """The batch in the run's precision, still the host's: scatter takes each slice to its device."""
        with self.ledger.paused():
            return cast_to(batch[0], self.setup.dtype), cast_to(batch[1], self.setup.dtype)

    def _targets_to_lead(self, targets: Any) -> Any:
        """The targets on device 0, where the loss is computed."""
        _, moved = self.to_device((None, targets))
        return moved

    def extra_state(self) -> dict[str, Tensor]:
        """The random states of the devices that have drawn; device 0 draws from the process's own."""
        states = [] if self._threads is None else self._threads.random_states
        return {f"random.{i}": state for i, state in enumerate(states) if state is not None}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if self._threads is not None:
            for name, tensor in state.items():
                self._threads.random_states[int(name.removeprefix("random."))] = tensor

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
