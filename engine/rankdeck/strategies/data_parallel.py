"""dp: one process drives all devices; device 0 leads and needs the most memory.

    scatter the batch -> replicate the model -> forward on every device -> gather outputs on device 0
    -> loss on device 0
    -> backward on every device -> gradients are summed on device 0 -> optimizer step on device 0

Where: weights, gradients and optimizer state on device 0; a copy of the weights on every device during a
step. Sent per step, for P bytes of weights on n devices: (n-1) x P of weights out, (n-1) x P of gradients
back, inputs out, outputs back. Wins: hardly ever, but it takes two lines of code. Breaks: device 0 runs out
of memory first, because it holds all devices' outputs and the tensors that the loss computes from them; batch
norms see one device's slice. `parallel_loss` computes the loss inside each replica's forward pass, so that
only losses are gathered.

On GPUs this is torch.nn.DataParallel; in a rehearsal it is parallel/collectives/fan_out.py. Read single.py
first, ddp.py next.
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

_PARALLEL_LOSS_ADVICE = phrase('Set strategy.parallel_loss = true or strategy.use = "ddp".')


class _ReplicaModule(nn.Module):
    """The module that each device runs: the model, then `reduce`, which selects the tensors to send to device
    0."""

    def __init__(self, model: nn.Module, reduce: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.reduce = reduce

    def forward(self, inputs: Any, *targets: Any) -> Any:
        return self.reduce(call_model(self.model, inputs), *targets)


OnReplicas = Callable[[Sequence[nn.Module], Sequence[Any]], None]


class _TimedDataParallel(nn.DataParallel[nn.Module]):
    """torch's DataParallel, with a recorded span for each of its four phases."""

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
        """Gather tensors as torch does, then restore the model's own output structure."""
        apart = [flatten_output(output) for output in outputs]
        shell = common_structure([structure for _, structure in apart])
        with self._spans.phase(0, "gather"):
            return shell.unflatten(super().gather([tensors for tensors, _ in apart], output_device))


_NUM_PROBE_SAMPLES = 3
"""Number of samples that are read to check whether the first dim of a batch is the sample dim."""


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
            # scatter splits the first dim, so it has to count samples.
            check_sample_dim(self.setup.read_samples(few), few, self.name)
        self.module = place_model(model_fn(), self.setup, self.device)
        self._replica_state = ReplicaState(self.module, self._fetch, self.ledger)
        self._run_outputs = self._distribute(lambda outputs: outputs)
        inside = self.loss.is_in_model and not self.options.parallel_loss
        self._run_losses = self._distribute(self._sums_and_outputs if inside else self._loss_sums)
        self._run_heldout = self._distribute(self._sums_with_correct)

    def _distribute(self, reduce: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs the model on all devices; each device returns `reduce(outputs,
        targets)`.

        On GPUs the function is torch's DataParallel.
        """
        module, threads = _ReplicaModule(self.module, reduce), self._threads
        if threads is None:
            return _TimedDataParallel(module, self.setup.devices, self.spans, self._start_replica_state)
        return lambda *inputs: data_parallel(module, inputs, threads, self._start_replica_state)

    def _loss_sums(self, outputs: Any, targets: Any) -> tuple[Tensor, ...]:
        """Return loss and count, each of shape (1,); with parallel_loss no other tensor leaves a device."""
        total, count = self.loss.function(outputs, targets)
        # DataParallel gathers along the first dim, so the sums need one.
        return total.view(1), torch.as_tensor(count, device=total.device).view(1)

    def _sums_and_outputs(self, outputs: Any, targets: Any) -> tuple[Any, ...]:
        """Return loss, count and the outputs: torch gathers outputs even if the model computes its own
        loss."""
        return *self._loss_sums(outputs, targets), [
            tensor for tensor in tensor_leaves(outputs) if tensor.dim()
        ]

    def _sums_with_correct(self, outputs: Any, targets: Any) -> tuple[Tensor, ...]:
        """Return an evaluation's sums, including the number of correct predictions if the targets are
        classes."""
        sums = self._loss_sums(outputs, targets)
        if self.loss.count_correct is None:
            return sums
        correct = self.loss.count_correct(outputs, targets)
        return *sums, torch.as_tensor(correct, device=sums[0].device).view(1)

    def _start_replica_state(self, replicas: Sequence[Any], slices: Sequence[Any]) -> None:
        """Start to track the state that replicas change in training, for a batch split into `slices`.

        After the backward pass, the changes are merged into the model.
        """
        if self.module.training:
            self._replica_state.start(
                [replica.model for replica in replicas], [num_samples(chunk) for chunk in slices]
            )

    def _fetch(self, tensor: Tensor, device: int) -> Tensor:
        """Copy a tensor of the replica on `device` to device 0."""
        if self._threads is None:
            return tensor.to(self.device)
        return self._threads.devices.copy(tensor, device, 0, "buffers")

    def min_forward_samples(self, num_samples: int) -> int:
        """Return the size of the last chunk: torch splits a batch into chunks of equal size, except that the
        last chunk may be smaller."""
        chunk = -(-num_samples // len(self.setup.devices))
        return num_samples % chunk or chunk

    def forward_backward(self, batch: Batch, scale: float | Tensor, *, last: bool) -> LossSum:
        inputs, targets = self._host_batch(batch)
        with self.facts.microstep(last=last), self.autocast():
            if self.options.parallel_loss or self.loss.is_in_model:
                # Gathered outputs, if any, live until backward is done, as in a plain training loop.
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
        """Compute the loss on device 0 and run the backward pass from there.

        Until gradients leave device 0, its memory use is attributed to the gathered outputs.
        """
        with self.ledger.phase("gathered"):
            with self.spans.phase(0, "loss"), detached_loss_errors(_PARALLEL_LOSS_ADVICE):
                total, count = self.loss.function(outputs, targets)
                del outputs
            self._backward(total * scale)
        return total, count

    def _backward(self, loss: Tensor) -> None:
        """Run the backward pass; on device 0, attribute the time before the replicas' backward passes to the
        loss, and the time after them to the reduction."""
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
                sums = [float(values.sum()) for values in self._run_heldout(inputs, targets)]
                return HeldoutSums(sums[0], sums[1], sums[2] if self.loss.count_correct else None)
            if self.loss.is_in_model:
                totals, counts, *_gathered = self._run_losses(inputs, targets)
                return HeldoutSums(float(totals.sum()), float(counts.sum()), None)
            return self.heldout_sums(self._run_outputs(inputs), self._targets_to_lead(targets))

    def _host_batch(self, batch: Batch) -> Batch:
        """Return the batch in the run's precision, still on the CPU: scatter moves slices to devices."""
        with self.ledger.paused():
            return cast_to(batch[0], self.setup.dtype), cast_to(batch[1], self.setup.dtype)

    def _targets_to_lead(self, targets: Any) -> Any:
        """Move the targets to device 0, where the loss is computed."""
        _, moved = self.to_device((None, targets))
        return moved

    def extra_state(self) -> dict[str, Tensor]:
        """Return the RNG states of devices that have drawn random numbers; device 0 uses the process's
        generator."""
        states = [] if self._threads is None else self._threads.random_states
        return {f"random.{i}": state for i, state in enumerate(states) if state is not None}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        if self._threads is not None:
            for name, tensor in state.items():
                self._threads.random_states[int(name.removeprefix("random."))] = tensor

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
