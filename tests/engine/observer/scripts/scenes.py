"""Small trainings in many styles, each in a forked child of one process: `scenes.py [name…]`.

A scene prints what it knows itself as one JSON line: `losses` of its steps (None: not compared), `samples` of
its steps where a loader tells, and a hash of its weights. Scene i is rank i.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import _global_optimizer_pre_hooks as optimizer_hooks
from torch.utils.data import DataLoader, TensorDataset

SCENES: dict[str, Callable[[], dict[str, Any]]] = {}


def scene(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    SCENES[function.__name__] = function
    return function


def make(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def data(num: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num, 16, generator=generator), torch.randint(0, 4, (num,), generator=generator)


def weights(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def scene_facts(model: nn.Module, losses: list[Any], **more: Any) -> dict[str, Any]:
    return {"losses": losses, "weights": weights(model), **more}


def one_step(model: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


@scene
def bare() -> dict[str, Any]:
    model, losses, norms = make(), [], []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 4)
    for x, y in DataLoader(TensorDataset(*data()), 24, num_workers=2):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norms.append(
            torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item()
        )
        optimizer.step()
        rates.step()
        losses.append(loss.item())
    return scene_facts(
        model, losses, norms=norms, samples=[24, 24, 24, 24, 24, 8], lr=[0.01] * 4 + [0.001] * 2
    )


@scene
def on_a_default_device() -> dict[str, Any]:
    torch.set_default_device("cpu")
    model, losses, norms = make(), [], []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        losses.append(one_step(model, optimizer, *data()))
        norms.append(
            torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item()
        )
    torch.set_default_device(None)
    return scene_facts(model, losses, norms=norms)


@scene
def accumulation_with_validation() -> dict[str, Any]:
    """One evaluation fetches with gradients on, as some trainers do, another one without."""
    model, losses, samples = make(), [], []
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        micro_losses = []
        for i, batch in enumerate(DataLoader([{"x": x, "y": y} for x, y in zip(*data(), strict=True)], 16)):
            loss = F.cross_entropy(model(batch["x"]), batch["y"]) / 2
            loss.backward()
            micro_losses.append(loss.item())
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
                losses.append(sum(micro_losses))
                samples.append(32)
                micro_losses = []
        for x, y in DataLoader(TensorDataset(*data()), 32):
            with torch.no_grad():
                F.cross_entropy(model(x), y)
        evaluated = iter(DataLoader(TensorDataset(*data()), 32))  # It is left after a batch, and stays.
        with torch.no_grad():
            x, y = next(evaluated)
            F.cross_entropy(model(x), y)
    return scene_facts(model, losses, samples=samples, backwards=[2] * len(losses))


@scene
def loader_that_reads_ahead() -> dict[str, Any]:
    def prefetch(loader: Iterable[Any]) -> Iterable[Any]:
        batches = iter(loader)
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch

    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for x, y in prefetch(DataLoader(TensorDataset(*data(72)), 32)):
            losses.append(one_step(model, optimizer, x, y))
    return scene_facts(model, losses, samples=[32, 32, 8] * 2)


@scene
def evaluations_that_are_left() -> dict[str, Any]:
    """With gradients on, by a loader that keeps its workers and by one that does not."""
    model, losses, evaluated = make(), [], DataLoader(TensorDataset(*data()), 7)
    loaders = [
        DataLoader(TensorDataset(*data()), batch, num_workers=1, persistent_workers=True) for batch in (32, 5)
    ]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for x, y in loaders[0]:
            losses.append(one_step(model, optimizer, x, y))
        for loader in (loaders[1], loaders[1], evaluated):
            for i, (x, y) in enumerate(loader):
                F.cross_entropy(model(x), y)
                if i == 2:
                    break
    return scene_facts(model, losses, samples=[32] * 8)


@scene
def two_optimizers() -> dict[str, Any]:
    """The generator has more parameters, and steps second."""
    torch.manual_seed(0)
    maker, judge = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 16)), nn.Linear(16, 1)
    makes, judges = torch.optim.Adam(maker.parameters(), 1e-3), torch.optim.Adam(judge.parameters(), 1e-3)
    judged, losses = F.binary_cross_entropy_with_logits, []
    for (x,) in DataLoader(TensorDataset(data(120)[0]), 12):
        noise = torch.randn(12, 4)
        judges.zero_grad()
        judged(judge(x), torch.ones(12, 1)).backward()
        judged(judge(maker(noise).detach()), torch.zeros(12, 1)).backward()
        judges.step()
        makes.zero_grad()
        loss = judged(judge(maker(noise)), torch.ones(12, 1))
        loss.backward()
        makes.step()
        losses.append(loss.item())
    return scene_facts(maker, losses, samples=[12] * 10, backwards=[1] * 10)


@scene
def lbfgs() -> dict[str, Any]:
    model, losses = make(), []
    optimizer, (x, y) = torch.optim.LBFGS(model.parameters(), max_iter=3), data()
    for _ in range(4):
        closure_losses = []

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            closure_losses.append(loss.item())
            return loss

        optimizer.step(closure)
        losses.append(closure_losses[0])
    return scene_facts(model, losses)


@scene
def closures_with_accumulation() -> dict[str, Any]:
    """Lightning's order: the last backward of a step runs inside it."""
    model, losses, (x, y) = make(), [], data()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(4):
        first = F.cross_entropy(model(x[:64]), y[:64]) / 2
        first.backward()

        def closure() -> torch.Tensor:
            loss = F.cross_entropy(model(x[64:]), y[64:]) / 2
            loss.backward()
            return loss

        losses.append(first.item() + optimizer.step(closure).item())
        optimizer.zero_grad()
    return scene_facts(model, losses, backwards=[2] * 4)


@scene
def scaler_that_skips() -> dict[str, Any]:
    model, losses, (x, y) = make(), [], data()
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    for i in range(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaled = scaler.scale(loss * (float("inf") if i == 3 else 1))
        (scaled / 2 if i == 5 else scaled).backward()
        scaler.step(optimizer)
        scaler.update()
        if i != 3:
            losses.append(loss.item() / (2 if i == 5 else 1))
    return scene_facts(model, losses, skipped=1)


@scene
def many_scaled_losses() -> dict[str, Any]:
    """Two of a step, scaled before their backwards, in every way that can be told, and in one that cannot."""
    model, losses, (x, y) = make(), [], data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)
    for i in range(8):
        optimizer.zero_grad()
        first, second = F.cross_entropy(model(x[:64]), y[:64]), F.cross_entropy(model(x[64:]), y[64:])
        if i == 0:
            for scaled in (scaler.scale(first), scaler.scale(second)):
                scaled.backward()
        elif i == 1:
            for scaled in scaler.scale([first, second]):
                scaled.backward()
        elif i == 2:
            torch.autograd.backward(scaler.scale((first, second)))
        elif i == 3:
            (scaler.scale(first) + scaler.scale(second)).backward()
        elif i == 4:
            torch.stack([scaler.scale(first), scaler.scale(second)]).sum().backward()
        elif i == 5:
            scaler.scale(torch.stack([first, second])).mean().backward()
        elif i == 6:
            (scaler.scale(first) + second).backward()
        else:
            for scaled in scaler.scale(loss for loss in (first, second)):
                scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        loss = (first.item() + second.item()) / (2 if i == 5 else 1)
        losses.append(loss if i < 6 else None)
    return scene_facts(model, losses)


@scene
def one_scaler_for_two() -> dict[str, Any]:
    """Both skip one step, and the smaller one another by itself."""
    small, large, losses, (x, y) = make(8), make(64), [], data()
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in (small, large)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for i in range(8):
        worst = [torch.inf if i in bad_steps else 1.0 for bad_steps in ((3, 5), (3,))]
        model_losses = [F.cross_entropy(model(x), y) for model in (small, large)]
        scaler.scale(sum(loss * factor for loss, factor in zip(model_losses, worst, strict=True))).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        if i != 3:
            losses.append(None if i == 5 else sum(model_losses).item())
    return scene_facts(large, losses, skipped=1)


@scene
def optimizers_with_groups_of_their_own() -> dict[str, Any]:
    """Steps go on, and none is said to be skipped."""

    class Odd(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, 0.1)
            self.param_groups.append({"params": [], "odd": True})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.1 * parameter.grad

    model, losses, (x, y) = make(), [], data()
    optimizer = Odd(model.parameters())
    optimizer.param_groups[1]["params"] = [None, "no tensor"]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=False)
    for _ in range(4):
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        losses.append(loss.item())
    return scene_facts(model, losses, parts=("optimizer", "gradients", "memory", "devices"))


@scene
def zero_redundancy() -> dict[str, Any]:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        model, losses = make(), []
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
        for _ in range(5):
            losses.append(one_step(model, optimizer, *data()))
        dist.destroy_process_group()
    return scene_facts(model, losses, file=0)


@scene
def data_parallel() -> dict[str, Any]:
    class _FabricModule(nn.Module):
        """As Lightning Fabric's, around what it was given and the wrapper that it made of that."""

        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.around, self.module = nn.DataParallel(module), module
            self.forward = self.around.forward

    model, losses = _FabricModule(make()), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        losses.append(one_step(model, optimizer, *data()))
    return scene_facts(model, losses, wrapper="DataParallel")


@scene
def replaced_backward_and_stdout() -> dict[str, Any]:
    backward = torch.Tensor.backward

    def mine(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        backward(self * 1.0, *args, **kwargs)

    torch.Tensor.backward = mine  # type: ignore[method-assign]

    class Loud:
        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, text: str) -> int:
            return self.file.write(text)

        def flush(self) -> None:
            self.file.flush()

    sys.stdout = Loud(sys.stdout)
    return bare() | {"norms": None}


@scene
def optimizers_inside_backward() -> dict[str, Any]:
    model, losses, (x, y) = make(), [], data()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)

        def step(parameter: nn.Parameter, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    for _ in range(6):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return scene_facts(model, losses, backwards=None)


@scene
def checkpointing() -> dict[str, Any]:
    from torch.utils.checkpoint import checkpoint

    model, losses, (x, y) = make(), [], data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x.requires_grad_()
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, x, use_reentrant=True), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return scene_facts(model, losses, backwards=[1] * 5)


@scene
def an_optimizer_for_each_epoch() -> dict[str, Any]:
    model, losses, optimizers = make(), [], []
    for epoch in range(3):
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        if epoch == 0:
            optimizers.append(optimizer)  # The first one lives on and stands still.
        for _ in range(8):
            losses.append(one_step(model, optimizer, *data()))
    return scene_facts(model, losses)


@scene
def an_optimizer_for_each_step() -> dict[str, Any]:
    """What is known of those that are gone is let go."""
    model, losses = make(), []
    for _ in range(30):
        losses.append(one_step(model, torch.optim.SGD(model.parameters(), 0.1), *data()))
    watches = [getattr(hook, "__self__", None) for hook in optimizer_hooks.values()]
    counts = [len(watch._known) for watch in watches if hasattr(watch, "_known")]
    assert counts in ([], [1]), counts
    return scene_facts(model, losses)


@scene
def a_second_phase() -> dict[str, Any]:
    """The one that leads steps rarely, and then no more."""
    leads, other = make(64), make(2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (leads, other)]
    losses, (x, y) = [], data(8)
    for num_others in (4, 10, 40, 160, 300, 1500):
        losses.append(one_step(leads, optimizers[0], x, y))
        for _ in range(num_others):
            loss = one_step(other, optimizers[1], x, y)
            if num_others > 300:
                losses.append(loss)
    return scene_facts(other, losses)


@scene
def short_trainings_after_one_another() -> dict[str, Any]:
    """The second is too short to be seen to go on alone; its optimizer is kept, and smaller."""
    models = [make(64), make(8)]
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    losses, (x, y) = [], data(8)
    for model, optimizer in zip(models, optimizers, strict=True):
        losses += [one_step(model, optimizer, x, y) for _ in range(3)]
    return scene_facts(models[0], losses)


@scene
def a_last_step_of_another() -> dict[str, Any]:
    """As where a temperature is fitted after a training: it is no step of that."""
    model, temperature, (x, y) = make(64), make(2), data(8)
    optimizers = [torch.optim.SGD(module.parameters(), 0.1) for module in (model, temperature)]
    losses = [one_step(model, optimizers[0], x, y) for _ in range(6)]
    one_step(temperature, optimizers[1], x, y)
    return scene_facts(model, losses)


@scene
def own_optimizer_and_sums() -> dict[str, Any]:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad

    model, losses, (x, y) = make(), [], data()
    optimizer = Plain(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        both = [F.cross_entropy(model(half), y[:64]) for half in (x[:64], x[64:])]
        torch.autograd.backward(both)
        optimizer.step()
        losses.append(both[0].item() + both[1].item())
    return scene_facts(model, losses)


@scene
def compiled() -> dict[str, Any]:
    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run, step = torch.compile(model, backend="eager"), torch.compile(optimizer.step, backend="eager")
    x, y = data()
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        step()
        losses.append(loss.item())
    return scene_facts(model, losses)


@scene
def narrow_and_sparse() -> dict[str, Any]:
    torch.manual_seed(0)
    embed, linear = nn.Embedding(50, 8, sparse=True), nn.Linear(8, 4)
    model, losses = nn.ModuleList([embed, linear]), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for i in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(linear(embed(torch.arange(i, i + 6))), torch.tensor([0, 1, 2, 3, 0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return scene_facts(model, losses, precision="bf16")


@scene
def a_step_that_fails_once() -> dict[str, Any]:
    model, losses = make(), []
    bad, optimizer = torch.optim.LBFGS(model.parameters()), torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> float:
        raise ValueError("not today")

    try:
        bad.step(closure)
    except ValueError:
        pass
    for _ in range(4):
        losses.append(one_step(model, optimizer, *data()))
    return scene_facts(model, losses)


@scene
def tracebacks() -> dict[str, Any]:
    """Failing in the data, in backward and in a step looks as it does alone."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            raise ValueError("in backward")

    class NoData:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            raise ValueError("in the data")

    model = make()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = [one_step(model, optimizer, *data()) for _ in range(2)]

    def closure() -> float:
        raise ValueError("in a closure")

    from torch.distributed import fsdp, init_process_group

    scaler = torch.amp.GradScaler("cpu")
    texts = []
    for fails in (
        lambda: nn.parallel.DistributedDataParallel(model),
        lambda: fsdp.FullyShardedDataParallel(model),
        lambda: getattr(fsdp, "fully_shard", next)(3),
        lambda: scaler.step(optimizer),
        lambda: scaler.scale(3),  # type: ignore[arg-type]
        lambda: init_process_group("gloo", init_method="tcp://localhost:99999", rank=0, world_size=1),
        lambda: next(iter(DataLoader(NoData(), 2))),  # type: ignore[arg-type]
        lambda: Fails.apply(model(data()[0])).sum().backward(),
        lambda: optimizer.step(closure),
        lambda: torch.autograd.backward(3),  # type: ignore[arg-type]
        lambda: next(empty),
    ):
        empty = iter(DataLoader([]))
        try:
            fails()
        except (ValueError, TypeError, RuntimeError, AssertionError, StopIteration):
            texts.append(traceback.format_exc())
    losses.append(one_step(model, optimizer, *data()))
    return scene_facts(model, losses, texts=texts)


@scene
def never_steps() -> dict[str, Any]:
    model, (x, y) = make(), data()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return scene_facts(model, [])


@scene
def leaves_at_once() -> dict[str, Any]:
    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start_s = time.monotonic()
    while time.monotonic() - start_s < 1.5:
        losses.append(one_step(model, optimizer, *data()))
        time.sleep(0.01)  # The time is what counts, not how much is computed in it.
    print(json.dumps({"leaves_at_once": scene_facts(model, losses)}), flush=True)
    os._exit(7)


@scene
def trains_in_a_thread() -> dict[str, Any]:
    import threading

    model, losses = make(), []

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            losses.append(one_step(model, optimizer, *data()))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    return scene_facts(model, losses)


@scene
def lets_go_of_what_it_computed() -> dict[str, Any]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(16)
    losses, outputs = [], []
    for _ in range(4):
        output = model(x)
        optimizer.zero_grad()
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        outputs.append(weakref.ref(output))
    return scene_facts(model, losses, alive=[output() is not None for output in outputs])


@scene
def loses_its_loss() -> dict[str, Any]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float | None] = []
    for step in range(1, 6):
        x, y = data(16)
        loss = one_step(model, optimizer, x * float("nan") if step == 3 else x, y)
        losses.append(loss if step < 3 else None)
    return scene_facts(model, losses)


@scene
def one_loss_for_two() -> dict[str, Any]:
    """The smaller one steps first, and both on the same backward; the loss is scaled."""
    first, second = make(8), make(64)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
    scaler, losses = torch.amp.GradScaler("cpu", init_scale=1024.0), []
    for x, y in zip(*(tensor.split(16) for tensor in data(96)), strict=True):
        loss = F.cross_entropy(first(x) + second(x), y)
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        losses.append(loss.item())
    return scene_facts(second, losses)


@scene
def more_backwards_than_are_read() -> dict[str, Any]:
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = data(16)
    for _ in range(3):
        for _ in range(300):
            (F.cross_entropy(model(x), y) / 300).backward()
        optimizer.step()
    return scene_facts(model, [None] * 3, backwards=[300] * 3)


@scene
def one_step_and_a_fork() -> dict[str, Any]:
    model = make()
    loss = one_step(model, torch.optim.SGD(model.parameters(), lr=0.1), *data(16))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return scene_facts(model, [loss])


def main(names: list[str]) -> int:
    """0 unless a scene ended in an exception; then its traceback is on stderr."""
    import torch._dynamo  # noqa: F401  # Each optimizer's first step would import it, in each child.

    gc.freeze()  # What a child goes over for garbage it copies.
    status = 0
    for rank, name in enumerate(SCENES):
        if names and name not in names:
            continue
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.environ["RANK"] = str(rank)
            try:
                print(json.dumps({name: SCENES[name]()}), flush=True)
                status = 0
            except Exception:
                traceback.print_exc()
                status = 9
            # Ends as a Python ends, but for taking torch apart, which takes longer than any scene.
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(status)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = max(status, 0 if name == "leaves_at_once" and ended == 7 else ended)
    return status


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
