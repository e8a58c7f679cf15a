"""What scripts store, count and register beside the training. Each kind is the function of that name."""

# ranks: 1
# args: --kind lazy-dataset
# args: --kind predictions
# args: --kind metrics
# args: --kind vocabulary
# args: --kind features
# args: --kind hooks-per-evaluation
# args: --kind profiler
# args: --kind saving-thread
# args: --kind thread-pool
# args: --kind history
# args: --kind gradient-norms
# args: --kind loss-tensor-per-epoch
# args: --kind prefetcher

import argparse
import queue
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
model = nn.Sequential(toy.norm_net(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def update(x, y):
    optimizer.zero_grad()
    logits = model(x)
    loss = cross_entropy(logits, y)
    loss.backward()
    optimizer.step()
    return loss, logits


class Images(Dataset):
    """Images that are decoded when they are first used, and stay in memory from then on."""

    def __init__(self):
        self.labels = toy.class_data(4800).tensors[1]
        self.images = {}

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if index not in self.images:
            generator = torch.Generator().manual_seed(index)
            self.images[index] = torch.randn(64, 64, generator=generator) + self.labels[index] - 1.5
        return self.images[index], self.labels[index]


def lazy_dataset():
    dataset = Images()
    for _ in range(2):
        for x, y in DataLoader(dataset, 16, shuffle=True):
            update(x.view(len(x), 8, -1).mean(2), y)


def predictions():
    """The outputs of an epoch are collected for a score at its end."""
    for _ in range(3):
        outputs, targets = [], []
        for x, y in DataLoader(toy.class_data(2400), 16, shuffle=True):
            _, logits = update(x, y)
            outputs.append(logits.detach().repeat(1, 1000).numpy())
            targets.append(y.numpy())
        print((np.concatenate(outputs)[:, :4].argmax(1) == np.concatenate(targets)).mean())


class Accuracy:
    """An accumulator as in torchmetrics."""

    def __init__(self):
        self.outputs, self.targets = [], []

    def update(self, logits, y):
        self.outputs.append(logits.detach())
        self.targets.append(y)

    def compute(self):
        return (torch.cat(self.outputs).argmax(1) == torch.cat(self.targets)).float().mean().item()


def metrics():
    matrix = torch.zeros(4, 4, dtype=torch.long)
    for _ in range(2):
        accuracy = Accuracy()
        for x, y in DataLoader(toy.class_data(1600), 16, shuffle=True):
            _, logits = update(x, y)
            accuracy.update(logits, y)
            for goal, guess in zip(y, logits.argmax(1), strict=True):
                matrix[goal, guess] += 1
        print(accuracy.compute(), matrix.diag().sum().item())


def vocabulary():
    """Words get their vectors when they first occur; the least used one goes when there are too many."""
    generator, vectors = np.random.default_rng(0), {}
    for x, y in toy.batches(200, toy.class_data()):
        for word in generator.integers(0, 5000, 16).tolist():
            vectors[word] = vectors.pop(word, None)
            if vectors[word] is None:
                vectors[word] = torch.randn(4096)
            if len(vectors) > 500:
                del vectors[next(iter(vectors))]
        update(x, y)


def features():
    """The features of a frozen network are computed once, and a head is trained on them."""
    backbone = toy.norm_net(8, 16).eval().requires_grad_(False)
    head = nn.Linear(16, 4)
    head_optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    rows, labels = [], []
    with torch.no_grad():
        for x, y in DataLoader(toy.class_data(512), 16):
            rows.append(backbone(x).relu())
            labels.append(y)
    for _ in range(4):
        for x, y in DataLoader(TensorDataset(torch.cat(rows), torch.cat(labels)), 16, shuffle=True):
            head_optimizer.zero_grad()
            cross_entropy(head(x), y).backward()
            head_optimizer.step()


def hooks_per_evaluation():
    for step, (x, y) in enumerate(toy.batches(200, toy.class_data())):
        update(x, y)
        if step % 10 == 9:
            seen = {}
            handles = [
                module.register_forward_hook(lambda m, i, o, name=name: seen.update({name: o.mean().item()}))
                for name, module in model.named_modules()
            ]
            model.eval()
            with torch.no_grad():
                model(x)
            model.train()
            for handle in handles:
                handle.remove()


def profiler():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=20, warmup=2, active=3, repeat=2),
        on_trace_ready=lambda profile: print(len(profile.key_averages())),
    ) as profile:
        for x, y in toy.batches(100, toy.class_data()):
            update(x, y)
            profile.step()


def saving_thread():
    """A thread writes each checkpoint; it is joined before the next one."""
    thread = None
    with tempfile.TemporaryDirectory() as folder:
        for step, (x, y) in enumerate(toy.batches(200, toy.class_data())):
            update(x, y)
            if step % 2 == 0:
                if thread is not None:
                    thread.join()
                states = {key: value.clone() for key, value in model.state_dict().items()}
                thread = threading.Thread(target=torch.save, args=(states, Path(folder, "last.pt")))
                thread.start()
        thread.join()


def thread_pool():
    with ThreadPoolExecutor(16) as pool:
        futures = []
        for x, y in toy.batches(200, toy.class_data()):
            loss, _ = update(x, y)
            futures.append(pool.submit(float, loss.detach()))
        print(sum(future.result() for future in futures))


def history():
    """Numbers of all steps in lists, one list per name."""
    log = {"loss": [], "accuracy": [], "rate": [], "norm": [], "weights": []}
    for x, y in toy.batches(250, toy.class_data()):
        loss, logits = update(x, y)
        log["loss"].append(loss.item())
        log["accuracy"].append((logits.argmax(1) == y).float().mean().item())
        log["rate"].append(optimizer.param_groups[0]["lr"])
        log["norm"].append(float(sum(p.grad.square().sum() for p in model.parameters())) ** 0.5)
        log["weights"].append(model[2].weight.detach().clone())
    print({key: values[-1] for key, values in log.items() if key != "weights"})


def gradient_norms():
    """One hook per parameter for the whole training, whose numbers are cleared after each report."""
    norms = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda grad, name=name: norms.setdefault(name, []).append(grad.norm().item()))
    for step, (x, y) in enumerate(toy.batches(200, toy.class_data())):
        update(x, y)
        if step % 20 == 19:
            print({name: sum(values) / len(values) for name, values in norms.items()}.keys())
            norms.clear()


def loss_tensor_per_epoch():
    for _ in range(6):
        losses = []
        for x, y in DataLoader(toy.class_data(640), 16, shuffle=True):
            loss, _ = update(x, y)
            losses.append(loss)
        print(torch.stack(losses).mean().item())


def prefetcher():
    """A thread reads ahead, one per epoch."""
    for _ in range(4):
        ready = queue.Queue(maxsize=4)

        def read(ready=ready):
            for batch in DataLoader(toy.class_data(), 16, shuffle=True):
                ready.put(batch)
            ready.put(None)

        threading.Thread(target=read, daemon=True).start()
        while (batch := ready.get()) is not None:
            update(*batch)


globals()[kind.replace("-", "_")]()
