"""DataParallel's movements: gradients of one device, right places, errors that name a replica."""

from __future__ import annotations

import copy
import dataclasses
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankdeck.base.errors import ModelError, TrainingError
from rankdeck.memory.ledger import Ledger
from rankdeck.memory.virtual import VirtualDevices
from rankdeck.parallel.collectives import replicate as replicate_module
from rankdeck.parallel.collectives.buckets import assign_buckets
from rankdeck.parallel.collectives.fan_out import data_parallel, gather, scatter
from rankdeck.parallel.collectives.parallel_apply import parallel_apply
from rankdeck.parallel.collectives.replica_threads import ReplicaError, ReplicaThreads
from rankdeck.parallel.collectives.replicate import replicate
from tests.helpers import tiny_training as tiny

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tiny.Batch]]] = {
    "mlp": (tiny.tiny_mlp, tiny.mlp_batch),
    "gpt": (tiny.TinyGPT, tiny.gpt_batch),
}
BACKWARDS = {"outputs gathered": tiny.dp_backward, "losses gathered": tiny.parallel_loss_backward}


def _largest_difference(
    model: str, num_devices: int, dtype: torch.dtype, backward: Callable[..., float]
) -> float:
    """Between the gradients on one device and on several, as the largest absolute difference."""
    torch.manual_seed(0)
    build, make_batch = MODELS[model]
    plain = build().to(dtype)
    inputs, targets = make_batch()
    batch = (inputs.to(dtype) if inputs.is_floating_point() else inputs, targets)
    several = copy.deepcopy(plain)
    tiny.plain_backward(plain, batch)
    with ReplicaThreads(VirtualDevices(num_devices)) as threads:
        for _ in range(2):
            several.zero_grad()
            backward(several, batch, threads)
    pairs = zip(plain.parameters(), several.parameters(), strict=True)
    return max(
        (a.grad - b.grad).abs().max().item() for a, b in pairs if a.grad is not None and b.grad is not None
    )


@pytest.mark.parametrize("backward", BACKWARDS)
@pytest.mark.parametrize("num_devices", [1, 2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_match_one_device(model: str, num_devices: int, backward: str) -> None:
    assert _largest_difference(model, num_devices, torch.float32, BACKWARDS[backward]) <= 1e-6
    assert _largest_difference(model, num_devices, torch.float64, BACKWARDS[backward]) <= 1e-12


def test_gradients_differ_when_they_are_not_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicate_module, "reduce_to_first", lambda grads, _: list(grads[0]))
    assert _largest_difference("mlp", 4, torch.float64, tiny.dp_backward) > 1e-4


def test_gradients_match_with_a_ledger_and_small_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replicate_module, "BUCKET_BYTES", 5000)
    torch.manual_seed(0)
    plain, batch = tiny.TinyGPT().double(), tiny.gpt_batch()
    several = copy.deepcopy(plain)
    tiny.plain_backward(plain, batch)
    ledger = Ledger(4)
    with ledger.tracking(), ReplicaThreads(VirtualDevices(4, ledger)) as threads:
        ledger.watch(several)
        tiny.dp_backward(several, batch, threads)
    for a, b in zip(plain.parameters(), several.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)
        assert b.grad is not None and ledger.device_of(b.grad) == 0


def test_each_part_of_a_step_lives_on_its_device() -> None:
    ledger = Ledger(3)
    devices = VirtualDevices(3, ledger)
    model = nn.Linear(4, 2)
    x = torch.randn(6, 4)
    with ledger.tracking(), ReplicaThreads(devices) as threads:
        ledger.watch(model)
        slices = scatter((x,), devices)
        replicas = replicate(model, devices, 3)
        outputs = parallel_apply(replicas, slices, threads)
        gathered = gather(outputs, devices)
        for device in range(3):
            assert ledger.device_of(slices[device][0]) == device
            assert ledger.device_of(replicas.modules[device].weight) == device  # type: ignore[arg-type]
            assert ledger.device_of(outputs[device]) == device
        assert ledger.device_of(gathered) == 0
    torch.testing.assert_close(gathered, model(x))


def test_moved_bytes_match_the_formula() -> None:
    devices = VirtualDevices(4)
    model, batch = tiny.tiny_mlp(), tiny.mlp_batch()
    parameter_bytes = sum(p.numel() * 4 for p in model.parameters())
    output_bytes = 256 * 10 * 4
    with ReplicaThreads(devices) as threads:
        tiny.dp_backward(model, batch, threads)
    each_way = parameter_bytes + output_bytes // 4
    assert devices.moved_bytes == {pair: each_way for i in range(1, 4) for pair in ((0, i), (i, 0))}


def test_tensors_are_split_and_other_values_are_replicated() -> None:
    devices = VirtualDevices(4)
    batch = {"x": torch.arange(10), "more": [torch.arange(20).view(10, 2), "text", 3], "none": None}
    slices = scatter(batch, devices)
    assert [len(shard["x"]) for shard in slices] == [3, 3, 3, 1]
    assert torch.equal(torch.cat([shard["more"][0] for shard in slices]), batch["more"][0])  # type: ignore[index]
    assert all(shard["more"][1:] == ["text", 3] and shard["none"] is None for shard in slices)
    assert len(scatter(torch.zeros(2, 3), devices)) == 2
    assert len(scatter(torch.tensor(1.0), devices)) == 1
    with pytest.raises(ModelError, match=r"different first dims.*\(8,\), \(2,\)"):
        scatter((torch.zeros(8), torch.zeros(2)), devices)


def test_nested_outputs_are_gathered() -> None:
    devices = VirtualDevices(2)
    outputs = [
        {"logits": torch.full((2, 3), float(i)), "pair": (torch.tensor(i), torch.tensor(0.5))}
        for i in range(2)
    ]
    joined = gather(outputs, devices)
    assert joined["logits"].tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
    assert joined["pair"][0].tolist() == [0, 1]
    assert joined["pair"][1].tolist() == [0.5, 0.5]
    with pytest.raises(ModelError, match="different structures"):
        gather([torch.zeros(1), (torch.zeros(1),)], devices)
    with pytest.raises(ModelError, match="cannot be concatenated"):
        gather([torch.zeros(1, 3), torch.zeros(1, 4)], devices)


class _ReturnsCount(nn.Module):
    """Returns a loss and a count, as the loss inside the forward does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss_sum": (self.layer(x) * self.frozen).sum(), "count": torch.tensor(len(x))}


def test_counts_and_unused_parameters_get_no_gradient() -> None:
    torch.manual_seed(0)
    model = _ReturnsCount()
    x = torch.randn(8, 4)
    with tiny.replica_threads(4) as threads:
        out = data_parallel(model, (x,), threads)
        assert out["count"].tolist() == [2, 2, 2, 2] and not out["count"].requires_grad
        out["loss_sum"].sum().backward()
    torch.testing.assert_close(model.layer.weight.grad, x.sum(0, keepdim=True))
    assert model.unused.grad is None and model.frozen.grad is None


class _Branches(nn.Module):
    """Uses its second layer only for slices that are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(x) if x[0, 0] > 0 else self.first(x)
        return out


def test_a_parameter_unused_by_some_replicas_sums_the_others() -> None:
    model = _Branches()
    x = torch.tensor([[-1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]])
    with tiny.replica_threads(3) as threads:
        data_parallel(model, (x,), threads).sum().backward()
    assert model.first.weight.grad is not None and model.first.weight.grad.tolist() == [[-6.0, 8.0]]
    assert model.second.weight.grad is not None and model.second.weight.grad.tolist() == [[3.0, 4.0]]


def test_inputs_that_require_grad_get_a_gradient() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    with tiny.replica_threads(2) as threads:
        (data_parallel(nn.ReLU(), (x,), threads) * 2).sum().backward()
    torch.testing.assert_close(x.grad, 2.0 * (x > 0))


def test_recurrent_layers_are_replicated() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4, batch_first=True).double()
    plain = copy.deepcopy(model)
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    plain(x)[0].sum().backward()
    with tiny.replica_threads(2) as threads:
        data_parallel(_FirstOutput(model), (x,), threads).sum().backward()
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=1e-12)


class _FirstOutput(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)[0]


def test_only_buffers_of_replica_0_persist() -> None:
    torch.manual_seed(0)
    model, reference = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    x = torch.randn(8, 3) * torch.tensor([[1.0]] * 4 + [[5.0]] * 4)
    with tiny.replica_threads(2) as threads:
        out = data_parallel(model, (x,), threads)
    first, second = reference(x[:4]), F.batch_norm(x[4:], None, None, training=True)
    torch.testing.assert_close(model.running_var, reference.running_var)
    assert model.num_batches_tracked is not None and model.num_batches_tracked.item() == 1
    torch.testing.assert_close(out, torch.cat([first, second]), rtol=1e-4, atol=1e-5)


def _with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1))


def test_dropout_is_reproducible_and_differs_between_devices() -> None:
    results = []
    for seed in [0] * 10 + [1]:
        torch.manual_seed(0)
        model = _with_dropout()
        torch.manual_seed(seed)
        x = torch.ones(4, 16)
        with tiny.replica_threads(4) as threads:
            for _ in range(3):
                out = data_parallel(model, (x,), threads)
                out.sum().backward()
        assert len(set(out.flatten().tolist())) == 4
        assert model[0].weight.grad is not None  # type: ignore[index]
        results.append((out.detach(), model[0].weight.grad))  # type: ignore[index]
    for out, grad in results[1:10]:
        assert torch.equal(out, results[0][0]) and torch.equal(grad, results[0][1])
    assert not torch.equal(results[10][0], results[0][0])


def test_device_0_has_the_random_numbers_of_one_device() -> None:
    torch.manual_seed(0)
    model = nn.Dropout(0.5)
    torch.manual_seed(7)
    alone = model(torch.ones(2, 50))
    torch.manual_seed(7)
    with tiny.replica_threads(2) as threads:
        out = data_parallel(model, (torch.ones(4, 50),), threads)
        assert torch.equal(out[:2], alone)
        assert not torch.equal(out[2:], alone)


class _MaybeCheckpointed(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.layers, self.checkpointed = _with_dropout(), checkpointed

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.layers, x, use_reentrant=False) if self.checkpointed else self.layers(x)


def test_recomputed_dropout_equals_the_forward() -> None:
    grads = []
    for checkpointed in (True, False):
        torch.manual_seed(0)
        model = _MaybeCheckpointed(checkpointed)
        with tiny.replica_threads(4) as threads:
            for _ in range(4):
                data_parallel(model, (torch.ones(8, 16),), threads).sum().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


def test_replicas_without_random_numbers_run_concurrently() -> None:
    meeting = threading.Barrier(2)

    class Meets(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if meets:
                meeting.wait(timeout=20)
            return x

    meets = False
    with tiny.replica_threads(2) as threads:
        for _ in range(2):
            data_parallel(Meets(), (torch.ones(2),), threads)
            meets = True


class _Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 5:
            raise ValueError(f"too large: {x.max().item()}")
        return x * self.weight


def test_an_error_names_its_replica_and_keeps_its_cause() -> None:
    with tiny.replica_threads(4) as threads:
        for _ in range(2):
            with pytest.raises(ReplicaError, match=r"Replica 2 .* raised ValueError: too large: 9") as caught:
                data_parallel(_Fails(), (torch.tensor([1.0, 2.0, 9.0, 4.0]),), threads)
        assert caught.value.replica == 2
        assert isinstance(caught.value.__cause__, ValueError)
        out = data_parallel(_Fails(), (torch.ones(4),), threads)
        assert out.tolist() == [1.0] * 4


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.bad = bool(x.max() > 5)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if ctx.bad:
            raise ValueError("no gradient here")
        return grads[0]


class _FailsInBackward(_Fails):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = _FailsBackward.apply(x * self.weight)
        return out


def test_an_error_in_a_backward_names_its_replica() -> None:
    with tiny.replica_threads(2) as threads:
        out = data_parallel(_FailsInBackward(), (torch.tensor([1.0, 9.0]),), threads)
        with pytest.raises(ReplicaError, match=r"Replica 1 .* no gradient here"):
            out.sum().backward()


def test_a_model_that_returns_no_tensor_is_refused() -> None:
    class Name(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "name"

    with (
        tiny.replica_threads(2) as threads,
        pytest.raises(
            ReplicaError, match="of class str, which cannot be gathered from several devices: 'name'"
        ),
    ):
        data_parallel(Name(), (torch.ones(2),), threads)


def test_sparse_gradients_are_refused() -> None:
    with tiny.replica_threads(2) as threads:
        out = data_parallel(nn.Embedding(4, 2, sparse=True), (torch.tensor([1, 2]),), threads)
        with pytest.raises(ModelError, match="sparse"):
            out.sum().backward()


def test_a_second_backward_raises() -> None:
    with tiny.replica_threads(2) as threads:
        loss = data_parallel(nn.Linear(2, 1), (torch.ones(2, 2),), threads).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(TrainingError, match="ran twice through the same replicas"):
            loss.backward()


def test_grad_mode_and_autocast_reach_the_replicas() -> None:
    modes = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Any:
            modes.append((torch.is_grad_enabled(), self.layer(x).dtype))
            return self.layer(x)

    model = Looks()
    with tiny.replica_threads(2) as threads:
        with torch.no_grad():
            assert not data_parallel(model, (torch.ones(2, 2),), threads).requires_grad
        with torch.inference_mode():
            data_parallel(model, (torch.ones(2, 2),), threads)
        with torch.autocast("cpu", torch.bfloat16):
            out = data_parallel(model, (torch.ones(2, 2),), threads)
        out.float().sum().backward()
    assert modes == [(False, torch.float32)] * 4 + [(True, torch.bfloat16)] * 2
    assert model.layer.weight.grad is not None and model.layer.weight.grad.dtype == torch.float32


def test_busy_time_of_a_device_is_the_cpu_time_of_its_thread() -> None:
    model, batch = tiny.TinyGPT(), tiny.gpt_batch()
    with tiny.replica_threads(4) as threads:
        tiny.dp_backward(model, batch, threads)
        before = list(threads.busy_s)
        assert min(before) > 0
        tiny.dp_backward(model, batch, threads)
        assert all(now > then for now, then in zip(threads.busy_s, before, strict=True))


def test_closing_ends_the_threads() -> None:
    threads = ReplicaThreads(VirtualDevices(3))
    data_parallel(nn.Linear(1, 1), (torch.ones(3, 1),), threads)
    assert sum(thread.name.startswith("device-") for thread in threading.enumerate()) == 3
    threads.close()
    threads.close()
    assert not any(thread.name.startswith("device-") for thread in threading.enumerate())


@pytest.mark.parametrize("with_backward", [True, False])
def test_a_step_leaves_only_gradients_allocated(with_backward: bool) -> None:
    ledger = Ledger(2)
    gc.disable()
    try:
        with ledger.tracking(), ReplicaThreads(VirtualDevices(2, ledger)) as threads:
            model = nn.Linear(4, 4, bias=False)
            loss = data_parallel(model, (torch.ones(2, 4),), threads).sum()
            if with_backward:
                loss.backward()
            del loss
            assert ledger.live_bytes == (128 if with_backward else 64)
    finally:
        gc.enable()


def test_buckets_hold_neighbors_of_one_dtype_up_to_the_limit() -> None:
    sizes = [
        (10, torch.float32),
        (10, torch.float32),
        (10, torch.float64),
        (100, torch.float64),
        (1, torch.float64),
    ]
    tensors = [torch.zeros(n, dtype=dtype) for n, dtype in sizes]
    assert assign_buckets(tensors, 100) == [[0, 1], [2], [3], [4]]
    assert assign_buckets(tensors[:1], 1) == [[0]]
    assert assign_buckets([], 1) == []


class _Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclasses.dataclass(frozen=True)
class _Scores:
    logits: Tensor
    pairs: list[_Pair]
    width: int = 3
    hidden: Tensor | None = None


class _Output(OrderedDict[str, Any]):
    """A dict whose items are attributes too, as Hugging Face's."""

    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else super().__getattribute__(name)


class _Structured(nn.Module):
    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 3), make

    def forward(self, x: Tensor) -> Any:
        return self.make(self.layer(x))


@pytest.mark.parametrize(
    ("make", "logits_of"),
    [
        (lambda y: _Scores(y, [_Pair(y, y + 1)]), lambda out: out.pairs[0].second - 1),
        (lambda y: _Pair(y, y * 2), lambda out: out.second / 2),
        (lambda y: _Output(logits=y, none=None), lambda out: out.logits),
        (lambda y: torch.max(y.unsqueeze(1), 1), lambda out: out.values),
    ],
    ids=["dataclass", "namedtuple", "dict", "torch's own"],
)
def test_outputs_of_any_class_are_gathered_by_their_fields(
    make: Callable[[Tensor], Any], logits_of: Callable[[Any], Tensor]
) -> None:
    model, x = _Structured(make), torch.randn(8, 4)
    with tiny.replica_threads(3) as threads:
        out = data_parallel(model, (x,), threads)
        assert type(out) is type(make(torch.ones(1, 3)))
        logits_of(out).sum().backward()
    torch.testing.assert_close(logits_of(out), model.layer(x))
    torch.testing.assert_close(model.layer.weight.grad, x.sum(0).expand(3, 4))


def test_an_object_that_cannot_be_gathered_is_named_by_path() -> None:
    class Graph:
        def __init__(self, nodes: Tensor) -> None:
            self.nodes = nodes

    model = _Structured(lambda y: {"scores": y, "graphs": [Graph(y)]})
    with tiny.replica_threads(2) as threads, pytest.raises(ReplicaError) as caught:
        data_parallel(model, (torch.ones(4, 4),), threads)
    problem = caught.value.problem
    assert "output['graphs'][0] of class Graph" in problem.message
    assert problem.path == "strategy.parallel_loss" and problem.cure == {"strategy.parallel_loss": True}


def test_numbers_that_differ_between_replicas_are_not_gathered() -> None:
    model = _Structured(lambda y: (y, float(y.detach().sum())))
    with tiny.replica_threads(2) as threads, pytest.raises(ModelError, match="different structures"):
        data_parallel(model, (torch.randn(4, 4),), threads)
