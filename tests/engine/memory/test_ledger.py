"""The ledger against torch's own allocator events, against itself, and against what is known by hand."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed._functional_collectives as functional_collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from rankdeck.base.errors import TrainingError
from rankdeck.events import MEMORY_KINDS
from rankdeck.memory.entries import DeviceBytes
from rankdeck.memory.ledger import Ledger
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.collectives.replica_threads import ReplicaThreads
from tests.helpers import tiny_training as tiny

Backward = Callable[[nn.Module, tiny.Batch, ReplicaThreads], float]
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tiny.Batch]]] = {
    "mlp": (tiny.tiny_mlp, tiny.mlp_batch),
    "gpt": (tiny.TinyGPT, tiny.gpt_batch),
}


def _plain(model: nn.Module, batch: tiny.Batch, _: ReplicaThreads) -> float:
    return tiny.plain_backward(model, batch)


STEPS: dict[str, tuple[int, Backward]] = {
    "single": (1, _plain),
    "dp": (4, tiny.dp_backward),
    "dp-parallel-loss": (4, tiny.parallel_loss_backward),
}


@dataclass
class Trainer:
    """A model in training on virtual devices, followed in the steps that a test names."""

    ledger: Ledger
    threads: ReplicaThreads
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: tiny.Batch
    backward: Backward

    def step(self) -> float:
        loss = self.backward(self.model, self.batch, self.threads)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def tracked_step(self) -> float:
        self.ledger.reset_peaks()
        with self.ledger.tracking():
            return self.step()


def _trainer(model: str, strategy: str) -> Trainer:
    num_devices, backward = STEPS[strategy]
    build, make_batch = MODELS[model]
    torch.manual_seed(0)
    ledger = Ledger(num_devices)
    batch = make_batch()
    with ledger.tracking():
        built = build()
        optimizer = torch.optim.AdamW(built.parameters(), lr=1e-3)
        ledger.watch(built, optimizer)
    threads = ReplicaThreads(VirtualDevices(num_devices, ledger))
    return Trainer(ledger, threads, built, optimizer, batch, backward)


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        pytest.param(model, strategy, marks=pytest.mark.slow if (model, strategy) == ("gpt", "dp") else ())
        for model in MODELS
        for strategy in STEPS
    ],
)
def test_the_peak_matches_allocator_events(model: str, strategy: str, tmp_path: Path) -> None:
    trainer = _trainer(model, strategy)
    with trainer.threads:
        for _ in range(3):
            trainer.tracked_step()
        before_bytes = trainer.ledger.live_bytes
        threads = None if strategy == "single" else trainer.threads
        truth_bytes = before_bytes + tiny.allocator_rise_bytes(trainer.tracked_step, tmp_path, threads)
    assert trainer.ledger.peak_bytes == pytest.approx(truth_bytes, rel=0.01)
    assert truth_bytes > 1.2 * before_bytes


@pytest.mark.parametrize("strategy", STEPS)
@pytest.mark.parametrize("model", MODELS)
def test_a_late_sample_equals_an_always_on_ledger(model: str, strategy: str) -> None:
    readings: list[list[DeviceBytes]] = []
    for followed in (range(6), (0, 1, 2, 5)):
        trainer = _trainer(model, strategy)
        with trainer.threads:
            for step in range(6):
                (trainer.tracked_step if step in followed else trainer.step)()
        readings.append(trainer.ledger.devices())
    assert readings[0] == readings[1]


def test_a_late_sample_without_watched_owners_is_wrong() -> None:
    trainer = _trainer("mlp", "single")
    late = Ledger(1)
    with trainer.threads:
        trainer.step()
        with late.tracking():
            trainer.step()
        trainer.tracked_step()
    assert late.peak_bytes < 0.9 * trainer.ledger.peak_bytes


@pytest.mark.parametrize("strategy", STEPS)
def test_freed_tensors_are_not_live(strategy: str) -> None:
    trainer = _trainer("gpt", strategy)
    ledger = trainer.ledger
    with trainer.threads:
        for _ in range(3):
            trainer.tracked_step()
    assert ledger.live_bytes > 0
    ledger._watched.clear()  # or the ledger keeps the owners
    del trainer
    gc.collect()
    assert ledger.live_bytes == 0
    assert not ledger.live
    assert all(not any(device.live_by_kind.values()) for device in ledger.devices())


@pytest.mark.parametrize("strategy", STEPS)
def test_kinds_add_up_and_owners_are_exact(strategy: str) -> None:
    trainer = _trainer("gpt", strategy)
    with trainer.threads:
        for _ in range(3):
            trainer.tracked_step()
        readings = trainer.ledger.devices()
    parameter_bytes = sum(p.numel() * 4 for p in trainer.model.parameters())
    step_counts_bytes = 4 * len(list(trainer.model.parameters()))
    for reading in readings:
        assert list(reading.peak_by_kind) == list(MEMORY_KINDS)
        assert sum(reading.peak_by_kind.values()) == reading.peak_bytes
        assert sum(reading.live_by_kind.values()) == reading.live_bytes
        assert reading.peak_by_kind["parameters"] == parameter_bytes
        assert min(reading.peak_by_kind.values()) >= 0
    assert readings[0].live_by_kind["optimizer"] == 2 * parameter_bytes + step_counts_bytes
    assert all(reading.live_bytes == 0 for reading in readings[1:])


def test_gradients_are_relabelled_in_an_earlier_peak() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        with ledger.phase("parameters"):
            model = nn.Linear(1000, 1000, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ledger.watch(model, optimizer)
        with ledger.phase("inputs"):
            inputs = torch.randn(2, 1000)
        model(inputs).sum().backward()
        assert ledger.devices()[0].peak_by_kind["gradients"] == 0
        optimizer.step()
    reading = ledger.devices()[0]
    assert reading.peak_by_kind["gradients"] == 4_000_000
    assert reading.peak_by_kind["inputs"] == 8_000
    assert sum(reading.peak_by_kind.values()) == reading.peak_bytes


def test_gathered_outputs_cause_the_excess_of_device_0() -> None:
    ratios = {}
    for strategy in ("dp", "dp-parallel-loss"):
        num_devices, backward = STEPS[strategy]
        ledger = Ledger(num_devices)
        batch = tiny.gpt_batch(vocabulary=8192)
        with ledger.tracking(), ReplicaThreads(VirtualDevices(num_devices, ledger)) as threads:
            model = tiny.TinyGPT(vocabulary=8192)
            optimizer = torch.optim.AdamW(model.parameters())
            ledger.watch(model, optimizer)
            for _ in range(2):
                ledger.reset_peaks()
                backward(model, batch, threads)
                optimizer.step()
                optimizer.zero_grad()
        readings = ledger.devices()
        ratios[strategy] = readings[0].peak_bytes / readings[2].peak_bytes
        if strategy == "dp":
            kinds = readings[0].peak_by_kind
            excess = {kind: kinds[kind] - readings[2].peak_by_kind[kind] for kind in MEMORY_KINDS}
            assert max(excess, key=lambda kind: excess[kind]) == "gathered"
            assert max(kinds, key=lambda kind: kinds[kind]) == "gathered"
            # The logits' log-softmax and both of their gradients: three times the whole batch's outputs.
            assert kinds["gathered"] == pytest.approx(3 * 8 * 32 * 8192 * 4, rel=0.01)
        else:
            assert readings[0].peak_by_kind["gathered"] < 100
    assert ratios["dp"] > 1.8
    assert ratios["dp-parallel-loss"] < 0.6 * ratios["dp"]


def test_recomputed_activations_are_activations() -> None:
    def peak(checkpointed: bool) -> dict[str, int]:
        ledger = Ledger(1)
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])
        with ledger.tracking():
            x = torch.randn(512, 64)
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=False) if checkpointed else layer(x)
            x.sum().backward()
        return ledger.devices()[0].peak_by_kind

    layer_bytes = 512 * 64 * 4
    assert peak(False)["activations"] >= 16 * layer_bytes
    # The input and output of every layer that is still kept, and the inside of the one that is recomputed.
    assert 9 * layer_bytes <= peak(True)["activations"] <= 12 * layer_bytes


def test_mixing_devices_is_an_error_that_names_both() -> None:
    ledger = Ledger(3)
    with ledger.tracking():
        with ledger.on_device(0):
            first = torch.ones(2)
        with ledger.on_device(2):
            second = torch.ones(2)
        for mix in (
            lambda: first + second,
            lambda: first.add_(second),
            lambda: torch.cat([first, second]),
            lambda: F.linear(torch.ones(1, 2), first.view(1, 2), second[:1]),
        ):
            with pytest.raises(TrainingError, match=r"aten\.\w+.* virtual devices [02] and [02]") as mixed:
                mix()
            assert mixed.value.code == "device-mix"


def test_scalars_may_come_from_any_device() -> None:
    ledger = Ledger(2)
    with ledger.tracking():
        with ledger.on_device(1):
            scalar = torch.tensor(2.0)
        with ledger.on_device(0):
            vector = torch.ones(3)
        for product in (scalar * vector, vector * scalar):
            assert ledger.device_of(product) == 0
        assert ledger.device_of(scalar * scalar) == 1


def test_items_of_list_operations_stay_on_their_devices() -> None:
    ledger = Ledger(2)
    with ledger.tracking():
        tensors = []
        for device in (0, 1):
            with ledger.on_device(device):
                tensors.append(torch.ones(4))
        assert [ledger.device_of(t) for t in torch._foreach_add(tensors, 1.0)] == [0, 1]


def test_sizes_can_be_rounded_up() -> None:
    ledger = Ledger(1, round_to_bytes=512)
    with ledger.tracking():
        tensors = [torch.empty(1), torch.empty(129)]
    assert ledger.live_bytes == 512 + 1024
    del tensors
    assert ledger.live_bytes == 0


def test_views_and_in_place_operations_add_nothing() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        x = torch.zeros(10, 10)
        views = [x.t(), x[2:], x.view(100), *x.split(5)]
        x.add_(1).mul_(2)
    assert ledger.live_bytes == 400
    del x
    assert ledger.live_bytes == 400
    del views
    assert ledger.live_bytes == 0


def test_resized_tensors_are_tracked() -> None:
    ledger = Ledger(1)
    with ledger.tracking(), pytest.warns(UserWarning, match="resized"):
        out = torch.empty(1)
        torch.cat([torch.zeros(10), torch.zeros(10)], out=out)
    assert ledger.live_bytes == 80
    with ledger.tracking():
        out.resize_(100)
    assert ledger.live_bytes == 400


def _coo(length: int = 100) -> Tensor:
    """2 x 8 bytes of indices and 4 of values for each number."""
    return torch.sparse_coo_tensor(torch.arange(length).repeat(2, 1), torch.ones(length), (length, length))


SPARSE: dict[str, tuple[int, Callable[[], Tensor]]] = {
    "made": (2000, _coo),
    "coalesced": (2000, lambda: _coo().coalesce()),
    "computed": (2000, lambda: _coo() * 2),
    "added in place": (4000, lambda: _coo().add_(_coo())),
    "csr": (808 + 1600 + 400, lambda: torch.eye(100).to_sparse_csr()),
    "csc": (808 + 1600 + 400, lambda: torch.eye(100).to_sparse_csc()),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", SPARSE)
def test_indices_and_values_of_sparse_tensors_are_counted(name: str) -> None:
    num_bytes, make = SPARSE[name]
    ledger = Ledger(2)
    with ledger.tracking(), ledger.on_device(1):
        tensor = make()
    assert [device.live_bytes for device in ledger.devices()] == [0, num_bytes]
    assert ledger.device_of(tensor) == 1
    del tensor
    assert ledger.live_bytes == 0


def test_sparse_gradients_match_allocator_events(tmp_path: Path) -> None:
    ledger = Ledger(1)
    tokens = torch.randint(0, 4000, (16, 64))
    with ledger.tracking():
        model = nn.Sequential(nn.Embedding(4000, 32, sparse=True), nn.Linear(32, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ledger.watch(model, optimizer)

    def step() -> None:
        ledger.reset_peaks()
        with ledger.tracking():
            optimizer.zero_grad()
            model(tokens).square().sum().backward()
            optimizer.step()

    before_bytes = ledger.live_bytes
    truth_bytes = before_bytes + tiny.allocator_rise_bytes(step, tmp_path)
    assert ledger.peak_bytes == pytest.approx(truth_bytes, rel=0.01)
    gradient = model[0].weight.grad
    assert gradient is not None and gradient.is_sparse
    linear_bytes = sum(p.numel() * 4 for p in model[1].parameters())
    held_bytes = tokens.numel() * (8 + 32 * 4) + linear_bytes
    assert ledger.devices()[0].live_by_kind["gradients"] == held_bytes


def test_copies_files_and_buffers_are_counted(tmp_path: Path) -> None:
    source, file = torch.ones(100), tmp_path / "tensor.pt"
    torch.save(source, file)
    makers: dict[str, Callable[[], Tensor]] = {
        "deepcopy": lambda: copy.deepcopy(source),
        "load": lambda: torch.load(file),
        "mapped": lambda: torch.load(file, mmap=True),
        "frombuffer": lambda: torch.frombuffer(bytearray(400), dtype=torch.float32),
    }
    for name, make in makers.items():
        ledger = Ledger(2)
        with ledger.tracking(), ledger.on_device(1):
            tensor = make()
        assert (name, ledger.device_of(tensor), ledger.live_bytes) == (name, 1, 400)
        with ledger.tracking(), ledger.paused():
            others = make()
        assert ledger.live_bytes == 400
        del tensor, others
        assert ledger.live_bytes == 0


def test_meta_tensors_are_not_counted() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        shape_only = torch.empty(1000, device="meta") + 1
    assert ledger.live_bytes == 0 and shape_only.numel() == 1000


def test_host_memory_can_be_excluded() -> None:
    ledger = Ledger(1)
    with ledger.tracking():
        with ledger.paused():
            host: Tensor = torch.zeros(100)
        assert ledger.live_bytes == 0
        assert ledger.device_of(host) is None
        ledger.adopt([host], 0, "inputs")
    assert ledger.devices()[0].live_by_kind["inputs"] == 400


def test_an_unknown_kind_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'gradient' is not a kind of memory\. Use parameters, gradients"):
        Ledger(1).phase("gradient")


def test_fake_tensors_are_counted_like_real_ones() -> None:
    def peak(mode: contextlib.AbstractContextManager[object]) -> tuple[int, dict[str, int]]:
        ledger = Ledger(1)
        with mode, ledger.tracking():
            model = tiny.TinyGPT()
            optimizer = torch.optim.AdamW(model.parameters())
            ledger.watch(model, optimizer)
            tokens = torch.zeros(4, 32, dtype=torch.long)
            for _ in range(2):
                loss = tiny.summed_loss(model(tokens), tokens)
                loss.backward()
                del loss
                optimizer.step()
                optimizer.zero_grad()
        return ledger.peak_bytes, ledger.devices()[0].peak_by_kind

    assert peak(FakeTensorMode()) == peak(contextlib.nullcontext())


def test_nested_tracking_counts_once() -> None:
    ledger = Ledger(1)
    with ledger.tracking(), ledger.tracking():
        x = torch.zeros(10)
        assert ledger.is_tracking
    assert not ledger.is_tracking
    y = torch.zeros(10)
    assert ledger.live_bytes == 40
    del x, y


def test_an_async_collective_result_is_counted_once() -> None:
    """What an asynchronous collective returns wraps the tensor that holds the bytes."""
    ledger = Ledger(1)
    with ledger.tracking():
        tensor = torch.zeros(1000)
        wrapped = functional_collectives._maybe_wrap_tensor(tensor)
        assert type(wrapped) is not torch.Tensor
        assert ledger.live_bytes == 4000
