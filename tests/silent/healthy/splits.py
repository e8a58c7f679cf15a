"""Data that is divided, drawn and mixed in ways that are right. Each kind is the function of that name."""

# ranks: 1
# args: --kind cross-validation
# args: --kind models-together
# args: --kind active
# args: --kind bagging
# args: --kind loader-per-class
# args: --kind domains
# args: --kind single-image
# args: --kind full-batch
# args: --kind bags
# args: --kind seeded-workers
# args: --kind endless-workers
# args: --kind rare
# args: --kind lengths
# args: --kind constant-targets
# args: --kind hard-examples
# args: --kind class-by-class
# args: --kind shrinking-pool

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
loss_function = cross_entropy


def train(model, optimizer, loader):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss_function(model(x), y).backward()
        optimizer.step()


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    losses = [loss_function(model(x), y, reduction="none") for x, y in loader]
    model.train()
    return torch.cat(losses)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=3e-3)


def cross_validation():
    data = toy.class_data(320)
    parts = torch.randperm(320).view(5, 64)
    for held_out in range(5):
        model = toy.norm_net(8, 4)
        optimizer = adam(model)
        training = torch.cat([part for number, part in enumerate(parts) if number != held_out])
        train_loader = DataLoader(data, 16, sampler=SubsetRandomSampler(training.tolist()))
        test_loader = DataLoader(data, 16, sampler=SubsetRandomSampler(parts[held_out].tolist()))
        for _ in range(2):
            train(model, optimizer, train_loader)
            print(held_out, evaluate(model, test_loader).mean().item())


def models_together():
    data = toy.class_data(320)
    parts = torch.randperm(320).view(5, 64)
    models = [toy.norm_net(8, 4) for _ in parts]
    optimizers = [adam(model) for model in models]
    pairs = []
    for held_out, part in enumerate(parts):
        training = torch.cat([other for number, other in enumerate(parts) if number != held_out]).tolist()
        loaders = (
            DataLoader(Subset(data, training), 16, shuffle=True),
            DataLoader(Subset(data, part.tolist()), 16),
        )
        pairs.append(loaders)
    for _ in range(2):
        for model, optimizer, (train_loader, _) in zip(models, optimizers, pairs, strict=True):
            train(model, optimizer, train_loader)
        print([evaluate(model, test).mean().item() for model, (_, test) in zip(models, pairs, strict=True)])


def active():
    data = toy.class_data(320)
    order = torch.randperm(320).tolist()
    labelled, pool = order[:64], order[64:]
    model = toy.norm_net(8, 4)
    optimizer = adam(model)
    for _ in range(6):
        for _ in range(3):
            train(model, optimizer, DataLoader(Subset(data, labelled), 16, shuffle=True))
        scores = evaluate(model, DataLoader(Subset(data, pool), 32))
        chosen = set(scores.topk(32).indices.tolist())
        labelled = labelled + [pool[n] for n in chosen]
        pool = [index for n, index in enumerate(pool) if n not in chosen]


def shrinking_pool():
    """Score a random part of all samples in each round, and train on what was most difficult."""
    data = toy.class_data(320)
    model = toy.norm_net(8, 4)
    optimizer = adam(model)
    chosen = torch.randperm(320)[:96].tolist()
    for _ in range(8):
        train(model, optimizer, DataLoader(Subset(data, chosen), 16, shuffle=True))
        candidates = torch.randperm(320)[:160].tolist()
        scores = evaluate(model, DataLoader(Subset(data, candidates), 32))
        chosen = [candidates[n] for n in scores.topk(96).indices.tolist()]


def bagging():
    data = toy.class_data(320)
    for number in range(4):
        model = toy.norm_net(8, 4)
        optimizer = adam(model)
        generator = torch.Generator().manual_seed(number)
        bag = torch.randint(320, (320,), generator=generator).tolist()
        rest = sorted(set(range(320)) - set(bag))
        for _ in range(2):
            train(model, optimizer, DataLoader(Subset(data, bag), 16, shuffle=True))
            evaluate(model, DataLoader(Subset(data, rest), 32))


def loader_per_class():
    x, y = toy.class_data(512, classes=2).tensors
    model = toy.mlp(8, 2)
    optimizer = adam(model)
    loaders = [
        DataLoader(TensorDataset(x[y == c], y[y == c]), 8, shuffle=True, drop_last=True) for c in (0, 1)
    ]
    for _ in range(6):
        for (x0, y0), (x1, y1) in zip(*loaders, strict=False):
            optimizer.zero_grad()
            cross_entropy(model(torch.cat([x0, x1])), torch.cat([y0, y1])).backward()
            optimizer.step()


def domains():
    body, head, guess = toy.mlp(8, 16), nn.Linear(16, 4), nn.Linear(16, 2)
    x, y = toy.class_data(320).tensors
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters(), *guess.parameters()], lr=3e-3)
    source = DataLoader(TensorDataset(x, y), 16, shuffle=True)
    target = DataLoader(TensorDataset(x + 0.5, torch.ones(320, dtype=torch.long)), 16, shuffle=True)
    for _ in range(6):
        for (xs, ys), (xt, domain) in zip(source, target, strict=True):
            loss = cross_entropy(head(body(xs).relu()), ys)
            loss = loss + 0.1 * cross_entropy(guess(body(xt).relu()), domain)
            loss = loss + 0.1 * cross_entropy(guess(body(xs).relu()), torch.zeros(len(xs), dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def single_image():
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 16), torch.linspace(-1, 1, 16))
    image = (4 * grid).sin().prod(1, keepdim=True)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = adam(model)
    loader = DataLoader(TensorDataset(grid[None], image[None]), 1, shuffle=True)
    for _ in range(150):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()


def full_batch():
    model = toy.mlp(8, 4)
    optimizer = adam(model)
    for _ in range(100):
        train(model, optimizer, DataLoader(toy.class_data(), 256, shuffle=True))


class Bags(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        bag = torch.randn(40, 8, generator=generator)
        bag[:4, 0] += 3 * (index % 2)
        return bag, torch.tensor([index % 2])


def bags():
    model = toy.norm_net(8, 16)
    head = nn.Linear(16, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(3):
        for bag, y in DataLoader(Bags(), 1, shuffle=True):
            hidden = model(bag.squeeze(0)).max(0).values
            optimizer.zero_grad()
            cross_entropy(head(hidden)[None], y.flatten()).backward()
            optimizer.step()


class Noisy(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 320

    def __getitem__(self, index):
        x = torch.from_numpy(self.rng.normal(size=8)).float()
        return x, x.sum(0, keepdim=True) / 3


def seed_worker(worker):
    get_worker_info().dataset.rng = np.random.default_rng(torch.initial_seed() % 2**32)


class Endless(IterableDataset):
    def __iter__(self):
        x, y = toy.class_data(512).tensors
        generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
        while True:
            for n in torch.randperm(512, generator=generator):
                yield x[n], y[n]


def seeded_workers():
    model = toy.mlp()
    optimizer = adam(model)
    loader = DataLoader(Noisy(), 16, num_workers=2, worker_init_fn=seed_worker)
    for _ in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()


def endless_workers():
    model = toy.mlp(8, 4)
    optimizer = adam(model)
    samples = iter(DataLoader(Endless(), 16, num_workers=2))
    for _ in range(100):
        train(model, optimizer, [next(samples)])


def rare():
    x, _ = toy.class_data(4000).tensors
    y = torch.zeros(4000, 1)
    y[[37, 2311, 3990]] = 1
    model = toy.mlp()
    optimizer = adam(model)
    loader = DataLoader(TensorDataset(x, y), 32, shuffle=True)
    for _ in range(2):
        for xs, ys in loader:
            loss = binary_cross_entropy_with_logits(model(xs), ys, pos_weight=torch.tensor(50.0))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def lengths():
    """Texts whose class depends on their length, in batches of similar length."""
    lengths = torch.randint(2, 14, (320,))
    y = (lengths > 8).long()
    x = torch.randn(320, 8) + lengths[:, None] / 4
    order = lengths.argsort()
    model = toy.mlp(8, 2)
    optimizer = adam(model)
    for _ in range(6):
        batches = [order[16 * n : 16 * n + 16].tolist() for n in torch.randperm(20)]
        train(model, optimizer, DataLoader(TensorDataset(x, y), batch_sampler=batches))


def constant_targets():
    """Targets of a sensor that stands still at first."""
    x = torch.randn(1920, 8)
    y = (torch.arange(1920) - 960).clamp_min(0)[:, None] / 960 * x[:, :1]
    model = toy.mlp()
    optimizer = adam(model)
    for xs, ys in DataLoader(TensorDataset(x, y), 16):
        optimizer.zero_grad()
        mse_loss(model(xs), ys).backward()
        optimizer.step()


def hard_examples():
    data = toy.class_data(320)
    model = toy.norm_net(8, 4)
    optimizer = adam(model)
    for _ in range(4):
        train(model, optimizer, DataLoader(data, 16, shuffle=True))
        losses = evaluate(model, DataLoader(data, 64))
        hardest = losses.topk(64).indices.tolist()
        train(model, optimizer, DataLoader(Subset(data, hardest), 16, shuffle=True))


def class_by_class():
    """Continual learning: a new class in each task, with a few stored samples of earlier ones."""
    x, y = toy.class_data(512).tensors
    model = toy.mlp(8, 4)
    optimizer = adam(model)
    stored_x, stored_y = x[:0], y[:0]
    for task in range(4):
        new_x, new_y = x[y == task], y[y == task]
        data = TensorDataset(torch.cat([new_x, stored_x]), torch.cat([new_y, stored_y]))
        for _ in range(3):
            train(model, optimizer, DataLoader(data, 16, shuffle=True))
        stored_x, stored_y = torch.cat([stored_x, new_x[:24]]), torch.cat([stored_y, new_y[:24]])


if __name__ == "__main__":
    globals()[kind.replace("-", "_")]()
