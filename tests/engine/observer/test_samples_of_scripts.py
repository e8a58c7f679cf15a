"""Scripts that train to their end on wrong batches are reported, their right twins are not."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_START = """
import random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader, Dataset, IterableDataset, RandomSampler, Subset, SubsetRandomSampler, TensorDataset,
    get_worker_info, random_split,
)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
x = torch.randn(192, 8)
y = torch.randint(0, 4, (192,))
sorted_y = torch.arange(192) // 48
def step(loss):
    optimizer.zero_grad(); loss.backward(); optimizer.step()
def train(loader, epochs=2, loss=lambda a, b: F.cross_entropy(net(a), b)):
    for epoch in range(epochs):
        for a, b in loader:
            step(loss(a, b))
"""
_STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        order = {order}
        for i in order:
            yield {sample}
train(DataLoader(Stream(), {batch}, num_workers={workers}))
"""
_SPLIT = "range(192)[get_worker_info().id :: get_worker_info().num_workers]"
_SHUFFLED = "np.random.permutation(192).tolist()"
_DRAWN = """
class Drawn(Dataset):
    def __init__(self):
        self.rng = {rng}
    def __len__(self):
        return 192
    def __getitem__(self, i):
        {first}
        return {sample}, y[i]
def init_worker(worker_id):
    pass
train(DataLoader(Drawn(), 8, num_workers={workers}{more}))
"""
_NOISY = "x[i] + torch.from_numpy(self.rng.normal(size=8)).float()"
_ORDERED = """
for epoch in range(5):
    {seed}
    {optimizer}
    loader = DataLoader(TensorDataset(x, y), 16, shuffle=True{generator})
    train(loader, 1)
"""
_EVALUATED = """
data = TensorDataset(x, y)
{split}
for epoch in range(2):
    train({loader}, 1)
    with torch.no_grad():
        for a, b in {evaluated}:
            net(a)
"""
_LABELLED = "train(DataLoader(TensorDataset(x, {labels}), 8, shuffle={shuffle}), {epochs})\n"
_BINARY = "train(DataLoader(TensorDataset(x, {labels}), 8, shuffle={shuffle}), loss=lambda a, b: {loss})\n"
_LOGITS = "F.binary_cross_entropy_with_logits(net(a)[:, 0], {target})"
_GAN = """
judge = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
judges = torch.optim.SGD(judge.parameters(), 0.01)
maker = nn.Linear(4, 8)
makes = torch.optim.SGD(maker.parameters(), 0.01)
ones, zeros = torch.ones(8), torch.zeros(8)
score = F.binary_cross_entropy_with_logits
for epoch in range(12):
    for a, _ in DataLoader(TensorDataset(x, {labels}), 8):
        judges.zero_grad()
        score(judge(a)[:, 0], ones).backward()
        score(judge(maker(torch.randn(8, 4)).detach())[:, 0], zeros).backward()
        judges.step()
        makes.zero_grad()
        score(judge(maker(torch.randn(8, 4)))[:, 0], ones).backward()
        makes.step()
"""
_CONTRASTED = """
def loss(a, _):
    left, right = F.normalize(net(a)), F.normalize(net(a + 0.1 * torch.randn_like(a)))
    return {loss}
train(DataLoader(TensorDataset(x, torch.zeros(192).long()), 8, shuffle=True), 12, loss)
"""

_CASES: dict[str, tuple[str, set[str]]] = {
    "each worker yields all": (
        _STREAM.format(order="range(192)", sample="x[i], y[i]", batch=8, workers=2), {"repeated-by-workers"},
    ),
    "three workers and few batches": (
        _STREAM.format(order="range(48)", sample="x[i], y[i]", batch=16, workers=3), {"repeated-by-workers"},
    ),
    "each worker shuffles all": (
        _STREAM.format(order=_SHUFFLED, sample="x[i], y[i]", batch=8, workers=2), {"repeated-by-workers"},
    ),
    "workers divide a stream": (
        _STREAM.format(order=_SPLIT, sample="x[i], y[i]", batch=8, workers=2), set(),
    ),
    "one worker reads a stream": (
        _STREAM.format(order="range(192)", sample="x[i], y[i]", batch=8, workers=1), set(),
    ),
    "a stream is repeated on purpose": (
        _STREAM.format(order=f"[*{_SPLIT}] * 2", sample="x[i], y[i]", batch=8, workers=2), set(),
    ),
    "workers draw from a stream": (
        _STREAM.format(order="np.random.randint(0, 192, 192)", sample="x[i], y[i]", batch=8, workers=2),
        set(),
    ),
    "a stream of equal samples": (
        _STREAM.format(order="range(192)", sample="torch.ones(8), y[0]", batch=8, workers=2),
        {"labels-constant"},
    ),
    "workers copy a generator": (
        _DRAWN.format(rng="np.random.default_rng(0)", first="", sample=_NOISY, workers=2, more=""),
        {"generator-copied-to-workers"},
    ),
    "workers copy a generator of a transform": (
        "class Noise:\n    def __init__(self):\n        self.rng = random.Random(0)\n"
        "    def __call__(self, a):\n        return a + self.rng.random()\n"
        + _DRAWN.format(rng="Noise()", first="", sample="self.rng(x[i])", workers=2, more=""),
        {"generator-copied-to-workers"},
    ),
    "workers return the same": (
        "numbers = [np.random.default_rng(0)]\n"
        + _DRAWN.format(
            rng="None", first="", sample="torch.from_numpy(numbers[0].normal(size=8)).float()",
            workers=2, more="",
        ).replace("y[i]", "y[0]"),
        {"equal-batches-of-workers", "labels-constant"},
    ),
    "a worker function seeds": (
        _DRAWN.format(
            rng="np.random.default_rng(0)", first="", sample=_NOISY, workers=2,
            more=", worker_init_fn=init_worker",
        ),
        set(),
    ),
    "the dataset seeds": (
        _DRAWN.format(
            rng="np.random.default_rng(0)", first="self.rng = np.random.default_rng(i)", sample=_NOISY,
            workers=2, more="",
        ),
        set(),
    ),
    "a generator without workers": (
        _DRAWN.format(rng="np.random.default_rng(0)", first="", sample=_NOISY, workers=0, more=""), set(),
    ),
    "global generators": (
        _DRAWN.format(rng="None", first="", sample="x[i] + np.random.rand()", workers=2, more=""), set(),
    ),
    "a seed in each epoch": (
        _ORDERED.format(seed="torch.manual_seed(7)", optimizer="", generator=""), {"same-order-every-epoch"},
    ),
    "a new generator in each epoch": (
        _ORDERED.format(seed="", optimizer="", generator=", generator=torch.Generator().manual_seed(3)"),
        {"same-order-every-epoch"},
    ),
    "a seed for each epoch": (
        _ORDERED.format(seed="torch.manual_seed(epoch)", optimizer="", generator=""), set(),
    ),
    "a seed for each training": (
        _ORDERED.format(
            seed="torch.manual_seed(7)", optimizer="optimizer = torch.optim.SGD(net.parameters(), 0.01)",
            generator="",
        ),
        set(),
    ),
    "a shuffling loader": (_ORDERED.format(seed="", optimizer="", generator=""), set()),
    "an overlapping split": (
        _EVALUATED.format(
            split="a_part, _ = random_split(data, [152, 40])\n_, b_part = random_split(data, [152, 40])",
            loader="DataLoader(a_part, 8, shuffle=True)", evaluated="DataLoader(b_part, 8)",
        ),
        {"evaluation-on-training-samples"},
    ),
    "overlapping samplers": (
        _EVALUATED.format(
            split="loader = DataLoader(data, 8, sampler=SubsetRandomSampler(range(160)))", loader="loader",
            evaluated="DataLoader(data, 8, sampler=SubsetRandomSampler(range(150, 192)))",
        ),
        {"evaluation-on-training-samples"},
    ),
    "a split": (
        _EVALUATED.format(
            split="a_part, b_part = random_split(data, [152, 40])",
            loader="DataLoader(a_part, 8, shuffle=True)", evaluated="DataLoader(b_part, 8)",
        ),
        set(),
    ),
    "a part of the training samples evaluated": (
        _EVALUATED.format(
            split="part = Subset(data, range(160))\nprobe = Subset(data, range(40))",
            loader="DataLoader(part, 8, shuffle=True)", evaluated="DataLoader(probe, 8)",
        ),
        set(),
    ),
    "all samples evaluated": (
        _EVALUATED.format(
            split="part = Subset(data, range(160))",
            loader="DataLoader(part, 8, shuffle=True)", evaluated="DataLoader(Subset(data, range(192)), 8)",
        ),
        set(),
    ),
    "folds": (
        """
data = TensorDataset(x, y)
for fold in range(4):
    held = range(48 * fold, 48 * fold + 48)
    rest = [i for i in range(192) if i not in held]
    train(DataLoader(Subset(data, rest), 8, shuffle=True), 1)
    with torch.no_grad():
        for a, b in DataLoader(Subset(data, held), 8): net(a)
""",
        set(),
    ),
    "one class": (
        _LABELLED.format(labels="torch.full((192,), 2)", shuffle=True, epochs=2), {"labels-constant"},
    ),
    "one class for many epochs": (
        _LABELLED.format(labels="torch.zeros(192).int()", shuffle=False, epochs=12).replace(
            "epochs=2", "epochs=12"
        ).replace("12)\n", "12, lambda a, b: F.cross_entropy(net(a), b.long()))\n"),
        {"labels-constant"},
    ),
    "one class of two": (
        _BINARY.format(labels="torch.zeros(192)", shuffle=True, loss=_LOGITS.format(target="b")),
        {"labels-constant"},
    ),
    "one class of two, converted": (
        _BINARY.format(
            labels="torch.ones(192).long()", shuffle=True, loss=_LOGITS.format(target="b.float()")
        ),
        {"labels-constant"},
    ),
    "several classes": (_LABELLED.format(labels="y", shuffle=True, epochs=2), set()),
    "a rare class": (
        _LABELLED.format(labels="(torch.arange(192) == 190).long()", shuffle=True, epochs=2), set(),
    ),
    "one class and then another": (
        _LABELLED.format(labels="torch.zeros(192).long()", shuffle=True, epochs=3)
        + _LABELLED.format(labels="torch.ones(192).long()", shuffle=True, epochs=3),
        set(),
    ),
    "a constant to regress on": (
        _BINARY.format(labels="torch.zeros(192)", shuffle=True, loss="F.mse_loss(net(a)[:, 0], b)"), set(),
    ),
    "unlabelled images of a GAN": (_GAN.format(labels="torch.zeros(192).long()"), set()),
    "real images of a GAN": (_GAN.format(labels="torch.ones(192)"), set()),
    "pairs of unlabelled samples": (
        _CONTRASTED.format(loss="F.cross_entropy(left @ right.T, torch.arange(8))"), set(),
    ),
    "negatives of unlabelled samples": (
        _CONTRASTED.format(
            loss="F.cross_entropy(torch.cat([(left * right).sum(1, True), left @ x[:3, :4].T], 1), "
            "torch.zeros(8).long())"
        ),
        set(),
    ),
    "sorted by class": (
        _LABELLED.format(labels="sorted_y", shuffle=False, epochs=2), {"batches-of-one-class"},
    ),
    "a sorted stream": (
        _STREAM.format(order="range(192)", sample="x[i], sorted_y[i]", batch=8, workers=0),
        {"batches-of-one-class"},
    ),
    "two classes sorted": (
        _BINARY.format(
            labels="(torch.arange(192) > 90).float()", shuffle=False, loss=_LOGITS.format(target="b")
        ),
        {"batches-of-one-class"},
    ),
    "shuffled classes": (_LABELLED.format(labels="sorted_y", shuffle=True, epochs=2), set()),
    "mixed classes in order": (_LABELLED.format(labels="y", shuffle=False, epochs=2), set()),
    "a rare class in order": (
        _LABELLED.format(labels="(torch.arange(192) % 50 == 7).long()", shuffle=False, epochs=2), set(),
    ),
    "lengths in order": (
        _BINARY.format(labels="sorted_y + 5", shuffle=False, loss="F.mse_loss(net(a).sum(1), a.sum(1))"),
        set(),
    ),
    "sample numbers": (
        "net = nn.Linear(8, 192)\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\n"
        + _LABELLED.format(labels="torch.arange(192)", shuffle=False, epochs=2),
        set(),
    ),
    "domains of two loaders": (
        """
sources, targets = TensorDataset(x, torch.zeros(192).long()), TensorDataset(x + 1, torch.ones(192).long())
for epoch in range(12):
    for (a, b), (c, d) in zip(DataLoader(sources, 8), DataLoader(targets, 8)):
        step(F.cross_entropy(net(a), b) + F.cross_entropy(net(c), d))
""",
        set(),
    ),
    "labels in a dictionary": (
        """
data = [{"inputs": x[i], "labels": 1} for i in range(192)]
for epoch in range(2):
    for batch in DataLoader(data, 8, shuffle=True):
        step(F.cross_entropy(net(batch["inputs"]), batch["labels"], label_smoothing=0.1) / 2)
""",
        {"labels-constant"},
    ),
    "workers that persist": (
        _STREAM.format(order=_SHUFFLED, sample="x[i], y[i]", batch=8, workers="2, persistent_workers=True"),
        {"repeated-by-workers"},
    ),
    "sorted, one step per epoch": (
        """
for epoch in range(3):
    optimizer.zero_grad()
    for a, b in DataLoader(TensorDataset(x, sorted_y), 8):
        (F.cross_entropy(net(a), b) / 24).backward()
    optimizer.step()
""",
        set(),
    ),
    "language": (
        """
words = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
optimizer = torch.optim.SGD(words.parameters(), 0.1)
tokens = torch.zeros(192, 6).long()
def loss(a, b):
    return F.cross_entropy(words(a).flatten(0, 1), b.flatten())
train(DataLoader(TensorDataset(tokens, tokens), 8), 2, loss)
""",
        set(),
    ),
}  # fmt: skip


def _key(name: str) -> str:
    return name.replace(" ", "_").replace(",", "")


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {_key(name): _START + script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("samples"))


@pytest.mark.parametrize("name", _CASES)
def test_wrong_batches_are_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    process = processes[_key(name)]
    assert process.status == 0, process.stderr
    codes = {event.code for event in process.events_of_type(events.Anomaly)}
    assert codes - {"accumulation-not-divided"} == _CASES[name][1]  # that one alone is no finding
    assert process.disabled_parts() == {}


def test_an_anomaly_of_batches_has_its_numbers(processes: dict[str, ObservedProcess]) -> None:
    def first(name: str) -> events.Anomaly:
        return processes[_key(name)].events_of_type(events.Anomaly)[0]

    def numbers(name: str, *names: str) -> list[float]:
        return [first(name).numbers[number] for number in names]

    assert numbers("each worker yields all", "workers", "groups") == [2, 6]
    assert numbers("three workers and few batches", "workers", "groups") == [3, 3]
    assert numbers("each worker shuffles all", "workers", "samples") == [2, 192]
    assert first("each worker yields all").names == ["Stream"]
    copied = first("workers copy a generator")
    line = (_START + _DRAWN[: _DRAWN.index("def __getitem__")]).count("\n") + 1
    assert copied.names == ["self.rng", "Drawn"] and copied.line.endswith(f"generator.py:{line}")
    assert first("workers copy a generator of a transform").names[0] == "self.rng"
    overlap = numbers("overlapping samplers", "shared", "evaluated", "trained")
    assert overlap == [10, 42, 160]
    assert numbers("one class", "label", "labels", "batches") == [2, 384, 48]
    assert numbers("sorted by class", "classes", "batches", "one_class", "iterable") == [4, 24, 24, 0]
    assert numbers("a sorted stream", "classes", "iterable") == [4, 1]
    assert numbers("a seed in each epoch", "passes") == [3]
